//! The workloads of the SQLite engine.

mod growth;
mod wakes;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alkstore::{NewEvent, NewJob, Offset, Payload, Queue, SqliteStore, StoreExt};
use alkstore_sqlite::Durability;
use futures_util::future::{select, try_join_all};
use tempfile::TempDir;

use crate::measure::{Reading, now, pause, percentile};
use crate::workload::{Target, Workload, workload};

pub use growth::{Beside, growth, longest_claim};
pub use wakes::{IDLE, PRODUCER, QUIET, WAKES, idle, produce, wake, wake_across};

/// How long a loop runs that is counted.
pub const WHILE: Duration = Duration::from_millis(350);

/// How many jobs are ready where jobs are claimed and acknowledged.
pub const BACKLOG: usize = 5_000;

/// How many tasks or threads enqueue where many do.
pub const CONCURRENT: usize = 64;

/// A database in a directory of its own.
#[derive(Debug)]
pub struct File {
    directory: TempDir,
}

impl File {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { directory: tempfile::tempdir()? })
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("bench.db")
    }
}

/// A hundred bytes of JSON.
pub fn payload_text() -> String {
    format!("{{\"body\":\"{}\"}}", "x".repeat(89))
}

fn payload() -> anyhow::Result<Payload> {
    Ok(Payload::from_json_text(payload_text())?)
}

async fn open(path: &Path, durability: Durability) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::builder(path).durability(durability).open().await?)
}

/// Repeats a step for a while, in so many tasks at once, and counts what the steps say.
pub async fn repeat<F>(
    tasks: usize,
    step: impl Fn() -> F + Clone + Send + 'static,
) -> anyhow::Result<Reading>
where
    F: Future<Output = anyhow::Result<u64>> + Send,
{
    let start = now();
    let run = move || {
        let step = step.clone();
        async move {
            let mut count = 0;
            while start.elapsed() < WHILE {
                count += step().await?;
            }
            anyhow::Ok(count)
        }
    };
    let count = if tasks == 1 {
        run().await?
    } else {
        let counts = try_join_all((0..tasks).map(|_| tokio::spawn(run()))).await?;
        counts.into_iter().sum::<anyhow::Result<u64>>()?
    };
    Ok(Reading::Rate { count, took: start.elapsed() })
}

/// Single enqueues by so many tasks at once.
pub async fn enqueue(durability: Durability, tasks: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let (queue, payload) = (store.queue("q")?, payload()?);
    let reading = repeat(tasks, move || {
        let (queue, payload) = (queue.clone(), payload.clone());
        async move {
            queue.enqueue(payload).await?;
            Ok(1)
        }
    })
    .await;
    store.close().await?;
    reading
}

/// How long one enqueue takes when nothing else happens.
pub async fn enqueue_alone(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let (queue, payload) = (store.queue("q")?, payload()?);
    let mut times = Vec::new();
    for _ in 0..150 {
        pause(Duration::from_millis(1)).await;
        let start = now();
        queue.enqueue(payload.clone()).await?;
        times.push(start.elapsed());
    }
    store.close().await?;
    Ok(Reading::Time(percentile(times, 0.5)))
}

fn jobs(payload: &Payload, count: usize) -> anyhow::Result<Vec<NewJob>> {
    Ok((0..count).map(|_| NewJob::new(payload.clone())).collect::<Result<_, _>>()?)
}

/// Enqueues of a hundred jobs a call.
pub async fn enqueue_many(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let (queue, payload) = (store.queue("q")?, payload()?);
    let reading = repeat(1, move || {
        let (queue, payload) = (queue.clone(), payload.clone());
        async move {
            queue.enqueue_many(jobs(&payload, 100)?).await?;
            Ok(100)
        }
    })
    .await;
    store.close().await?;
    reading
}

async fn fill(queue: &Queue, count: usize) -> anyhow::Result<()> {
    let payload = payload()?;
    for _ in 0..count / 1_000 {
        queue.enqueue_many(jobs(&payload, 1_000)?).await?;
    }
    Ok(())
}

async fn work(queue: Queue, batch: usize) -> anyhow::Result<u64> {
    let mut done = 0;
    loop {
        if batch == 1 {
            let Some(mut job) = queue.claim("w").await? else { return Ok(done) };
            job.ack().await?;
            done += 1;
            continue;
        }
        let mut claimed = queue.claim_batch("w", batch).await?;
        if claimed.is_empty() {
            return Ok(done);
        }
        for acknowledged in queue.ack_batch(&mut claimed).await? {
            acknowledged?;
            done += 1;
        }
    }
}

/// Claims and acknowledgements until the queue is empty, again and again.
pub async fn drain(
    durability: Durability,
    workers: usize,
    batch: usize,
) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let queue = store.queue("q")?;
    let (mut count, mut took) = (0, Duration::ZERO);
    while took < WHILE {
        fill(&queue, BACKLOG).await?;
        let start = now();
        if workers == 1 {
            count += work(queue.clone(), batch).await?;
        } else {
            let working = (0..workers).map(|_| tokio::spawn(work(queue.clone(), batch)));
            let counts = try_join_all(working).await?;
            count += counts.into_iter().sum::<anyhow::Result<u64>>()?;
        }
        took += start.elapsed();
    }
    store.close().await?;
    Ok(Reading::Rate { count, took })
}

/// Two producers with so many enqueues in flight each, and four workers beside them that take up
/// to 32 jobs at once, until all is done.
pub async fn pipeline(durability: Durability, in_flight: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let (queue, payload) = (store.queue("q")?, payload()?);
    let done = Arc::new(AtomicU64::new(0));
    let working = (0..4).map(|_| {
        let (queue, done) = (queue.clone(), done.clone());
        tokio::spawn(async move {
            loop {
                let mut claimed = queue.claim_batch("w", 32).await?;
                if claimed.is_empty() {
                    claimed.push(queue.next("w").await?);
                }
                let acknowledged = queue.ack_batch(&mut claimed).await?;
                done.fetch_add(u64::try_from(acknowledged.len())?, Ordering::SeqCst);
            }
        })
    });
    let working: Vec<tokio::task::JoinHandle<anyhow::Result<()>>> = working.collect();
    let start = now();
    let adding = queue.clone();
    // Two tasks where each has one in flight, else as many as are in flight altogether.
    let added = repeat(2 * in_flight, move || {
        let (queue, payload) = (adding.clone(), payload.clone());
        async move {
            queue.enqueue(payload).await?;
            Ok(1)
        }
    })
    .await?;
    let Reading::Rate { count, .. } = added else { anyhow::bail!("a rate was expected") };
    let all = async {
        while done.load(Ordering::SeqCst) < count {
            pause(Duration::from_micros(200)).await;
        }
    };
    select(pin!(all), pin!(pause(Duration::from_secs(10)))).await;
    let took = start.elapsed();
    anyhow::ensure!(done.load(Ordering::SeqCst) == count, "jobs were left");
    working.iter().for_each(tokio::task::JoinHandle::abort);
    store.close().await?;
    Ok(Reading::Rate { count, took })
}

/// So many events a call.
pub async fn publish(durability: Durability, batch: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let (stream, payload) = (store.stream("s")?, payload()?);
    let reading = repeat(1, move || {
        let (stream, payload) = (stream.clone(), payload.clone());
        async move {
            if batch == 1 {
                stream.publish(payload).await?;
                return Ok(1);
            }
            let events: Result<_, _> = (0..batch).map(|_| NewEvent::new(payload.clone())).collect();
            Ok(u64::try_from(stream.publish_many(events?).await?.len())?)
        }
    })
    .await;
    store.close().await?;
    reading
}

/// Reads of a thousand events a call.
pub async fn read(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let (stream, payload) = (store.stream("s")?, payload()?);
    for _ in 0..20 {
        let events: Result<_, _> = (0..1_000).map(|_| NewEvent::new(payload.clone())).collect();
        stream.publish_many(events?).await?;
    }
    let (start, mut count) = (now(), 0);
    while start.elapsed() < WHILE {
        let mut after = Offset::START;
        loop {
            let events = stream.read(after, 1_000).await?;
            let Some(last) = events.last() else { break };
            after = last.offset;
            count += u64::try_from(events.len())?;
        }
    }
    let took = start.elapsed();
    store.close().await?;
    Ok(Reading::Rate { count, took })
}

/// What the engine is held against by itself: what a million rows beside cost, and what many
/// callers gain from one another.
pub fn workloads() -> Vec<Workload> {
    const ALONE: &str = "sqlite: enqueue at FULL, 1 producer";
    const EMPTY: &str = "sqlite: claim + ack beside nothing";
    let beside = |name, beside| {
        growth::workload_beside(name, beside).target(Target::NotBelow(1.0 / 1.5, EMPTY))
    };
    vec![
        workload(ALONE, || enqueue(Durability::Full, 1)),
        workload("sqlite: enqueue at FULL, 64 producers", || enqueue(Durability::Full, CONCURRENT))
            .target(Target::NotBelow(10.0, ALONE)),
        growth::workload_beside(EMPTY, Beside::Nothing),
        beside("sqlite: claim + ack beside 1k ready", Beside::Ready(1_000)),
        beside("sqlite: claim + ack beside 100k ready", Beside::Ready(100_000)),
        beside("sqlite: claim + ack beside 1M ready", Beside::Ready(1_000_000)),
        beside("sqlite: claim + ack beside 1M of 1,000 priorities", Beside::Priorities),
        beside("sqlite: claim + ack beside 1M delayed", Beside::Delayed),
        beside("sqlite: claim + ack beside 1M claimed", Beside::Claimed),
        beside("sqlite: claim + ack beside 1M lapsed on the last attempt", Beside::Lapsed),
        beside("sqlite: claim + ack beside 1M expired", Beside::Expired),
        beside("sqlite: claim + ack beside 1M dead", Beside::Dead),
        beside("sqlite: claim + ack beside 1M in 10,000 other queues", Beside::OtherQueues),
        beside("sqlite: claim + ack beside 1M that fell due at once", Beside::FellDue),
        workload("sqlite: longest claim while 1M fall due at once", longest_claim)
            .target(Target::Micros(20_000.0)),
    ]
}

//! honker, as its documentation uses it: one `Database` a process, its methods called from as
//! many threads as there are callers. `synchronous` is set on its connection, where it says
//! NORMAL by itself.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use alkstore_bench::handles::{QUIET, WAKES, payload_text};
use alkstore_bench::measure::{Reading, now, percentile, processor_time, rate, wall_micros};
use alkstore_bench::sqlite::{BACKLOG, File, IDLE};
use alkstore_sqlite::Durability;
use honker::{Database, EnqueueOpts, Queue, QueueOpts};
use serde_json::Value;

use crate::threads;

/// The argument with which the program becomes [`produce`].
pub const PRODUCER: &str = "honker-producer";

fn open(path: &Path, durability: Durability) -> anyhow::Result<Database> {
    let database = Database::open(path)?;
    if durability == Durability::Full {
        database.with_conn(|conn| conn.execute_batch("PRAGMA synchronous = FULL"))?;
    }
    Ok(database)
}

fn queue(database: &Database) -> Queue {
    database.queue("q", QueueOpts::default())
}

fn payload() -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&payload_text())?)
}

pub fn enqueue(durability: Durability, threads: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let payload = payload()?;
    threads::repeat(threads, || {
        // A handle costs a clone of an `Arc` and a name, as ours does.
        queue(&database).enqueue(&payload, EnqueueOpts::default())?;
        Ok(1)
    })
}

pub fn enqueue_alone(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let (queue, payload) = (queue(&database), payload()?);
    let mut times = Vec::new();
    for _ in 0..150 {
        threads::pause(Duration::from_millis(1));
        let start = now();
        queue.enqueue(&payload, EnqueueOpts::default())?;
        times.push(start.elapsed());
    }
    Ok(Reading::Time(percentile(times, 0.5)))
}

fn enqueue_hundreds(database: &Database, calls: usize) -> anyhow::Result<u64> {
    let (queue, payload) = (queue(database), payload()?);
    for _ in 0..calls {
        let tx = database.transaction()?;
        for _ in 0..100 {
            queue.enqueue_tx(&tx, &payload, EnqueueOpts::default())?;
        }
        tx.commit()?;
    }
    Ok(100 * calls as u64)
}

pub fn enqueue_many(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    threads::repeat(1, || enqueue_hundreds(&database, 1))
}

fn work(database: &Database, batch: usize) -> anyhow::Result<u64> {
    let (queue, mut done) = (queue(database), 0);
    loop {
        if batch == 1 {
            let Some(job) = queue.claim_one("w")? else { return Ok(done) };
            anyhow::ensure!(job.ack()?);
            done += 1;
            continue;
        }
        let claimed = queue.claim_batch("w", i64::try_from(batch)?)?;
        if claimed.is_empty() {
            return Ok(done);
        }
        let ids: Vec<_> = claimed.iter().map(|job| job.id).collect();
        done += u64::try_from(queue.ack_batch(&ids, "w")?)?;
    }
}

pub fn drain(durability: Durability, workers: usize, batch: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let fill = || enqueue_hundreds(&database, BACKLOG / 100).map(drop);
    threads::drain(workers, fill, || work(&database, batch))
}

pub fn pipeline(durability: Durability, in_flight: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let payload = payload()?;
    let enqueue = || {
        queue(&database).enqueue(&payload, EnqueueOpts::default())?;
        Ok(1)
    };
    threads::pipeline(2 * in_flight, enqueue, |is_over, done| {
        let queue = queue(&database);
        let updates = database.update_events();
        while !is_over() {
            let claimed = queue.claim_batch("w", 32)?;
            if claimed.is_empty() {
                // The end of it all is no update.
                updates.recv_timeout(Duration::from_millis(2))?;
                continue;
            }
            let ids: Vec<_> = claimed.iter().map(|job| job.id).collect();
            done.fetch_add(u64::try_from(queue.ack_batch(&ids, "w")?)?, Ordering::SeqCst);
        }
        Ok(())
    })
}

pub fn wake(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let (queue, payload) = (queue(&database), payload()?);
    let (sender, arrived) = mpsc::channel();
    std::thread::scope(|scope| {
        let waiting = queue.clone();
        scope.spawn(move || {
            let waker = waiting.claim_waker();
            for _ in 0..WAKES {
                let Some(job) = waker.next("w")? else { anyhow::bail!("no job") };
                sender.send(now())?;
                job.ack()?;
            }
            Ok(())
        });
        let mut times = Vec::new();
        for _ in 0..WAKES {
            threads::pause(QUIET);
            let start = now();
            queue.enqueue(&payload, EnqueueOpts::default())?;
            times.push(arrived.recv()?.duration_since(start));
        }
        Ok(Reading::Time(percentile(times, 0.5)))
    })
}

/// What another process does that enqueues.
pub fn produce(path: &Path, durability: Durability) -> anyhow::Result<()> {
    let database = open(path, durability)?;
    let queue = queue(&database);
    for _ in 0..WAKES {
        threads::pause(QUIET);
        queue.enqueue(&wall_micros(), EnqueueOpts::default())?;
    }
    Ok(())
}

pub fn wake_across(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let waker = queue(&database).claim_waker();
    let mut producer = Command::new(std::env::current_exe()?)
        .args([PRODUCER, &format!("{durability:?}")])
        .arg(file.path())
        .stdin(Stdio::null())
        .spawn()?;
    let mut times = Vec::new();
    for _ in 0..WAKES {
        let Some(job) = waker.next("w")? else { anyhow::bail!("no job") };
        let at = wall_micros();
        let began: u64 = job.payload_as()?;
        times.push(Duration::from_micros(at.saturating_sub(began)));
        job.ack()?;
    }
    producer.wait()?;
    Ok(Reading::Time(percentile(times, 0.5)))
}

pub fn idle() -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), Durability::Full)?;
    let updates = database.update_events();
    threads::pause(Duration::from_millis(200));
    let (start, before) = (now(), processor_time()?);
    threads::pause(IDLE);
    let used = processor_time()?.saturating_sub(before);
    let of = start.elapsed();
    drop(updates);
    Ok(Reading::Core { used, of })
}

pub fn publish(durability: Durability, batch: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let payload = payload()?;
    threads::repeat(1, || {
        let stream = database.stream("s");
        if batch == 1 {
            stream.publish(&payload)?;
            return Ok(1);
        }
        let tx = database.transaction()?;
        for _ in 0..batch {
            stream.publish_tx(&tx, &payload)?;
        }
        tx.commit()?;
        Ok(batch as u64)
    })
}

pub fn read(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let database = open(&file.path(), durability)?;
    let (stream, payload) = (database.stream("s"), payload()?);
    let tx = database.transaction()?;
    for _ in 0..20_000 {
        stream.publish_tx(&tx, &payload)?;
    }
    tx.commit()?;
    threads::repeat(1, || {
        let (mut after, mut count) = (0, 0);
        loop {
            let events = stream.read_since(after, 1_000)?;
            let Some(last) = events.last() else { return Ok(count) };
            after = last.offset;
            count += events.len() as u64;
        }
    })
}

/// Claim + ack one by one with a million jobs ready.
pub async fn at_a_million() -> anyhow::Result<Reading> {
    const CLAIMS: u64 = 3;
    let file = File::new()?;
    let database = open(&file.path(), Durability::Normal)?;
    let queue = queue(&database);
    let text = payload_text();
    database.with_conn(|conn| {
        conn.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
            INSERT INTO _honker_live (queue, payload) SELECT 'q', ?1 FROM n",
            [text],
        )
    })?;
    rate(CLAIMS, || async {
        for _ in 0..CLAIMS {
            let Some(job) = queue.claim_one("w")? else { anyhow::bail!("no job") };
            job.ack()?;
        }
        Ok(())
    })
    .await
}

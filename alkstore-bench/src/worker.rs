//! The worker runtime against the loop that it replaces, and what it costs when it is idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alkstore::worker::Worker;
use alkstore::{EnqueueOpts, MemStore, NewJob, Payload, StopToken, Store, StoreExt};
use tempfile::TempDir;

use crate::measure::{Reading, now, processor_time, rate};
use crate::workload::{Target, Workload, workload};

/// An overhead of at most 15 %.
const OVERHEAD: f64 = 1.0 / 1.15;

#[derive(Debug, Clone, Copy)]
enum Engine {
    Memory,
    SqliteNormal,
    SqliteFull,
}

impl Engine {
    /// How many jobs are handled.
    fn jobs(self) -> u64 {
        match self {
            Self::Memory => 200_000,
            Self::SqliteNormal => 50_000,
            Self::SqliteFull => 20_000,
        }
    }

    async fn open(self) -> anyhow::Result<(Option<TempDir>, Arc<dyn Store>)> {
        let synchronous = match self {
            Self::Memory => return Ok((None, Arc::new(MemStore::new()))),
            Self::SqliteNormal => "normal",
            Self::SqliteFull => "full",
        };
        let directory = TempDir::new()?;
        let file = directory.path().join("bench.db");
        let url = format!("sqlite:{}?synchronous={synchronous}", file.display());
        Ok((Some(directory), alkstore::open(&url).await?))
    }

    async fn filled(self) -> anyhow::Result<(Option<TempDir>, Arc<dyn Store>)> {
        let (directory, store) = self.open().await?;
        let queue = store.queue("q")?;
        let payload = Payload::from_json_text(format!("{{\"body\":\"{}\"}}", "x".repeat(89)))?;
        for _ in 0..self.jobs() / 1_000 {
            let job = || Ok(NewJob::new(payload.clone())?.opts(EnqueueOpts::new()));
            let page: anyhow::Result<_> = (0..1_000).map(|_| job()).collect();
            queue.enqueue_many(page?).await?;
        }
        Ok((directory, store))
    }
}

#[derive(serde::Deserialize)]
struct Body {
    body: String,
}

/// What both do with a job.
fn handled(body: &Body) -> bool {
    body.body.starts_with('x')
}

/// The loop as one writes it by hand: claim, decode, handle, ack.
async fn bare(engine: Engine, batch: usize) -> anyhow::Result<Reading> {
    let (_directory, store) = engine.filled().await?;
    let queue = store.queue("q")?;
    let jobs = engine.jobs();
    rate(jobs, || async {
        let mut left = usize::try_from(jobs)?;
        while left > 0 {
            let mut claimed = queue.claim_batch("w", batch).await?;
            for job in &claimed {
                anyhow::ensure!(handled(&job.decode()?), "a job of another shape");
            }
            queue.ack_batch(&mut claimed).await?;
            left = left.saturating_sub(claimed.len());
        }
        Ok(())
    })
    .await
}

/// The same by the worker, from its start until the last ack is written.
async fn by_worker(engine: Engine, concurrency: usize) -> anyhow::Result<Reading> {
    let (_directory, store) = engine.filled().await?;
    let jobs = engine.jobs();
    let (left, stop) = (Arc::new(AtomicU64::new(jobs)), StopToken::new());
    let done = stop.clone();
    let handler = move |body: Body| {
        let last = handled(&body) && left.fetch_sub(1, Ordering::Relaxed) == 1;
        if last {
            done.stop();
        }
        async {}
    };
    let worker = Worker::builder(&store).concurrency(concurrency).queue("q", handler).build()?;
    let reading = rate(jobs, || async { Ok(worker.run(stop).await?) }).await?;
    let left = store.queue("q")?.stats().await?;
    anyhow::ensure!(left.ready + left.claimed == 0, "not everything was acked: {left:?}");
    Ok(reading)
}

/// How long a processor works in a second for a worker of ten queues without jobs.
async fn idle(engine: Engine) -> anyhow::Result<Reading> {
    const SECONDS: u32 = 10;
    let (_directory, store) = engine.open().await?;
    let builder = (0..10).fold(Worker::builder(&store), |builder, n| {
        builder.queue(&format!("q{n}"), async |_: Body| {})
    });
    let (worker, stop) = (builder.schedules(true).maintenance(true).build()?, StopToken::new());
    let token = stop.clone();
    let running = tokio::spawn(async move { worker.run(token).await });
    store_sleep(&store, 1).await?;
    let (before, began) = (processor_time()?, now());
    store_sleep(&store, SECONDS).await?;
    let (used, took) = (processor_time()?.saturating_sub(before), began.elapsed());
    stop.stop();
    running.await??;
    Ok(Reading::Time(used.div_f64(took.as_secs_f64())))
}

async fn store_sleep(store: &Arc<dyn Store>, seconds: u32) -> anyhow::Result<()> {
    Ok(store.sleep(Duration::from_secs(seconds.into())).await?)
}

pub fn workloads() -> Vec<Workload> {
    use Engine::{Memory, SqliteFull, SqliteNormal};

    let held = |name, engine, concurrency, against| {
        workload(name, move || by_worker(engine, concurrency))
            .target(Target::NotBelow(OVERHEAD, against))
    };
    vec![
        workload("bare loop one by one, memory", || bare(Memory, 1)),
        workload("bare loop of 32, memory", || bare(Memory, 32)),
        held("worker of 32, memory", Memory, 32, "bare loop of 32, memory"),
        workload("bare loop one by one, SQLite NORMAL", || bare(SqliteNormal, 1)),
        workload("bare loop of 32, SQLite NORMAL", || bare(SqliteNormal, 32)),
        held("worker of 32, SQLite NORMAL", SqliteNormal, 32, "bare loop of 32, SQLite NORMAL"),
        workload("bare loop of 32, SQLite FULL", || bare(SqliteFull, 32)),
        held("worker of 32, SQLite FULL", SqliteFull, 32, "bare loop of 32, SQLite FULL"),
        workload("idle worker, CPU a second, memory", || idle(Memory))
            .target(Target::Micros(5_000.0)),
        workload("idle worker, CPU a second, SQLite", || idle(SqliteNormal))
            .target(Target::Micros(5_000.0)),
    ]
}

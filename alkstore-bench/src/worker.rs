//! The worker runtime against the loop that it replaces, and what it costs when it is idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alkstore::worker::Worker;
use alkstore::{MemStore, StopToken, Store, StoreExt};
use tempfile::TempDir;

use crate::handles::{fill, flow, payload};
use crate::measure::{Reading, now, processor_time, rate};
use crate::workload::{Target, Workload, workload};

/// An overhead of at most 15 %.
const OVERHEAD: f64 = 1.0 / 1.15;

#[derive(Debug, Clone, Copy)]
pub enum Engine {
    Memory,
    #[cfg(feature = "sqlite")]
    SqliteNormal,
    #[cfg(feature = "sqlite")]
    SqliteFull,
    #[cfg(feature = "pg")]
    Postgres,
}

impl Engine {
    /// How many jobs are handled.
    fn jobs(self) -> u64 {
        match self {
            Self::Memory => 200_000,
            #[cfg(feature = "sqlite")]
            Self::SqliteNormal => 50_000,
            #[cfg(feature = "sqlite")]
            Self::SqliteFull => 20_000,
            #[cfg(feature = "pg")]
            Self::Postgres => 20_000,
        }
    }

    async fn open(self) -> anyhow::Result<(Option<TempDir>, Arc<dyn Store>)> {
        match self {
            Self::Memory => Ok((None, Arc::new(MemStore::new()))),
            #[cfg(feature = "sqlite")]
            Self::SqliteNormal => on_file("normal").await,
            #[cfg(feature = "sqlite")]
            Self::SqliteFull => on_file("full").await,
            #[cfg(feature = "pg")]
            Self::Postgres => Ok((None, Arc::new(crate::pg::empty().await?))),
        }
    }

    async fn filled(self) -> anyhow::Result<(Option<TempDir>, Arc<dyn Store>)> {
        let (directory, store) = self.open().await?;
        let queue = store.queue("q")?;
        fill(&queue, self.jobs()).await?;
        Ok((directory, store))
    }
}

#[cfg(feature = "sqlite")]
async fn on_file(synchronous: &str) -> anyhow::Result<(Option<TempDir>, Arc<dyn Store>)> {
    let directory = TempDir::new()?;
    let file = directory.path().join("bench.db");
    let url = format!("sqlite:{}?synchronous={synchronous}", file.display());
    Ok((Some(directory), alkstore::open(&url).await?))
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
pub async fn bare(engine: Engine, batch: usize) -> anyhow::Result<Reading> {
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
pub async fn by_worker(engine: Engine, concurrency: usize) -> anyhow::Result<Reading> {
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

/// Two producers with one enqueue in flight each, beside a worker of four slots.
pub async fn pipeline(store: &(impl StoreExt + Clone)) -> anyhow::Result<Reading> {
    let (queue, payload) = (store.queue("q")?, payload()?);
    let (done, stop) = (Arc::new(AtomicU64::new(0)), StopToken::new());
    let counted = done.clone();
    let handler = move |body: Body| {
        counted.fetch_add(u64::from(handled(&body)), Ordering::SeqCst);
        async {}
    };
    let worker = Worker::builder(store).concurrency(4).queue("q", handler).build()?;
    let token = stop.clone();
    let running = tokio::spawn(async move { worker.run(token).await });
    let enqueue = move || {
        let (queue, payload) = (queue.clone(), payload.clone());
        async move {
            queue.enqueue(payload).await?;
            Ok(1)
        }
    };
    let reading = flow(2, enqueue, &done).await;
    stop.stop();
    running.await??;
    reading
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
    let mut workloads = Vec::new();
    let mut held =
        |name, engine, bare_name| {
            let bare = workload(bare_name, move || bare(engine, 32));
            let worker = workload(name, move || by_worker(engine, 32));
            let worker = worker.target(Target::NotBelow(OVERHEAD, bare_name));
            workloads.extend([bare, worker].map(|workload| Workload {
                network: !matches!(engine, Engine::Memory),
                ..workload
            }));
        };
    held("worker of 32, memory", Engine::Memory, "bare loop of 32, memory");
    #[cfg(feature = "sqlite")]
    {
        let normal = "bare loop of 32, SQLite NORMAL";
        held("worker of 32, SQLite NORMAL", Engine::SqliteNormal, normal);
        held("worker of 32, SQLite FULL", Engine::SqliteFull, "bare loop of 32, SQLite FULL");
    }
    #[cfg(feature = "pg")]
    held("worker of 32, pg", Engine::Postgres, "bare loop of 32, pg");
    let one_by_one = |name, engine| workload(name, move || bare(engine, 1));
    let idle = |name, engine| workload(name, move || idle(engine)).target(Target::AtMost(5_000.0));
    workloads.push(one_by_one("bare loop one by one, memory", Engine::Memory));
    workloads.push(idle("idle worker, CPU a second, memory", Engine::Memory));
    #[cfg(feature = "sqlite")]
    {
        let engine = Engine::SqliteNormal;
        workloads.push(one_by_one("bare loop one by one, SQLite NORMAL", engine));
        workloads.push(idle("idle worker, CPU a second, SQLite", engine));
    }
    #[cfg(feature = "pg")]
    workloads.push(idle("idle worker, CPU a second, pg", Engine::Postgres).on_network());
    workloads
}

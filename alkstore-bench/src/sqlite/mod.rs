//! The SQLite engine, at either durability.

mod growth;
mod wakes;

use std::path::{Path, PathBuf};

use alkstore::SqliteStore;
use alkstore_sqlite::Durability;
use tempfile::TempDir;

use crate::beside::{Beside, MILLION};
use crate::handles::{self, CONCURRENT};
use crate::measure::Reading;
use crate::workload::{Target, Workload, workload};

pub use growth::{growth, longest_claim};
pub use wakes::{IDLE, PRODUCER, idle, produce, wake_across};

/// How many jobs are ready where jobs are claimed and acknowledged.
pub const BACKLOG: usize = 5_000;

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

async fn open(path: &Path, durability: Durability) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::builder(path).durability(durability).open().await?)
}

/// Runs a workload on a store of its own.
async fn on_file(
    durability: Durability,
    work: impl AsyncFnOnce(&SqliteStore) -> anyhow::Result<Reading>,
) -> anyhow::Result<Reading> {
    use alkstore::StoreExt;

    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let reading = work(&store).await;
    store.close().await?;
    reading
}

pub async fn enqueue(durability: Durability, tasks: usize) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::enqueue(store, tasks).await).await
}

pub async fn enqueue_alone(durability: Durability) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::enqueue_alone(store).await).await
}

/// Enqueues of a hundred jobs a call.
pub async fn enqueue_many(durability: Durability) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::enqueue_many(store, 100).await).await
}

pub async fn drain(
    durability: Durability,
    workers: usize,
    batch: usize,
) -> anyhow::Result<Reading> {
    let backlog = BACKLOG as u64;
    on_file(durability, async |store| handles::drain(store, workers, batch, backlog).await).await
}

pub async fn pipeline(durability: Durability, in_flight: usize) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::pipeline(store, in_flight).await).await
}

pub async fn wake(durability: Durability) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::wake(store).await).await
}

pub async fn publish(durability: Durability, batch: usize) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::publish(store, batch).await).await
}

pub async fn read(durability: Durability) -> anyhow::Result<Reading> {
    on_file(durability, async |store| handles::read(store).await).await
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
        beside("sqlite: claim + ack beside 1M ready", Beside::Ready(MILLION)),
        beside("sqlite: claim + ack beside 1M of 1,000 priorities", Beside::Priorities),
        beside("sqlite: claim + ack beside 1M delayed", Beside::Delayed(MILLION)),
        beside("sqlite: claim + ack beside 1M claimed", Beside::Claimed(MILLION)),
        beside("sqlite: claim + ack beside 1M lapsed on the last attempt", Beside::Lapsed),
        beside("sqlite: claim + ack beside 1M expired", Beside::Expired),
        beside("sqlite: claim + ack beside 1M dead", Beside::Dead(MILLION)),
        beside(
            "sqlite: claim + ack beside 1M in 10,000 other queues",
            Beside::OtherQueues(MILLION),
        ),
        beside("sqlite: claim + ack beside 1M that fell due at once", Beside::FellDue),
        workload("sqlite: longest claim while 1M fall due at once", longest_claim)
            .target(Target::AtMost(20_000.0)),
    ]
}

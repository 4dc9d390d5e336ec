//! The Postgres engine, on a private cluster that waits for the disk at every commit.

mod growth;
mod notify;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use alkstore::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use alkstore::{PgStore, StoreExt};
use alkstore_suite::pg::{Cluster, ClusterOptions};
use tokio::sync::Mutex;

use crate::beside::{Beside, MILLION};
use crate::handles;
use crate::measure::Reading;
use crate::worker;
use crate::workload::{Target, Workload, workload};

pub use growth::growth;
pub use notify::{OTHERS_DUE, committers, exclusively};

/// The database of the engine's workloads.
const DATABASE: &str = "alkstore";

/// How many jobs are ready where so many are claimed at once.
pub fn backlog(batch: usize) -> u64 {
    if batch == 1 { 400 } else { 10_000 }
}

/// The one cluster of this process. Its memory and its checkpoints are those of a small server;
/// what a commit costs is left as it is: `fsync`, `synchronous_commit` and `full_page_writes` on.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    let options = || {
        ClusterOptions::new()
            .fsync(true)
            .setting("shared_buffers", "512MB")
            .setting("max_wal_size", "8GB")
            .setting("checkpoint_timeout", "30min")
    };
    CLUSTER.get_or_init(|| Cluster::start(options()))
}

/// The address of a database of its own, and whether it was made just now.
pub async fn database(name: &'static str) -> anyhow::Result<(String, bool)> {
    static MADE: Mutex<BTreeSet<&str>> = Mutex::const_new(BTreeSet::new());
    let mut made = MADE.lock().await;
    let fresh = made.insert(name);
    if fresh {
        run_sql(&cluster().url(), &format!("CREATE DATABASE {name}")).await?;
    }
    Ok((format!("postgres://postgres@127.0.0.1:{}/{name}", cluster().port()), fresh))
}

/// Runs statements on a connection of their own.
pub async fn run_sql(url: &str, sql: &str) -> anyhow::Result<()> {
    let mut conn = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
    Ok(conn.close().await?)
}

/// A store with nothing in it.
pub async fn empty() -> anyhow::Result<PgStore> {
    let (url, _) = database(DATABASE).await?;
    let store = PgStore::connect(&url).await?;
    run_sql(&url, "TRUNCATE alkstore.jobs, alkstore.events, alkstore.streams").await?;
    Ok(store)
}

/// Runs a workload on an empty store.
async fn on_empty(
    work: impl AsyncFnOnce(&PgStore) -> anyhow::Result<Reading>,
) -> anyhow::Result<Reading> {
    let store = empty().await?;
    let reading = work(&store).await;
    store.close().await?;
    reading
}

pub async fn enqueue(tasks: usize) -> anyhow::Result<Reading> {
    on_empty(async |store| handles::enqueue(store, tasks).await).await
}

pub async fn enqueue_alone() -> anyhow::Result<Reading> {
    on_empty(async |store| handles::enqueue_alone(store).await).await
}

pub async fn enqueue_many(batch: usize) -> anyhow::Result<Reading> {
    on_empty(async |store| handles::enqueue_many(store, batch).await).await
}

pub async fn drain(workers: usize, batch: usize) -> anyhow::Result<Reading> {
    on_empty(async |store| handles::drain(store, workers, batch, backlog(batch)).await).await
}

/// Where each producer has one enqueue in flight, by a worker of four slots; else by four loops that
/// claim as many as there are, up to 32.
pub async fn pipeline(in_flight: usize) -> anyhow::Result<Reading> {
    if in_flight == 1 {
        return on_empty(async |store| worker::pipeline(store).await).await;
    }
    on_empty(async |store| handles::pipeline(store, in_flight).await).await
}

pub async fn wake() -> anyhow::Result<Reading> {
    on_empty(async |store| handles::wake(store).await).await
}

pub async fn publish(batch: usize) -> anyhow::Result<Reading> {
    on_empty(async |store| handles::publish(store, batch).await).await
}

pub async fn read() -> anyhow::Result<Reading> {
    on_empty(async |store| handles::read(store).await).await
}

/// What the engine is held against by itself: what rows beside cost.
pub fn workloads() -> Vec<Workload> {
    const EMPTY: &str = "pg: claim + ack beside nothing";
    let beside = |name, beside| {
        let workload = workload(name, move || growth(beside)).on_network();
        workload.target(Target::NotBelow(1.0 / 1.5, EMPTY))
    };
    vec![
        workload(EMPTY, || growth(Beside::Nothing)).on_network(),
        beside("pg: claim + ack beside 1k ready", Beside::Ready(1_000)),
        beside("pg: claim + ack beside 100k ready", Beside::Ready(100_000)),
        beside("pg: claim + ack beside 1M ready", Beside::Ready(MILLION)),
        beside("pg: claim + ack beside 1M of 1,000 priorities", Beside::Priorities),
        beside("pg: claim + ack beside 100k delayed", Beside::Delayed(100_000)),
        beside("pg: claim + ack beside 1M delayed", Beside::Delayed(MILLION)),
        beside("pg: claim + ack beside 100k claimed", Beside::Claimed(100_000)),
        beside("pg: claim + ack beside 1M claimed", Beside::Claimed(MILLION)),
        beside("pg: claim + ack beside 1M lapsed on the last attempt", Beside::Lapsed),
        beside("pg: claim + ack beside 1M expired", Beside::Expired),
        beside("pg: claim + ack beside 100k dead", Beside::Dead(100_000)),
        beside("pg: claim + ack beside 1M dead", Beside::Dead(MILLION)),
        beside("pg: claim + ack beside 100k in 10,000 other queues", Beside::OtherQueues(100_000)),
        beside("pg: claim + ack beside 1M in 10,000 other queues", Beside::OtherQueues(MILLION)),
    ]
}

//! Queues: each operation on jobs over a connection, written once for calls and transactions.

mod claim;
mod dead;
mod ids;
mod insert;
mod read;
mod row;
mod settle;

use alkstore_core::{
    Claimed, DeadSelection, JobFilter, JobId, JobRecord, JobSpec, LocalName, QueueName, QueueOpts,
    QueueStats, QueueStore, Result, Settled, Settlement, Topic,
};
use async_trait::async_trait;

use crate::sql::{self, Outcome, Write};
use crate::store::SqliteStore;
use crate::wake::ALL;
use crate::writer::Size;

pub(crate) use dead::maintain;
pub(crate) use ids::Ids;
pub(crate) use insert::fire;
pub(crate) use read::find_job;
pub(crate) use settle::settle_job;

/// The statements of every mechanism of queues.
#[cfg(test)]
pub(crate) const HOT: [&[&str]; 6] =
    [claim::HOT, dead::HOT, insert::HOT, read::HOT, row::HOT, settle::HOT];

/// How much of a backlog one operation stores at most.
const PAGE: usize = 1_000;

/// What is stored of where a job stands, as the schema says.
mod state {
    pub(super) const READY: i64 = 0;
    pub(super) const DELAYED: i64 = 1;
    pub(super) const CLAIMED: i64 = 2;
    pub(super) const LAST: i64 = 3;
    pub(super) const DEAD: i64 = 4;
}

const PAUSE: &str = "INSERT OR IGNORE INTO alkstore_paused (queue) VALUES (?1)";

const RESUME: &str = "DELETE FROM alkstore_paused WHERE queue = ?1";

fn topic(queue: &QueueName) -> Topic {
    Topic::Queue(queue.clone())
}

/// Tells that a job became claimable, or will at an instant that waiters may not know of.
fn tell(write: &mut Write<'_>, queue: &QueueName, at: i64) {
    if at <= write.time.now {
        write.effects.wake(topic(queue), 1);
    } else {
        write.effects.sooner(topic(queue), at);
    }
}

fn set_paused(write: &mut Write<'_>, queue: &QueueName, paused: bool) -> Outcome<bool> {
    let statement = if paused { PAUSE } else { RESUME };
    let changed = write.run(statement, [queue.as_str()])? > 0;
    if changed && !paused {
        write.effects.wake(topic(queue), ALL);
    }
    Ok(changed)
}

#[async_trait]
impl QueueStore for SqliteStore {
    async fn insert_jobs(
        &self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let (queue, opts) = (queue.clone(), opts.clone());
        let bytes = jobs.iter().map(|job| job.payload.size()).sum();
        let size = Size::of(jobs.len(), bytes);
        self.open.write(size, move |write| insert::insert_jobs(write, &queue, &opts, &jobs)).await
    }

    async fn claim_jobs(
        &self,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        claim::claim_jobs(&self.open, queue, worker, max).await
    }

    async fn settle_jobs(&self, items: Vec<Settlement>) -> Result<Vec<Result<Settled>>> {
        let size = Size::of(items.len(), 0);
        self.open.write(size, move |write| settle::settle_jobs(write, &items)).await
    }

    async fn cancel_job(&self, queue: &QueueName, id: JobId) -> Result<bool> {
        let queue = queue.clone();
        self.open.write(Size::Small, move |write| settle::cancel_job(write, &queue, id)).await
    }

    async fn find_job(&self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        let (queue, now) = (queue.clone(), self.open.reading().now);
        self.open.peek(move |conn| find_job(conn, &queue, id, now)).await
    }

    async fn find_jobs(&self, queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        let (queue, filter, now) = (queue.clone(), filter.clone(), self.open.reading().now);
        self.open.read(move |conn| read::find_jobs(conn, &queue, &filter, now)).await
    }

    async fn queue_stats(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStats>> {
        let (queue, now) = (queue.cloned(), self.open.reading().now);
        self.open
            .read(move |conn| {
                sql::snapshot(conn, |conn| read::queue_stats(conn, queue.as_ref(), now))
            })
            .await
    }

    async fn requeue_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        let (queue, which) = (queue.clone(), which.clone());
        self.open.write(Size::Any, move |write| dead::requeue_jobs(write, &queue, &which)).await
    }

    async fn purge_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        let (queue, which) = (queue.clone(), which.clone());
        self.open.write(Size::Any, move |write| dead::purge_jobs(write, &queue, &which)).await
    }

    async fn set_queue_paused(&self, queue: &QueueName, paused: bool) -> Result<bool> {
        let queue = queue.clone();
        self.open.write(Size::Small, move |write| set_paused(write, &queue, paused)).await
    }
}

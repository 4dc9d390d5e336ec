//! Queues: each operation on jobs over a connection, written once for calls and transactions.

mod claim;
mod dead;
mod insert;
mod read;
mod settle;

use alkstore_core::{
    Claimed, DeadSelection, JobFilter, JobId, JobRecord, JobSpec, LocalName, QueueName, QueueOpts,
    QueueStats, QueueStore, Result, Settled, Settlement,
};
use async_trait::async_trait;
use sqlx::Row;

use crate::gather::Gather;
use crate::store::PgStore;

pub(crate) use claim::Floors;
pub(crate) use dead::maintain;
pub(crate) use insert::{NewRow, insert_jobs, rows};
pub(crate) use read::find_job;
pub(crate) use settle::{Answer, settle_job};

/// Enqueues that go together.
pub(crate) fn inserts() -> Gather<NewRow, JobId> {
    Gather::new(insert::write, |open| &open.inserts)
}

/// Acks that go together.
pub(crate) fn acks() -> Gather<Settlement, Answer> {
    Gather::new(settle::write, |open| &open.acks)
}

const CANCEL: &str = "SELECT {s}.cancel_job($1, $2)";

const SET_PAUSED: &str = "SELECT {s}.set_queue_paused($1, $2)";

#[async_trait]
impl QueueStore for PgStore {
    async fn insert_jobs(
        &self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        insert::insert_alone(&self.open, queue, opts, jobs).await
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
        settle::settle_alone(&self.open, items).await
    }

    async fn cancel_job(&self, queue: &QueueName, id: JobId) -> Result<bool> {
        let queue = queue.clone();
        self.open
            .write(move |mut sql| {
                let statement = sql.query(CANCEL).bind(queue.to_string()).bind(id.get());
                Box::pin(async move { Ok(sql.one(statement).await?.try_get(0)?) })
            })
            .await
    }

    async fn find_job(&self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        let queue = queue.clone();
        self.open
            .read(move |mut sql| {
                let queue = queue.clone();
                Box::pin(async move { find_job(&mut sql, &queue, id).await })
            })
            .await
    }

    async fn find_jobs(&self, queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        let (queue, filter) = (queue.clone(), filter.clone());
        self.open
            .read(move |mut sql| {
                let (queue, filter) = (queue.clone(), filter.clone());
                Box::pin(async move { read::find_jobs(&mut sql, &queue, &filter).await })
            })
            .await
    }

    async fn queue_stats(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStats>> {
        let queue = queue.cloned();
        self.open
            .read(move |mut sql| {
                let queue = queue.clone();
                Box::pin(async move { read::queue_stats(&mut sql, queue.as_ref()).await })
            })
            .await
    }

    async fn requeue_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        let (queue, which) = (queue.clone(), which.clone());
        self.open
            .write(move |mut sql| {
                let (queue, which) = (queue.clone(), which.clone());
                Box::pin(async move { dead::requeue_jobs(&mut sql, &queue, &which).await })
            })
            .await
    }

    async fn purge_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        let (queue, which) = (queue.clone(), which.clone());
        self.open
            .write(move |mut sql| {
                let (queue, which) = (queue.clone(), which.clone());
                Box::pin(async move { dead::purge_jobs(&mut sql, &queue, &which).await })
            })
            .await
    }

    async fn set_queue_paused(&self, queue: &QueueName, paused: bool) -> Result<bool> {
        let queue = queue.clone();
        self.open
            .write(move |mut sql| {
                let statement = sql.query(SET_PAUSED).bind(queue.to_string()).bind(paused);
                Box::pin(async move { Ok(sql.one(statement).await?.try_get(0)?) })
            })
            .await
    }
}

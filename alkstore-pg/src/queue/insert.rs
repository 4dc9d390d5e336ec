//! Enqueue.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    Due, JobId, JobSpec, Lease, LocalName, QueueName, QueueOpts, Result, ceil_millis,
};
use sqlx::Row;

use crate::error::Outcome;
use crate::sql::{self, Sql};
use crate::store::Open;

const INSERT: &str =
    "SELECT {s}.insert_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// What a queue's jobs are stamped with where nothing else is said: it goes with the name.
fn defaults(queue: &QueueName) -> (Duration, u32) {
    if queue.is_outbox() { (Duration::from_secs(60), 5) } else { (Duration::from_secs(300), 3) }
}

const RETRY_BASE: Duration = Duration::from_secs(5);

/// Jobs as the server takes them: an array a column.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    queue: Vec<String>,
    payload: Vec<String>,
    headers: Vec<Option<String>>,
    priority: Vec<i32>,
    delay: Vec<i64>,
    run_at: Vec<Option<i64>>,
    expires: Vec<Option<i64>>,
    key: Vec<Option<String>>,
    max_attempts: Vec<i64>,
    visibility: Vec<i64>,
    retry_base: Vec<i64>,
    retention: Vec<Option<i64>>,
}

impl Batch {
    pub(crate) fn new(queue: &QueueName, opts: &QueueOpts, jobs: &[JobSpec]) -> Result<Self> {
        let mut batch = Self::default();
        batch.add(queue, opts, jobs)?;
        Ok(batch)
    }

    fn add(&mut self, queue: &QueueName, opts: &QueueOpts, jobs: &[JobSpec]) -> Result<()> {
        let (visibility, max_attempts) = defaults(queue);
        let visibility = Lease::saturating(opts.visibility_timeout.unwrap_or(visibility));
        let max_attempts = opts.max_attempts.unwrap_or(max_attempts);
        for job in jobs {
            let headers = sql::headers_text(&job.headers)?;
            let (delay, run_at) = match job.due {
                Due::After(delay) => (ceil_millis(delay), None),
                Due::At(at) => (0, Some(at.as_millis())),
            };
            self.queue.push(queue.to_string());
            self.payload.push(job.payload.as_str().to_owned());
            self.headers.push(headers);
            self.priority.push(job.priority);
            self.delay.push(delay);
            self.run_at.push(run_at);
            self.expires.push(job.expires.map(ceil_millis));
            self.key.push(job.unique_key.as_ref().map(LocalName::to_string));
            self.max_attempts.push(job.max_attempts.unwrap_or(max_attempts).into());
            self.visibility.push(visibility.as_millis());
            self.retry_base.push(ceil_millis(opts.retry_base.unwrap_or(RETRY_BASE)));
            self.retention.push(opts.dead_retention.map(ceil_millis));
        }
        Ok(())
    }
}

/// Adds jobs, all or none.
pub(crate) async fn insert_jobs(sql: &mut Sql<'_>, batch: &Batch) -> Outcome<Vec<JobId>> {
    if batch.queue.is_empty() {
        return Ok(Vec::new());
    }
    let batch = batch.clone();
    let statement = sql
        .query(INSERT)
        .bind(batch.queue)
        .bind(batch.payload)
        .bind(batch.headers)
        .bind(batch.priority)
        .bind(batch.delay)
        .bind(batch.run_at)
        .bind(batch.expires)
        .bind(batch.key)
        .bind(batch.max_attempts)
        .bind(batch.visibility)
        .bind(batch.retry_base)
        .bind(batch.retention);
    let ids: Vec<i64> = sql.one(statement).await?.try_get(0)?;
    Ok(ids.into_iter().map(JobId::stored).collect())
}

pub(super) async fn insert_alone(
    open: &Arc<Open>,
    queue: &QueueName,
    opts: &QueueOpts,
    jobs: &[JobSpec],
) -> Result<Vec<JobId>> {
    let batch = Arc::new(Batch::new(queue, opts, jobs)?);
    open.write(move |mut sql| {
        let batch = batch.clone();
        Box::pin(async move { insert_jobs(&mut sql, &batch).await })
    })
    .await
}

//! Enqueue.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    BoxFuture, Due, JobId, JobSpec, Lease, LocalName, QueueName, QueueOpts, Result, ceil_millis,
};
use sqlx::Row;

use crate::error::Outcome;
use crate::gather;
use crate::sql::{self, Sql};
use crate::store::Open;

const INSERT: &str = "SELECT {s}.insert_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// What a queue's jobs are stamped with where nothing else is said: it goes with the name.
fn defaults(queue: &QueueName) -> (Duration, u32) {
    if queue.is_outbox() { (Duration::from_secs(60), 5) } else { (Duration::from_secs(300), 3) }
}

const RETRY_BASE: Duration = Duration::from_secs(5);

/// A job as the server takes it.
#[derive(Debug)]
pub(crate) struct NewRow {
    queue: QueueName,
    spec: JobSpec,
    headers: Option<String>,
    delay: i64,
    run_at: Option<i64>,
    max_attempts: i64,
    visibility: i64,
    retry_base: i64,
    retention: Option<i64>,
}

impl gather::Row for NewRow {
    fn bytes(&self) -> usize {
        self.spec.payload.size() + self.headers.as_ref().map_or(0, String::len) + 256
    }
}

/// Jobs with the stamps of their queue.
pub(crate) fn rows(queue: &QueueName, opts: &QueueOpts, jobs: Vec<JobSpec>) -> Result<Vec<NewRow>> {
    let (visibility, max_attempts) = defaults(queue);
    let visibility = Lease::saturating(opts.visibility_timeout.unwrap_or(visibility)).as_millis();
    let max_attempts = opts.max_attempts.unwrap_or(max_attempts);
    let row = |spec: JobSpec| {
        let (delay, run_at) = match spec.due {
            Due::After(delay) => (ceil_millis(delay), None),
            Due::At(at) => (0, Some(at.as_millis())),
        };
        Ok(NewRow {
            queue: queue.clone(),
            headers: sql::headers_text(&spec.headers)?,
            delay,
            run_at,
            max_attempts: spec.max_attempts.unwrap_or(max_attempts).into(),
            visibility,
            retry_base: ceil_millis(opts.retry_base.unwrap_or(RETRY_BASE)),
            retention: opts.dead_retention.map(ceil_millis),
            spec,
        })
    };
    jobs.into_iter().map(row).collect()
}

/// Adds jobs, all or none.
pub(crate) async fn insert_jobs(sql: &mut Sql<'_>, rows: &[NewRow]) -> Outcome<Vec<JobId>> {
    fn column<'r, T>(rows: &'r [NewRow], of: impl Fn(&'r NewRow) -> T) -> Vec<T> {
        rows.iter().map(of).collect()
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let statement = sql
        .query(INSERT)
        .bind(column(rows, |row| row.queue.as_str()))
        .bind(column(rows, |row| row.spec.payload.as_str()))
        .bind(column(rows, |row| row.headers.as_deref()))
        .bind(column(rows, |row| row.spec.priority))
        .bind(column(rows, |row| row.delay))
        .bind(column(rows, |row| row.run_at))
        .bind(column(rows, |row| row.spec.expires.map(ceil_millis)))
        .bind(column(rows, |row| row.spec.unique_key.as_ref().map(LocalName::as_str)))
        .bind(column(rows, |row| row.max_attempts))
        .bind(column(rows, |row| row.visibility))
        .bind(column(rows, |row| row.retry_base))
        .bind(column(rows, |row| row.retention));
    let ids: Vec<i64> = sql.one(statement).await?.try_get(0)?;
    Ok(ids.into_iter().map(JobId::stored).collect())
}

/// A call of its own: together with others, unless it may have to wait for a transaction that
/// staged one of its keys.
pub(super) async fn insert_alone(
    open: &Arc<Open>,
    queue: &QueueName,
    opts: &QueueOpts,
    jobs: Vec<JobSpec>,
) -> Result<Vec<JobId>> {
    let rows = rows(queue, opts, jobs)?;
    if rows.iter().any(|row| row.spec.unique_key.is_some()) {
        return write(open.clone(), rows).await;
    }
    open.inserts.call(open, rows).await
}

pub(crate) fn write(open: Arc<Open>, rows: Vec<NewRow>) -> BoxFuture<'static, Result<Vec<JobId>>> {
    let rows: Arc<[NewRow]> = rows.into();
    Box::pin(async move {
        open.write(move |mut sql| {
            let rows = rows.clone();
            Box::pin(async move { insert_jobs(&mut sql, &rows).await })
        })
        .await
    })
}

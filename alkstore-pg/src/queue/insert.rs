//! Enqueue.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    BoxFuture, Due, JobId, JobSpec, Lease, LocalName, QueueName, QueueOpts, Result, ceil_millis,
};
use sqlx::Row;

use crate::error::Outcome;
use crate::gather;
use crate::sql::{self, Sql, Statement};
use crate::store::Open;

/// Where some have unique keys. Its order of arguments is the function's.
const INSERT: &str = "SELECT {s}.insert_jobs($1, $2, $3, $4, $5, $6, $7, $12, $8, $9, $10, $11)";

macro_rules! insert_unkeyed {
    ($rows:literal) => {
        concat!(
            "INSERT INTO {s}.jobs AS j (queue, state, at, ready_at, priority, max_attempts,
                enqueued_at, visibility_ms, retry_base_ms, retention_ms, expires_at, headers,
                payload)
            SELECT i.queue, CASE WHEN i.ready <= i.now THEN 0 ELSE 1 END, i.ready, i.ready,
                i.priority, i.max_attempts, i.now, i.visibility, i.retry_base, i.retention,
                i.expires, i.headers, i.payload
            FROM (
                SELECT u.*, t.us / 1000 AS now, {s}.after_ms(t.us, u.lifetime) AS expires,
                    CASE WHEN u.run_at IS NULL THEN {s}.after_ms(t.us, u.delay)
                        ELSE greatest(u.run_at, t.us / 1000) END AS ready
                FROM (SELECT {s}.clock_us() AS us OFFSET 0) t, ",
            $rows,
            ") i ORDER BY i.ord
            RETURNING j.id, CASE WHEN j.state = 0 THEN {s}.wake('q' || j.queue)
                ELSE {s}.tell(j.queue, j.at, j.enqueued_at) END"
        )
    };
}

/// One without a unique key, as most are.
const INSERT_ONE: &str = insert_unkeyed!(
    "(SELECT $1::text AS queue, $2::text AS payload, $3::text AS headers, $4::integer AS priority,
        $5::bigint AS delay, $6::bigint AS run_at, $7::bigint AS lifetime,
        $8::bigint AS max_attempts, $9::bigint AS visibility, $10::bigint AS retry_base,
        $11::bigint AS retention, 1 AS ord) u"
);

const INSERT_MANY: &str = insert_unkeyed!(
    "unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::bigint[], $6::bigint[],
        $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
        WITH ORDINALITY u (queue, payload, headers, priority, delay, run_at, lifetime,
            max_attempts, visibility, retry_base, retention, ord)"
);

/// What a queue's jobs are stamped with where nothing else is said: it goes with the name.
fn defaults(queue: &QueueName) -> (Duration, u32) {
    if queue.is_outbox() { (Duration::from_secs(60), 5) } else { (Duration::from_secs(300), 3) }
}

const RETRY_BASE: Duration = Duration::from_secs(5);

/// A job as the server takes it.
#[derive(Debug, Clone)]
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
    let has_key = |row: &NewRow| row.spec.unique_key.is_some();
    let statement = match rows {
        [] => return Ok(Vec::new()),
        [row] if !has_key(row) => one(sql.query(INSERT_ONE), row),
        rows if !rows.iter().any(has_key) => many(sql.query(INSERT_MANY), rows),
        rows => {
            let keys = column(rows, |row| row.spec.unique_key.as_ref().map(LocalName::as_str));
            let statement = many(sql.query(INSERT), rows).bind(keys);
            let ids: Vec<i64> = sql.one(statement).await?.try_get(0)?;
            return Ok(ids.into_iter().map(JobId::stored).collect());
        }
    };
    let mut ids = Vec::with_capacity(rows.len());
    for row in sql.all(statement).await? {
        ids.push(JobId::stored(row.try_get(0)?));
    }
    // They were given out in the order of the rows.
    ids.sort_unstable();
    Ok(ids)
}

fn one(statement: Statement, row: &NewRow) -> Statement {
    statement
        .bind(row.queue.as_str())
        .bind(row.spec.payload.as_str())
        .bind(row.headers.as_deref())
        .bind(row.spec.priority)
        .bind(row.delay)
        .bind(row.run_at)
        .bind(row.spec.expires.map(ceil_millis))
        .bind(row.max_attempts)
        .bind(row.visibility)
        .bind(row.retry_base)
        .bind(row.retention)
}

fn many(statement: Statement, rows: &[NewRow]) -> Statement {
    statement
        .bind(column(rows, |row| row.queue.as_str()))
        .bind(column(rows, |row| row.spec.payload.as_str()))
        .bind(column(rows, |row| row.headers.as_deref()))
        .bind(column(rows, |row| row.spec.priority))
        .bind(column(rows, |row| row.delay))
        .bind(column(rows, |row| row.run_at))
        .bind(column(rows, |row| row.spec.expires.map(ceil_millis)))
        .bind(column(rows, |row| row.max_attempts))
        .bind(column(rows, |row| row.visibility))
        .bind(column(rows, |row| row.retry_base))
        .bind(column(rows, |row| row.retention))
}

fn column<'r, T>(rows: &'r [NewRow], of: impl Fn(&'r NewRow) -> T) -> Vec<T> {
    rows.iter().map(of).collect()
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
        return write(open.clone(), rows.into()).await;
    }
    open.inserts.call(open, rows).await
}

pub(crate) fn write(
    open: Arc<Open>,
    rows: Arc<[NewRow]>,
) -> BoxFuture<'static, Result<Vec<JobId>>> {
    Box::pin(async move {
        open.write(move |mut sql| {
            let rows = rows.clone();
            Box::pin(async move { insert_jobs(&mut sql, &rows).await })
        })
        .await
    })
}

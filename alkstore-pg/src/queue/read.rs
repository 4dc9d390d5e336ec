//! Reads: what the clock makes of the rows, whatever was stored of it.

use std::time::Duration;

use alkstore_core::{
    EXPIRED_ERROR, JobFilter, JobId, JobRecord, JobState, LAPSED_ERROR, QueueName, QueueStats,
    Timestamp,
};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::Outcome;
use crate::sql::{self, Sql};

macro_rules! records {
    ($condition:literal) => {
        concat!(
            "SELECT * FROM (SELECT j.id, j.payload, j.enqueued_at, j.headers, j.priority,
                j.attempt, j.max_attempts, j.ready_at, j.visibility_ms, j.retry_base_ms,
                j.retention_ms, j.expires_at, j.unique_key, j.worker, j.last_error, j.at, j.state,
                {s}.died_at(j.state, j.at, j.expires_at, t.now) AS died_at,
                t.now
            FROM (SELECT {s}.now_ms() AS now OFFSET 0) t, {s}.jobs j WHERE ",
            $condition,
            ") r WHERE (r.died_at IS NULL OR r.retention_ms IS NULL
                OR {s}.gone_at(r.died_at, r.retention_ms) > r.now)"
        )
    };
}

const FIND: &str = records!("j.id = $2 AND j.queue = $1");

const FIND_MANY: &str = concat!(
    records!("j.queue = $1 AND j.id > $2"),
    " AND ($4 IS NULL OR $4 = CASE WHEN r.died_at IS NOT NULL THEN 2
        WHEN r.state IN (2, 3) AND r.at > r.now THEN 1 ELSE 0 END)
    ORDER BY r.id LIMIT $3"
);

macro_rules! stats {
    ($jobs:literal, $paused:literal) => {
        concat!(
            "WITH t AS MATERIALIZED (SELECT {s}.now_ms() AS now),
            j AS (SELECT j.queue, j.state, j.at, j.retention_ms, t.now,
                {s}.died_at(j.state, j.at, j.expires_at, t.now) AS died_at
                FROM t, {s}.jobs j ",
            $jobs,
            "),
            s AS (SELECT j.queue,
                count(*) FILTER (WHERE died_at IS NULL AND at <= now) AS ready,
                count(*) FILTER (WHERE died_at IS NULL AND at > now AND state IN (0, 1))
                    AS delayed,
                count(*) FILTER (WHERE died_at IS NULL AND at > now AND state IN (2, 3))
                    AS claimed,
                count(*) FILTER (WHERE died_at IS NOT NULL AND (retention_ms IS NULL
                    OR {s}.gone_at(died_at, retention_ms) > now)) AS dead,
                min(at) FILTER (WHERE died_at IS NULL AND at <= now) AS oldest
                FROM j GROUP BY j.queue)
            SELECT queue, coalesce(ready, 0), coalesce(delayed, 0), coalesce(claimed, 0),
                coalesce(dead, 0), oldest, p.paused IS NOT NULL
            FROM s FULL JOIN (SELECT p.queue, true AS paused FROM {s}.paused p ",
            $paused,
            ") p USING (queue)
            WHERE p.paused OR ready + delayed + claimed + dead > 0 ORDER BY queue"
        )
    };
}

const STATS: &str = stats!("", "");

const STATS_OF: &str = stats!("WHERE j.queue = $1", "WHERE p.queue = $1");

fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

fn instant(millis: i64) -> std::time::SystemTime {
    Timestamp::from_millis(millis).into()
}

fn attempts(row: &PgRow, column: usize) -> sqlx::Result<u32> {
    Ok(u32::try_from(row.try_get::<i64, _>(column)?).unwrap_or(u32::MAX))
}

/// The job as a reader sees it.
fn record(row: &PgRow, queue: &QueueName) -> sqlx::Result<JobRecord> {
    let id = JobId::stored(row.try_get(0)?);
    let enqueued_at = Timestamp::from_millis(row.try_get(2)?);
    let mut record = JobRecord::new(id, queue.as_str(), sql::payload(row, 1)?, enqueued_at);
    record.headers = sql::headers(row, 3)?;
    record.priority = row.try_get(4)?;
    record.attempt = attempts(row, 5)?;
    record.max_attempts = attempts(row, 6)?;
    record.ready_at = instant(row.try_get(7)?);
    record.visibility_timeout = millis(row.try_get(8)?);
    record.retry_base = millis(row.try_get(9)?);
    record.dead_retention = row.try_get::<Option<i64>, _>(10)?.map(millis);
    record.expires_at = row.try_get::<Option<i64>, _>(11)?.map(instant);
    record.unique_key = row.try_get(12)?;
    record.last_error = row.try_get(14)?;
    let (at, state, now): (i64, i16, i64) = (row.try_get(15)?, row.try_get(16)?, row.try_get(18)?);
    if let Some(died_at) = row.try_get::<Option<i64>, _>(17)? {
        record.state = JobState::Dead;
        record.died_at = Some(instant(died_at));
        match state {
            4 => {}
            // It was claimable between its claim's lapse and its expiry.
            2 if at < died_at => {
                record.ready_at = instant(at);
                record.last_error = Some(EXPIRED_ERROR.to_owned());
            }
            3 => record.last_error = Some(LAPSED_ERROR.to_owned()),
            _ => record.last_error = Some(EXPIRED_ERROR.to_owned()),
        }
    } else if at > now && matches!(state, 2 | 3) {
        record.state = JobState::Claimed;
        record.worker_id = row.try_get(13)?;
        record.deadline = Some(instant(at));
    } else {
        record.ready_at = instant(at);
    }
    Ok(record)
}

pub(crate) async fn find_job(
    sql: &mut Sql<'_>,
    queue: &QueueName,
    id: JobId,
) -> Outcome<Option<JobRecord>> {
    let statement = sql.query_once(FIND).bind(queue.to_string()).bind(id.get());
    Ok(sql.first(statement).await?.map(|row| record(&row, queue)).transpose()?)
}

pub(super) async fn find_jobs(
    sql: &mut Sql<'_>,
    queue: &QueueName,
    filter: &JobFilter,
) -> Outcome<Vec<JobRecord>> {
    let state = match filter.state {
        None => None,
        Some(JobState::Pending) => Some(0_i32),
        Some(JobState::Claimed) => Some(1),
        Some(_) => Some(2),
    };
    let statement = sql
        .query(FIND_MANY)
        .bind(queue.to_string())
        .bind(filter.after.map_or(0, JobId::get))
        .bind(sql::extent(filter.limit))
        .bind(state);
    let rows = sql.all(statement).await?;
    rows.iter().map(|row| Ok(record(row, queue)?)).collect()
}

pub(super) async fn queue_stats(
    sql: &mut Sql<'_>,
    queue: Option<&QueueName>,
) -> Outcome<Vec<QueueStats>> {
    let statement = match queue {
        Some(queue) => sql.query_once(STATS_OF).bind(queue.to_string()),
        None => sql.query_once(STATS),
    };
    let count = |row: &PgRow, column| -> sqlx::Result<u64> {
        Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
    };
    let mut all = Vec::new();
    for row in sql.all(statement).await? {
        let mut stats = QueueStats::new(row.try_get::<String, _>(0)?);
        stats.ready = count(&row, 1)?;
        stats.delayed = count(&row, 2)?;
        stats.claimed = count(&row, 3)?;
        stats.dead = count(&row, 4)?;
        stats.oldest_ready_at = row.try_get::<Option<i64>, _>(5)?.map(instant);
        stats.paused = row.try_get(6)?;
        all.push(stats);
    }
    if let (Some(queue), true) = (queue, all.is_empty()) {
        all.push(QueueStats::new(queue.as_str()));
    }
    Ok(all)
}

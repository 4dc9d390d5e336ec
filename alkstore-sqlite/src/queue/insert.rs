//! Enqueue, and the fires of schedules.

use std::time::Duration;

use alkstore_core::{
    Due, Error, Headers, JobId, JobSpec, Lease, LocalName, QueueName, QueueOpts, ScheduleSpec,
    Timestamp, ceil_millis,
};
use rusqlite::{CachedStatement, params};

use super::row::{self, Life, Standing, life};
use super::state::{DELAYED, READY};
use super::{tell, topic};
use crate::sql::{self, Outcome, Write};

const INSERT: &str = "INSERT INTO alkstore_jobs (queue, state, at, ready_at, priority,
        max_attempts, enqueued_at, visibility_ms, retry_base_ms, retention_ms, expires_at,
        unique_key, headers, payload)
    VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

/// Jobs that differ in nothing but their payloads, which come as a list of strings.
const INSERT_ALIKE: &str = "INSERT INTO alkstore_jobs (queue, state, at, ready_at, priority,
        max_attempts, enqueued_at, visibility_ms, retry_base_ms, retention_ms, expires_at,
        unique_key, headers, payload)
    SELECT ?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, value FROM json_each(?13)";

const HOLDER: &str = concat!(
    "SELECT id, ",
    life!(),
    " FROM alkstore_jobs
    WHERE queue = ?1 AND unique_key = ?2 AND state < 4 AND unique_key IS NOT NULL"
);

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[INSERT, INSERT_ALIKE, HOLDER];

/// What a queue's jobs are stamped with where nothing else is said: it goes with the name.
fn defaults(queue: &QueueName) -> (Duration, u32, Duration) {
    let retry_base = Duration::from_secs(5);
    if queue.is_outbox() {
        (Duration::from_secs(60), 5, retry_base)
    } else {
        (Duration::from_secs(300), 3, retry_base)
    }
}

/// What a queue's options make of its jobs.
struct Stamps {
    visibility: Lease,
    max_attempts: u32,
    retry_base: i64,
    retention: Option<i64>,
}

impl Stamps {
    fn of(queue: &QueueName, opts: &QueueOpts) -> Self {
        let (visibility, max_attempts, retry_base) = defaults(queue);
        Self {
            visibility: Lease::saturating(opts.visibility_timeout.unwrap_or(visibility)),
            max_attempts: opts.max_attempts.unwrap_or(max_attempts),
            retry_base: ceil_millis(opts.retry_base.unwrap_or(retry_base)),
            retention: opts.dead_retention.map(ceil_millis),
        }
    }
}

struct NewRow<'a> {
    payload: &'a str,
    headers: &'a Headers,
    priority: i32,
    max_attempts: Option<u32>,
    ready_at: i64,
    expires: Option<Duration>,
    unique_key: Option<&'a LocalName>,
}

impl<'a> NewRow<'a> {
    fn of(write: &Write<'_>, job: &'a JobSpec, payload: &'a str) -> Self {
        let ready_at = match job.due {
            Due::After(delay) => write.time.after(delay),
            // Where it is past, the job became claimable with its enqueue.
            Due::At(at) => at.as_millis().max(write.time.now),
        };
        Self {
            payload,
            headers: &job.headers,
            priority: job.priority,
            max_attempts: job.max_attempts,
            ready_at,
            expires: job.expires,
            unique_key: job.unique_key.as_ref(),
        }
    }
}

fn insert(
    statement: &mut CachedStatement<'_>,
    write: &Write<'_>,
    (queue, stamps): (&QueueName, &Stamps),
    row: &NewRow<'_>,
) -> Outcome<i64> {
    let now = write.time.now;
    let values = params![
        queue.as_str(),
        if row.ready_at <= now { READY } else { DELAYED },
        row.ready_at,
        row.priority,
        row.max_attempts.unwrap_or(stamps.max_attempts),
        now,
        stamps.visibility.as_millis(),
        stamps.retry_base,
        stamps.retention,
        row.expires.map(|expires| write.time.after(expires)),
        row.unique_key.map(LocalName::as_str),
        sql::headers_text(row.headers)?,
        row.payload,
    ];
    statement.execute(values)?;
    Ok(write.conn.last_insert_rowid())
}

/// The live job that holds a key; buried where the clock has made it dead.
pub(super) fn key_holder(
    write: &Write<'_>,
    queue: &QueueName,
    key: &str,
) -> Outcome<Option<JobId>> {
    let holder = sql::one(write.conn, HOLDER, [queue.as_str(), key], |row| {
        Ok((row.get::<_, i64>(0)?, Life::of(row, 1)?))
    })?;
    let Some((id, life)) = holder else { return Ok(None) };
    match life.standing(write.time.now) {
        Standing::Dead(_) | Standing::Gone => {
            row::store_death(write, id)?;
            Ok(None)
        }
        Standing::Pending { .. } | Standing::Claimed => Ok(Some(JobId::stored(id))),
    }
}

pub(crate) fn insert_jobs(
    write: &mut Write<'_>,
    queue: &QueueName,
    opts: &QueueOpts,
    jobs: &[JobSpec],
) -> Outcome<Vec<JobId>> {
    let stamps = Stamps::of(queue, opts);
    let now = write.time.now;
    let mut ids = Vec::with_capacity(jobs.len());
    if let [first, _, ..] = jobs
        && jobs.iter().all(|job| is_alike(job, first))
        && sql::fits_list(jobs.iter().map(|job| &job.payload))
    {
        return insert_alike(write, (queue, &stamps), jobs);
    }
    let (mut ready, mut soonest) = (0, None);
    let mut statement = sql::prepared(write.conn, INSERT)?;
    for job in jobs {
        if let Some(key) = &job.unique_key
            && let Some(holder) = key_holder(write, queue, key.as_str())?
        {
            ids.push(holder);
            continue;
        }
        let row = NewRow::of(write, job, job.payload.as_str());
        let ready_at = row.ready_at;
        ids.push(JobId::stored(insert(&mut statement, write, (queue, &stamps), &row)?));
        if ready_at <= now {
            ready += 1;
        } else {
            soonest = Some(soonest.map_or(ready_at, |soonest: i64| soonest.min(ready_at)));
        }
    }
    write.effects.wake(topic(queue), ready);
    if let Some(soonest) = soonest {
        write.effects.sooner(topic(queue), soonest);
    }
    Ok(ids)
}

/// Whether two jobs differ in nothing but their payloads, and neither may be there already.
fn is_alike(a: &JobSpec, b: &JobSpec) -> bool {
    let JobSpec { headers, priority, due, max_attempts, expires, unique_key, .. } = a;
    unique_key.is_none()
        && b.unique_key.is_none()
        && (priority, due, max_attempts, expires)
            == (&b.priority, &b.due, &b.max_attempts, &b.expires)
        && *headers == b.headers
}

/// One statement for all of them.
fn insert_alike(
    write: &mut Write<'_>,
    (queue, stamps): (&QueueName, &Stamps),
    jobs: &[JobSpec],
) -> Outcome<Vec<JobId>> {
    let payloads: Vec<_> = jobs.iter().map(|job| job.payload.as_str()).collect();
    let payloads = serde_json::to_string(&payloads).map_err(Error::from)?;
    let row = NewRow::of(write, &jobs[0], &payloads);
    let last = {
        let mut statement = sql::prepared(write.conn, INSERT_ALIKE)?;
        insert(&mut statement, write, (queue, stamps), &row)?
    };
    if row.ready_at <= write.time.now {
        write.effects.wake(topic(queue), jobs.len());
    } else {
        write.effects.sooner(topic(queue), row.ready_at);
    }
    // One statement hands out ids in a row.
    let first = last + 1 - sql::extent(jobs.len());
    Ok((first..=last).map(JobId::stored).collect())
}

/// A schedule's job for one of its boundaries: ordinary work, ready now.
pub(crate) fn fire(write: &mut Write<'_>, spec: &ScheduleSpec, boundary: Timestamp) -> Outcome<()> {
    let mut opts = QueueOpts::new();
    opts.visibility_timeout = spec.opts.visibility_timeout;
    opts.max_attempts = spec.opts.max_attempts;
    opts.retry_base = spec.opts.retry_base;
    opts.dead_retention = spec.opts.dead_retention;
    let row = NewRow {
        payload: spec.payload.as_str(),
        headers: &spec.opts.headers.of_fire(&spec.name, boundary),
        priority: spec.opts.priority,
        max_attempts: None,
        ready_at: write.time.now,
        expires: spec.opts.expires,
        unique_key: None,
    };
    let mut statement = sql::prepared(write.conn, INSERT)?;
    insert(&mut statement, write, (&spec.queue, &Stamps::of(&spec.queue, &opts)), &row)?;
    tell(write, &spec.queue, row.ready_at);
    Ok(())
}

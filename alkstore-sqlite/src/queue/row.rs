//! A job's row, and what the clock makes of it.

use std::time::Duration;

use alkstore_core::{
    EXPIRED_ERROR, JobId, JobRecord, JobState, LAPSED_ERROR, QueueName, Timestamp,
};
use rusqlite::{Row, params};

use super::state::{CLAIMED, DEAD, DELAYED, LAST, READY};
use crate::sql::{self, Outcome, Write};

/// What decides where a job stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    state: i64,
    at: i64,
    expires_at: Option<i64>,
    retention: Option<i64>,
}

/// The columns of a [`Life`].
macro_rules! life {
    () => {
        "state, at, expires_at, retention_ms"
    };
}
pub(super) use life;

/// Where a job stands at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Pending { ready_at: i64 },
    Claimed,
    Dead(Death),
    Gone,
}

/// When and why a job died; no reason where it was told one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) at: i64,
    pub(super) reason: Option<&'static str>,
}

impl Life {
    /// From the columns of [`life!`], beginning with this one.
    pub(super) fn of(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        Ok(Self {
            state: row.get(first)?,
            at: row.get(first + 1)?,
            expires_at: row.get(first + 2)?,
            retention: row.get(first + 3)?,
        })
    }

    pub(super) fn standing(&self, now: i64) -> Standing {
        let at = self.at;
        let expiry = self.expires_at.filter(|&expiry| expiry <= now);
        let death = match self.state {
            CLAIMED | LAST if now < at => return Standing::Claimed,
            DEAD => Death { at, reason: None },
            LAST => Death { at, reason: Some(LAPSED_ERROR) },
            _ => match expiry {
                Some(at) => Death { at, reason: Some(EXPIRED_ERROR) },
                None => return Standing::Pending { ready_at: at },
            },
        };
        match self.retention.map(|retention| gone_at(death.at, retention)) {
            Some(gone_at) if gone_at <= now => Standing::Gone,
            _ => Standing::Dead(death),
        }
    }
}

fn gone_at(died_at: i64, retention: i64) -> i64 {
    Timestamp::from_millis(died_at).plus_millis(retention).as_millis()
}

/// One whose claim lapsed before it expired was claimable in between.
const DIE: &str = "UPDATE alkstore_jobs
    SET state = 4, at = ?2, ready_at = iif(state = 2 AND at < ?2, at, ready_at),
        last_error = coalesce(?3, last_error), worker = NULL,
        gone_at = min(?2 + min(retention_ms, ?4), ?4)
    WHERE id = ?1";

const DELETE: &str = "DELETE FROM alkstore_jobs WHERE id = ?1";

const PEND: &str = "UPDATE alkstore_jobs
    SET state = ?2, at = ?3, ready_at = ?3, worker = NULL, attempt = ?4,
        last_error = coalesce(?5, last_error)
    WHERE id = ?1";

const LIFE: &str = concat!("SELECT ", life!(), " FROM alkstore_jobs WHERE id = ?1");

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[DIE, DELETE, PEND, LIFE];

/// Buries a job.
pub(super) fn die(write: &Write<'_>, id: i64, at: i64, reason: Option<&str>) -> Outcome<()> {
    write.run(DIE, params![id, at, reason, Timestamp::FAR_AWAY.as_millis()])?;
    Ok(())
}

pub(super) fn delete(write: &Write<'_>, id: i64) -> Outcome<()> {
    write.run(DELETE, [id])?;
    Ok(())
}

/// Makes a job claimable from an instant on.
pub(super) fn pend(
    write: &Write<'_>,
    id: i64,
    at: i64,
    attempt: i64,
    error: Option<&str>,
) -> Outcome<()> {
    let state = if at <= write.time.now { READY } else { DELAYED };
    write.run(PEND, params![id, state, at, attempt, error])?;
    Ok(())
}

/// Stores that a live job is dead or gone, where the clock has made it so, and says whether it
/// has.
pub(super) fn store_death(write: &Write<'_>, id: i64) -> Outcome<bool> {
    let life = sql::one(write.conn, LIFE, [id], |row| Life::of(row, 0))?;
    match life.map(|life| life.standing(write.time.now)) {
        Some(Standing::Dead(death)) => die(write, id, death.at, death.reason)?,
        Some(Standing::Gone) => delete(write, id)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The columns of a record.
macro_rules! record_columns {
    () => {
        concat!(
            $crate::queue::row::life!(),
            ", id, priority, attempt, max_attempts, enqueued_at, ready_at, visibility_ms, ",
            "retry_base_ms, unique_key, worker, last_error, headers, payload"
        )
    };
}
pub(super) use record_columns;

fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

fn instant(millis: i64) -> std::time::SystemTime {
    Timestamp::from_millis(millis).into()
}

/// The job as a reader sees it, from the columns of [`record_columns!`]; nothing where it is gone.
pub(super) fn record(
    row: &Row<'_>,
    queue: &QueueName,
    now: i64,
) -> rusqlite::Result<Option<JobRecord>> {
    let life = Life::of(row, 0)?;
    let standing = life.standing(now);
    if standing == Standing::Gone {
        return Ok(None);
    }
    let enqueued_at = Timestamp::from_millis(row.get(8)?);
    let id = JobId::stored(row.get(4)?);
    let mut record = JobRecord::new(id, queue.as_str(), sql::payload(row, 16)?, enqueued_at);
    record.headers = sql::headers(row, 15)?;
    record.priority = row.get(5)?;
    record.attempt = row.get(6)?;
    record.max_attempts = row.get(7)?;
    record.ready_at = instant(row.get(9)?);
    record.visibility_timeout = millis(row.get(10)?);
    record.retry_base = millis(row.get(11)?);
    record.dead_retention = life.retention.map(millis);
    record.expires_at = life.expires_at.map(instant);
    record.unique_key = row.get(12)?;
    record.last_error = row.get(14)?;
    match standing {
        Standing::Pending { ready_at } => record.ready_at = instant(ready_at),
        Standing::Claimed => {
            record.state = JobState::Claimed;
            record.worker_id = row.get(13)?;
            record.deadline = Some(instant(life.at));
        }
        Standing::Dead(death) => {
            record.state = JobState::Dead;
            record.died_at = Some(instant(death.at));
            if life.state == CLAIMED && life.at < death.at {
                record.ready_at = instant(life.at);
            }
            if let Some(reason) = death.reason {
                record.last_error = Some(reason.to_owned());
            }
        }
        Standing::Gone => {}
    }
    Ok(Some(record))
}

//! Settlements, and cancelling.

use std::time::Duration;

use alkstore_core::{
    ClaimRef, Error, JobId, QueueName, Result, SettleAction, Settled, Settlement, Timestamp,
};
use rusqlite::params;

use super::row::{self, Life, Standing, life};
use super::state::CLAIMED;
use super::{tell, topic};
use crate::sql::{self, Outcome, Write};

/// The longest backoff between two attempts, in milliseconds.
const LONGEST_BACKOFF: u64 = 3_600_000;

const ACK: &str = "DELETE FROM alkstore_jobs
    WHERE id = ?1 AND queue = ?2 AND token = ?3 AND state IN (2, 3) AND at > ?4";

const HELD: &str = "SELECT state, attempt, max_attempts, retry_base_ms FROM alkstore_jobs
    WHERE id = ?1 AND queue = ?2 AND token = ?3 AND state IN (2, 3) AND at > ?4";

const EXTEND: &str = "UPDATE alkstore_jobs SET at = ?2 WHERE id = ?1";

const STANDING: &str =
    concat!("SELECT ", life!(), " FROM alkstore_jobs WHERE id = ?1 AND queue = ?2");

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[ACK, HELD, EXTEND, STANDING];

/// What is known of a job that its claim holds.
struct Held {
    state: i64,
    attempt: i64,
    max_attempts: i64,
    retry_base: i64,
}

/// Settles claims, each for itself.
pub(super) fn settle_jobs(
    write: &mut Write<'_>,
    items: &[Settlement],
) -> Outcome<Vec<Result<Settled>>> {
    if !items.iter().all(|item| matches!(item.action, SettleAction::Ack)) {
        return items.iter().map(|item| settle_job(write, item)).collect();
    }
    let mut ack = sql::prepared(write.conn, ACK)?;
    let mut settled = Vec::with_capacity(items.len());
    for Settlement { claim, .. } in items {
        let (id, token) = (claim.id.get(), claim.token.get());
        let deleted = ack.execute(params![id, claim.queue.as_str(), token, write.time.now])?;
        settled.push(if deleted == 0 { Err(lost(claim)) } else { Ok(Settled::Gone) });
    }
    Ok(settled)
}

fn lost(claim: &ClaimRef) -> Error {
    Error::ClaimLost { queue: claim.queue.to_string(), id: claim.id }
}

/// Settles one claim. Where it is lost, the job stays as it was, and so does the transaction.
pub(crate) fn settle_job(write: &mut Write<'_>, item: &Settlement) -> Outcome<Result<Settled>> {
    let claim = &item.claim;
    let (id, queue) = (claim.id.get(), &claim.queue);
    let values = params![id, queue.as_str(), claim.token.get(), write.time.now];
    if matches!(item.action, SettleAction::Ack) {
        let deleted = write.run(ACK, values)?;
        return Ok(if deleted == 0 { Err(lost(claim)) } else { Ok(Settled::Gone) });
    }
    let held = sql::one(write.conn, HELD, values, |row| {
        Ok(Held {
            state: row.get(0)?,
            attempt: row.get(1)?,
            max_attempts: row.get(2)?,
            retry_base: row.get(3)?,
        })
    })?;
    match held {
        Some(held) => act(write, id, queue, &held, &item.action).map(Ok),
        None => Ok(Err(lost(claim))),
    }
}

fn act(
    write: &mut Write<'_>,
    id: i64,
    queue: &QueueName,
    held: &Held,
    action: &SettleAction,
) -> Outcome<Settled> {
    let now = write.time.now;
    let (attempt, error, delay) = match action {
        SettleAction::Ack => {
            row::delete(write, id)?;
            return Ok(Settled::Gone);
        }
        SettleAction::Retry { error, .. } if held.attempt >= held.max_attempts => {
            row::die(write, id, now, Some(error.as_str()))?;
            return Ok(Settled::Dead);
        }
        SettleAction::Fail { error } => {
            row::die(write, id, now, Some(error.as_str()))?;
            return Ok(Settled::Dead);
        }
        SettleAction::Heartbeat { extend } => {
            let until = write.time.after(extend.as_duration());
            write.run(EXTEND, [id, until])?;
            if held.state == CLAIMED {
                write.effects.sooner(topic(queue), until);
            }
            return Ok(Settled::Held(Timestamp::from_millis(until)));
        }
        SettleAction::Retry { error, delay } => {
            let delay = delay.unwrap_or_else(|| backoff(held.retry_base, held.attempt));
            (held.attempt, Some(error.as_str()), delay)
        }
        SettleAction::Release { delay } => ((held.attempt - 1).max(0), None, *delay),
    };
    let at = write.time.after(delay);
    row::pend(write, id, at, attempt, error)?;
    tell(write, queue, at);
    Ok(Settled::Again(Timestamp::from_millis(at)))
}

/// Half of the step for sure, the other half by chance, so that what failed together doesn't come
/// back together.
fn backoff(base: i64, attempt: i64) -> Duration {
    let mut step = base.unsigned_abs().min(LONGEST_BACKOFF);
    for _ in 1..attempt {
        if step == 0 || step == LONGEST_BACKOFF {
            break;
        }
        step = (step * 2).min(LONGEST_BACKOFF);
    }
    Duration::from_millis(fastrand::u64(step.div_ceil(2)..=step))
}

pub(super) fn cancel_job(write: &mut Write<'_>, queue: &QueueName, id: JobId) -> Outcome<bool> {
    let values = params![id.get(), queue.as_str()];
    let life = sql::one(write.conn, STANDING, values, |row| Life::of(row, 0))?;
    match life.map(|life| life.standing(write.time.now)) {
        Some(Standing::Pending { .. } | Standing::Claimed) => {
            row::delete(write, id.get())?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_an_hour_at_any_attempt() {
        for (attempt, step) in [
            (1, 5_000),
            (2, 10_000),
            (5, 80_000),
            (11, 3_600_000),
            (64, 3_600_000),
            (i64::from(u32::MAX), 3_600_000),
        ] {
            let delay = backoff(5_000, attempt);
            let step = Duration::from_millis(step);
            assert!(delay >= step / 2 && delay <= step, "attempt {attempt}: {delay:?}");
        }
        assert_eq!(backoff(0, 7), Duration::ZERO);
        assert!(backoff(i64::MAX, 1) >= Duration::from_secs(1_800));
        assert_eq!(backoff(1, 1), Duration::from_millis(1));
    }
}

//! Claims.

use std::time::Duration;

use alkstore_core::{
    ClaimRef, ClaimToken, Claimed, ClaimedJob, EXPIRED_ERROR, JobId, Lease, LocalName, QueueName,
    Result, SettleAction, Settlement, Timestamp,
};
use rusqlite::{Connection, Row, params};

use super::settle::settle_job;
use super::state::{CLAIMED, LAST};
use super::{PAGE, row, topic};
use crate::acquire::GiveBack;
use crate::sql::{self, Outcome, Write};
use crate::store::Open;

const IS_PAUSED: &str = "SELECT 1 FROM alkstore_paused WHERE queue = ?1";

const IS_READY: &str = "SELECT 1 FROM alkstore_jobs WHERE queue = ?1 AND state = 0 LIMIT 1";

const NEXT_DUE: &str = "SELECT at FROM alkstore_jobs
    WHERE queue = ?1 AND state IN (1, 2) ORDER BY at LIMIT 1";

const TAKE_IN: &str = "UPDATE alkstore_jobs SET state = 0, ready_at = at, worker = NULL
    WHERE id IN (SELECT id FROM alkstore_jobs
        WHERE queue = ?1 AND state IN (1, 2) AND at <= ?2 ORDER BY at, id LIMIT ?3)";

const READY: &str = "SELECT id, token, attempt, max_attempts, visibility_ms, expires_at,
        enqueued_at, headers, payload
    FROM alkstore_jobs WHERE queue = ?1 AND state = 0 ORDER BY priority DESC, at, id LIMIT ?2";

const CLAIM: &str = "UPDATE alkstore_jobs
    SET state = ?2, at = ?3, attempt = ?4, token = ?5, worker = ?6 WHERE id = ?1";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[IS_PAUSED, IS_READY, NEXT_DUE, TAKE_IN, READY, CLAIM];

/// How jobs are given back whose claimer is gone, the attempt uncharged.
fn return_them(queue: QueueName, jobs: Vec<ClaimedJob>) -> Option<GiveBack> {
    let release = |job: ClaimedJob| Settlement {
        claim: ClaimRef { queue: queue.clone(), id: job.id, token: job.token },
        action: SettleAction::Release { delay: Duration::ZERO },
    };
    let releases: Vec<_> = jobs.into_iter().map(release).collect();
    if releases.is_empty() {
        return None;
    }
    Some(Box::new(move |write| {
        for release in &releases {
            // Lost by now, it is somebody else's.
            let _: Result<_> = settle_job(write, release)?;
        }
        Ok(())
    }))
}

/// What a claim finds without writing: nothing where there is something to claim.
fn nothing(conn: &Connection, queue: &QueueName, now: i64) -> Outcome<Option<Claimed>> {
    let queue = [queue.as_str()];
    let exists = |statement| sql::one(conn, statement, queue, |_| Ok(()));
    if exists(IS_PAUSED)?.is_some() {
        return Ok(Some(Claimed::default()));
    }
    if exists(IS_READY)?.is_some() {
        return Ok(None);
    }
    let next_due = next_due(conn, queue[0])?;
    Ok(next_due
        .is_none_or(|due| due > now)
        .then(|| Claimed { next_due: next_due.map(Timestamp::from_millis), ..Claimed::default() }))
}

fn next_due(conn: &Connection, queue: &str) -> Outcome<Option<i64>> {
    Ok(sql::one(conn, NEXT_DUE, [queue], |row| row.get(0))?)
}

pub(super) async fn claim_jobs(
    open: &Open,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
) -> Result<Claimed> {
    if max == 0 {
        open.usable()?;
        return Ok(Claimed::default());
    }
    let (probed, now) = (queue.clone(), open.reading().now);
    // Where there is nothing to claim, nobody has to be kept from writing.
    if let Some(nothing) = open.peek(move |conn| nothing(conn, &probed, now)).await? {
        return Ok(nothing);
    }
    let (claims, worker, queue) = (queue.clone(), worker.clone(), queue.clone());
    open.acquire(
        move |write| claim(write, &claims, &worker, max),
        |claimed| return_them(queue, claimed.jobs),
    )
    .await
}

fn claim(
    write: &mut Write<'_>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
) -> Outcome<Claimed> {
    let now = write.time.now;
    let is_paused = sql::one(write.conn, IS_PAUSED, [queue.as_str()], |_| Ok(()))?;
    if is_paused.is_some() {
        return Ok(Claimed::default());
    }
    let taken_in = write.run(TAKE_IN, params![queue.as_str(), now, sql::extent(PAGE)])?;
    let mut claimed = hand_out(write, queue, worker, max)?;
    let next = next_due(write.conn, queue.as_str())?;
    claimed.next_due = next.map(Timestamp::from_millis);
    claimed.more |= claimed.jobs.is_empty() && next.is_some_and(|at| at <= now);
    // More than one may be left of them for the others.
    write.effects.wake(topic(queue), taken_in);
    Ok(claimed)
}

/// A ready job, as a claim finds it.
struct Ready {
    job: ClaimedJob,
    expires_at: Option<i64>,
}

impl Ready {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let visibility: i64 = row.get(4)?;
        let timeout = Duration::from_millis(visibility.unsigned_abs());
        let job = ClaimedJob {
            id: JobId::stored(row.get(0)?),
            token: ClaimToken::stored(row.get(1)?),
            attempt: row.get(2)?,
            max_attempts: row.get(3)?,
            payload: sql::payload(row, 8)?,
            headers: sql::headers(row, 7)?,
            enqueued_at: Timestamp::from_millis(row.get(6)?),
            visibility_timeout: Lease::saturating(timeout),
            deadline: Timestamp::EPOCH,
        };
        Ok(Self { job, expires_at: row.get(5)? })
    }
}

/// Claims what is ready, in order, and buries what it meets that has expired.
fn hand_out(
    write: &mut Write<'_>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
) -> Outcome<Claimed> {
    let now = write.time.now;
    let mut claimed = Claimed::default();
    let mut buried = 0;
    while claimed.jobs.len() < max {
        let page = (max - claimed.jobs.len()).min(PAGE);
        let values = params![queue.as_str(), sql::extent(page)];
        let found = sql::all(write.conn, READY, values, Ready::of)?;
        let is_last_page = found.len() < page;
        for Ready { mut job, expires_at } in found {
            if let Some(at) = expires_at.filter(|&at| at <= now) {
                if buried == PAGE {
                    claimed.more = true;
                    return Ok(claimed);
                }
                buried += 1;
                row::die(write, job.id.get(), at, Some(EXPIRED_ERROR))?;
                continue;
            }
            hold(write, queue, worker, &mut job)?;
            claimed.jobs.push(job);
        }
        if is_last_page {
            break;
        }
    }
    Ok(claimed)
}

fn hold(
    write: &mut Write<'_>,
    queue: &QueueName,
    worker: &LocalName,
    job: &mut ClaimedJob,
) -> Outcome<()> {
    let deadline = write.time.after(job.visibility_timeout.as_duration());
    job.attempt = job.attempt.saturating_add(1);
    job.token = ClaimToken::stored(job.token.get() + 1);
    job.deadline = Timestamp::from_millis(deadline);
    let state = if job.attempt >= job.max_attempts { LAST } else { CLAIMED };
    let (id, token) = (job.id.get(), job.token.get());
    write.run(CLAIM, params![id, state, deadline, job.attempt, token, worker.as_str()])?;
    if state == CLAIMED {
        write.effects.sooner(topic(queue), deadline);
    }
    Ok(())
}

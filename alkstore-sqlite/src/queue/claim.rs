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
use crate::writer::Size;

/// What a claim has to know first: whether the queue is paused, and when the next job of it falls
/// due or comes back.
const STATE: &str = "SELECT EXISTS (SELECT 1 FROM alkstore_paused WHERE queue = ?1),
    (SELECT at FROM alkstore_jobs WHERE queue = ?1 AND state IN (1, 2) ORDER BY at LIMIT 1)";

const IS_READY: &str = "SELECT 1 FROM alkstore_jobs WHERE queue = ?1 AND state = 0 LIMIT 1";

/// One that has expired before its claim lapsed isn't claimable again.
const TAKE_IN: &str = "UPDATE alkstore_jobs
    SET state = 0, ready_at = iif(expires_at <= at, ready_at, at), worker = NULL
    WHERE id IN (SELECT id FROM alkstore_jobs
        WHERE queue = ?1 AND state IN (1, 2) AND at <= ?2 ORDER BY at, id LIMIT ?3)";

const READY: &str = "SELECT id, token, attempt, max_attempts, visibility_ms, expires_at,
        enqueued_at, headers, payload
    FROM alkstore_jobs WHERE queue = ?1 AND state = 0 ORDER BY priority DESC, at, id LIMIT ?2";

const CLAIM: &str = "UPDATE alkstore_jobs
    SET state = ?2, at = ?3, attempt = ?4, token = ?5, worker = ?6 WHERE id = ?1";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[STATE, IS_READY, TAKE_IN, READY, CLAIM];

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

/// What a claim finds before it writes.
#[derive(Debug)]
enum Found {
    /// Nothing to claim.
    Nothing(Claimed),
    Ready,
    /// What fell due or came back is to be taken in first.
    Due,
}

/// Whether a queue is paused, and when the next job of it falls due or comes back.
fn state(conn: &Connection, queue: &QueueName) -> Outcome<(bool, Option<i64>)> {
    let state = sql::one(conn, STATE, [queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(state.unwrap_or_default())
}

fn find(conn: &Connection, queue: &QueueName, now: i64) -> Outcome<Found> {
    let (is_paused, next_due) = state(conn, queue)?;
    if is_paused {
        return Ok(Found::Nothing(Claimed::default()));
    }
    if next_due.is_some_and(|due| due <= now) {
        return Ok(Found::Due);
    }
    if sql::one(conn, IS_READY, [queue.as_str()], |_| Ok(()))?.is_some() {
        return Ok(Found::Ready);
    }
    let next_due = next_due.map(Timestamp::from_millis);
    Ok(Found::Nothing(Claimed { next_due, ..Claimed::default() }))
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
    let size = match open.peek(move |conn| find(conn, &probed, now)).await? {
        Found::Nothing(nothing) => return Ok(nothing),
        Found::Ready => Size::of(max, 0),
        Found::Due => Size::Any,
    };
    let (claims, worker, queue) = (queue.clone(), worker.clone(), queue.clone());
    open.acquire(
        size,
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
    let (is_paused, mut next) = state(write.conn, queue)?;
    if is_paused {
        return Ok(Claimed::default());
    }
    let mut taken_in = 0;
    if next.is_some_and(|due| due <= now) {
        taken_in = write.run(TAKE_IN, params![queue.as_str(), now, sql::extent(PAGE)])?;
        next = state(write.conn, queue)?.1;
    }
    let (mut claimed, first_lapse) = hand_out(write, queue, worker, max)?;
    next = next.into_iter().chain(first_lapse).min();
    claimed.next_due = next.map(Timestamp::from_millis);
    claimed.more |= claimed.jobs.is_empty() && next.is_some_and(|at| at <= now);
    if let Some(first_lapse) = first_lapse {
        write.effects.sooner(topic(queue), first_lapse);
    }
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

/// Claims what is ready, in order, and buries what it meets that has expired. Also the instant at
/// which the first of these claims lapses and the job can be claimed again.
fn hand_out(
    write: &mut Write<'_>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
) -> Outcome<(Claimed, Option<i64>)> {
    let now = write.time.now;
    let (mut claimed, mut first_lapse) = (Claimed::default(), None);
    let mut buried = 0;
    let (mut ready, mut hold) =
        (sql::prepared(write.conn, READY)?, sql::prepared(write.conn, CLAIM)?);
    while claimed.jobs.len() < max {
        let page = (max - claimed.jobs.len()).min(PAGE);
        let values = params![queue.as_str(), sql::extent(page)];
        let found = ready.query_map(values, Ready::of)?.collect::<rusqlite::Result<Vec<_>>>()?;
        let is_last_page = found.len() < page;
        for Ready { mut job, expires_at } in found {
            if let Some(at) = expires_at.filter(|&at| at <= now) {
                if buried == PAGE {
                    claimed.more = true;
                    return Ok((claimed, first_lapse));
                }
                buried += 1;
                row::die(write, job.id.get(), at, Some(EXPIRED_ERROR))?;
                continue;
            }
            let deadline = write.time.after(job.visibility_timeout.as_duration());
            job.attempt = job.attempt.saturating_add(1);
            job.token = ClaimToken::stored(job.token.get() + 1);
            job.deadline = Timestamp::from_millis(deadline);
            let state = if job.attempt >= job.max_attempts { LAST } else { CLAIMED };
            let (id, token) = (job.id.get(), job.token.get());
            hold.execute(params![id, state, deadline, job.attempt, token, worker.as_str()])?;
            if state == CLAIMED {
                first_lapse = first_lapse.into_iter().chain([deadline]).min();
            }
            claimed.jobs.push(job);
        }
        if is_last_page {
            break;
        }
    }
    Ok((claimed, first_lapse))
}

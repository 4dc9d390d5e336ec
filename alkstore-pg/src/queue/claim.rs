//! Claims.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    ClaimRef, ClaimToken, Claimed, ClaimedJob, JobId, Lease, LocalName, QueueName, Result,
    SettleAction, Settlement, Timestamp, Topic,
};
use parking_lot::Mutex;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::settle::settle_jobs;
use crate::acquire::GiveBack;
use crate::error::Outcome;
use crate::sql::{self, Sql};
use crate::store::Open;

const CLAIM: &str = "SELECT id, token, attempt, max_attempts, visibility_ms, enqueued_at,
        deadline, headers, payload, us, next_due, blocked, more, floors
    FROM {s}.claim_jobs($1, $2, $3, $4)";

/// What the last claim of a queue found out that the next one needn't look at, as it answered: only
/// of queues whose claims dead rows are in the way of.
#[derive(Debug, Default)]
pub(crate) struct Floors(Mutex<HashMap<QueueName, Vec<i64>>>);

impl Floors {
    fn of(&self, queue: &QueueName) -> Option<Vec<i64>> {
        self.0.lock().get(queue).cloned()
    }

    fn learn(&self, queue: &QueueName, floors: Option<Vec<i64>>) {
        let mut known = self.0.lock();
        match floors {
            Some(floors) => drop(known.insert(queue.clone(), floors)),
            None => drop(known.remove(queue)),
        }
    }
}

/// What the server answered.
#[derive(Default)]
struct Looked {
    claimed: Claimed,
    /// Its clock.
    us: i64,
    floors: Option<Vec<i64>>,
}

/// How jobs are given back whose claimer is gone, the attempt uncharged.
fn return_them(queue: QueueName, jobs: Vec<ClaimedJob>) -> Option<GiveBack> {
    let release = |job: ClaimedJob| Settlement {
        claim: ClaimRef { queue: queue.clone(), id: job.id, token: job.token },
        action: SettleAction::Release { delay: Duration::ZERO },
    };
    let releases: Arc<[_]> = jobs.into_iter().map(release).collect();
    if releases.is_empty() {
        return None;
    }
    Some(Box::new(move |mut sql| {
        let releases = releases.clone();
        // Those that are lost by now are somebody else's.
        Box::pin(async move { settle_jobs(&mut sql, &releases, true).await.map(drop) })
    }))
}

pub(super) async fn claim_jobs(
    open: &Arc<Open>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
) -> Result<Claimed> {
    if max == 0 {
        open.usable()?;
        return Ok(Claimed::default());
    }
    let topic = Topic::Queue(queue.clone());
    let last_wake = open.topics.lock().last_wake();
    let (wanted, worker, returned) = (queue.clone(), worker.clone(), queue.clone());
    let floors = open.floors.of(queue);
    let Looked { claimed, us, floors } = open
        .acquire(
            move |mut sql| {
                let (wanted, worker, floors) = (wanted.clone(), worker.clone(), floors.clone());
                Box::pin(async move { claim(&mut sql, &wanted, &worker, max, floors).await })
            },
            |answer: Looked| return_them(returned, answer.claimed.jobs),
        )
        .await?;
    open.clock.learn(us);
    open.floors.learn(queue, floors);
    if claimed.jobs.is_empty() {
        return Ok(claimed);
    }
    let mut topics = open.topics.lock();
    topics.looked(&topic, last_wake);
    if claimed.jobs.len() == max || claimed.more {
        topics.wake(&topic);
    } else {
        drop(topics);
        open.wake_soon(topic);
    }
    Ok(claimed)
}

async fn claim(
    sql: &mut Sql<'_>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
    floors: Option<Vec<i64>>,
) -> Outcome<Looked> {
    let statement = sql
        .query(CLAIM)
        .bind(queue.to_string())
        .bind(worker.to_string())
        .bind(sql::extent(max))
        .bind(floors);
    let mut answer = Looked::default();
    let claimed = &mut answer.claimed;
    for row in sql.all(statement).await? {
        match row.try_get::<Option<i64>, _>(0)? {
            Some(id) => claimed.jobs.push(job(&row, id)?),
            None => {
                answer.us = row.try_get(9)?;
                claimed.next_due = row.try_get::<Option<i64>, _>(10)?.map(Timestamp::from_millis);
                claimed.blocked = row.try_get(11)?;
                claimed.more = row.try_get(12)?;
                answer.floors = row.try_get(13)?;
            }
        }
    }
    Ok(answer)
}

fn attempts(row: &PgRow, column: usize) -> sqlx::Result<u32> {
    Ok(u32::try_from(row.try_get::<i64, _>(column)?).unwrap_or(u32::MAX))
}

fn job(row: &PgRow, id: i64) -> sqlx::Result<ClaimedJob> {
    let visibility: i64 = row.try_get(4)?;
    Ok(ClaimedJob {
        id: JobId::stored(id),
        token: ClaimToken::stored(row.try_get(1)?),
        attempt: attempts(row, 2)?,
        max_attempts: attempts(row, 3)?,
        payload: sql::payload(row, 8)?,
        headers: sql::headers(row, 7)?,
        enqueued_at: Timestamp::from_millis(row.try_get(5)?),
        visibility_timeout: Lease::saturating(Duration::from_millis(visibility.unsigned_abs())),
        deadline: Timestamp::from_millis(row.try_get(6)?),
    })
}

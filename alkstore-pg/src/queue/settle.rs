//! Settlements.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    BoxFuture, Error, Result, SettleAction, Settled, Settlement, Timestamp, ceil_millis,
};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::clock::pause;
use crate::error::{Failure, Outcome};
use crate::gather;
use crate::sql::Sql;
use crate::store::Open;

const SETTLE: &str = "SELECT outcome, at FROM {s}.settle_jobs($1, $2, $3, $4, $5, $6, $7)";

/// Acks, as most settlements are.
const ACK: &str = "SELECT acked, locked FROM {s}.ack_jobs($1, $2, $3)";

/// How long to wait before a settlement is tried again whose job somebody has locked. Mostly that
/// is a claim which met the job on its way, and ends with its commit.
const AGAIN: [Duration; 3] = [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(3)];

/// What became of one settlement.
pub(crate) type Answer = Option<Result<Settled>>;

fn action(action: &SettleAction) -> (i16, Option<&str>, Option<i64>) {
    match action {
        SettleAction::Ack => (0, None, None),
        SettleAction::Retry { error, delay } => (1, Some(error.as_str()), delay.map(ceil_millis)),
        SettleAction::Fail { error } => (2, Some(error.as_str()), None),
        SettleAction::Release { delay } => (3, None, Some(ceil_millis(*delay))),
        SettleAction::Heartbeat { extend } => (4, None, Some(extend.as_millis())),
    }
}

fn answer(item: &Settlement, row: &PgRow) -> Outcome<Answer> {
    let at = || -> Outcome<Timestamp> { Ok(Timestamp::from_millis(row.try_get(1)?)) };
    let settled = match row.try_get::<i16, _>(0)? {
        0 => return Ok(Some(Err(lost(item)))),
        1 => Settled::Gone,
        2 => Settled::Again(at()?),
        3 => Settled::Dead,
        4 => Settled::Held(at()?),
        _ => return Ok(None),
    };
    Ok(Some(Ok(settled)))
}

/// The ids, queues and tokens of claims.
fn claims(items: &[Settlement]) -> (Vec<i64>, Vec<&str>, Vec<i64>) {
    let ids = items.iter().map(|item| item.claim.id.get());
    let queues = items.iter().map(|item| item.claim.queue.as_str());
    let tokens = items.iter().map(|item| item.claim.token.get());
    (ids.collect(), queues.collect(), tokens.collect())
}

async fn ack_jobs(sql: &mut Sql<'_>, items: &[Settlement]) -> Outcome<Vec<Answer>> {
    let (ids, queues, tokens) = claims(items);
    let statement = sql.query(ACK).bind(ids).bind(queues).bind(tokens);
    let row = sql.one(statement).await?;
    let places = |column| -> sqlx::Result<HashSet<i64>> {
        Ok(row.try_get::<Option<Vec<i64>>, _>(column)?.into_iter().flatten().collect())
    };
    let (acked, locked) = (places(0)?, places(1)?);
    let mut jobs = HashSet::new();
    let answer = |(place, item): (i64, &Settlement)| {
        // Of two acks of a claim the first one is it.
        if acked.contains(&place) && jobs.insert(item.claim.id) {
            return Some(Ok(Settled::Gone));
        }
        (!locked.contains(&place)).then(|| Err(lost(item)))
    };
    Ok((1..).zip(items).map(answer).collect())
}

fn lost(item: &Settlement) -> Error {
    Error::ClaimLost { queue: item.claim.queue.to_string(), id: item.claim.id }
}

/// Settles claims, each for itself. Where it doesn't wait, those that somebody has locked have no
/// answer.
pub(super) async fn settle_jobs(
    sql: &mut Sql<'_>,
    items: &[Settlement],
    wait: bool,
) -> Outcome<Vec<Answer>> {
    if !wait && items.iter().all(|item| matches!(item.action, SettleAction::Ack)) {
        return ack_jobs(sql, items).await;
    }
    let (ids, queues, tokens) = claims(items);
    let (mut actions, mut errors, mut millis) = (Vec::new(), Vec::new(), Vec::new());
    for Settlement { action: asked, .. } in items {
        let (action, error, ms) = action(asked);
        actions.push(action);
        errors.push(error.map(str::to_owned));
        millis.push(ms);
    }
    let statement = sql
        .query(SETTLE)
        .bind(ids)
        .bind(queues)
        .bind(tokens)
        .bind(actions)
        .bind(errors)
        .bind(millis)
        .bind(wait);
    let rows = sql.all(statement).await?;
    if rows.len() != items.len() {
        return Err(wrong_count());
    }
    items.iter().zip(&rows).map(|(item, row)| answer(item, row)).collect()
}

fn wrong_count() -> Failure {
    Error::engine("the server answered a batch of settlements with another number of results")
        .into()
}

/// Settles one claim; what holds it is waited for.
pub(crate) async fn settle_job(sql: &mut Sql<'_>, item: &Settlement) -> Outcome<Settled> {
    let mut answers = settle_jobs(sql, std::slice::from_ref(item), true).await?;
    match answers.pop().flatten() {
        Some(answer) => Ok(answer?),
        None => Err(wrong_count()),
    }
}

impl gather::Row for Settlement {
    fn bytes(&self) -> usize {
        512
    }
}

async fn settle(open: &Arc<Open>, items: Arc<[Settlement]>, wait: bool) -> Result<Vec<Answer>> {
    open.write(move |mut sql| {
        let items = items.clone();
        Box::pin(async move { settle_jobs(&mut sql, &items, wait).await })
    })
    .await
}

pub(crate) fn write(
    open: Arc<Open>,
    items: Arc<[Settlement]>,
) -> BoxFuture<'static, Result<Vec<Answer>>> {
    Box::pin(async move { settle(&open, items, false).await })
}

/// A call of its own: acks go together with others.
pub(super) async fn settle_alone(
    open: &Arc<Open>,
    items: Vec<Settlement>,
) -> Result<Vec<Result<Settled>>> {
    if items.is_empty() {
        open.usable()?;
        return Ok(Vec::new());
    }
    let are_acks = items.iter().all(|item| matches!(item.action, SettleAction::Ack));
    let mut settled: Vec<(Settlement, Answer)> =
        items.into_iter().map(|item| (item, None)).collect();
    for wait in AGAIN {
        if !wait.is_zero() {
            pause(wait).await;
        }
        let mut open_ones: Vec<_> = settled.iter_mut().filter(|(_, it)| it.is_none()).collect();
        let asked = open_ones.iter().map(|(item, _)| item.clone()).collect();
        let answers = if are_acks {
            open.acks.call(open, asked).await
        } else {
            settle(open, asked.into(), false).await
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) if wait.is_zero() => return Err(error),
            // What was settled before is; the others fail each for itself.
            Err(_) => break,
        };
        open_ones.iter_mut().zip(answers).for_each(|(it, answer)| it.1 = answer);
        if settled.iter().all(|(_, answer)| answer.is_some()) {
            break;
        }
    }
    // What is still locked is settled alone, so that one lock holds up nobody else, and all at
    // once.
    let alone = settled.into_iter().map(|(item, answer)| async {
        match answer {
            Some(answer) => answer,
            None => {
                settle(open, [item].into(), true).await?.pop().flatten().unwrap_or_else(unanswered)
            }
        }
    });
    Ok(futures_util::future::join_all(alone).await)
}

fn unanswered() -> Result<Settled> {
    Err(Error::engine("the server gave no answer to a settlement"))
}

//! Settlements.

use std::sync::Arc;

use alkstore_core::{
    BoxFuture, Error, Result, SettleAction, Settled, Settlement, Timestamp, ceil_millis,
};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{Failure, Outcome};
use crate::gather;
use crate::sql::Sql;
use crate::store::Open;

const SETTLE: &str = "SELECT outcome, at FROM {s}.settle_jobs($1, $2, $3, $4, $5, $6, $7)";

/// One ack, as most settlements are. It finds no row where the claim is lost or somebody has the
/// job locked.
const ACK: &str = "DELETE FROM {s}.jobs d WHERE d.id = (
        SELECT j.id FROM {s}.jobs j
        WHERE j.id = $1 AND j.queue = $2 AND j.token = $3 AND j.state IN (2, 3)
            AND j.at > {s}.now_ms()
        FOR UPDATE SKIP LOCKED)
    RETURNING 1";

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
        0 => {
            let (queue, id) = (item.claim.queue.to_string(), item.claim.id);
            return Ok(Some(Err(Error::ClaimLost { queue, id })));
        }
        1 => Settled::Gone,
        2 => Settled::Again(at()?),
        3 => Settled::Dead,
        4 => Settled::Held(at()?),
        _ => return Ok(None),
    };
    Ok(Some(Ok(settled)))
}

/// Settles claims, each for itself. Where it doesn't wait, those that somebody has locked have no
/// answer, and one that is alone has none either where its claim is lost.
pub(super) async fn settle_jobs(
    sql: &mut Sql<'_>,
    items: &[Settlement],
    wait: bool,
) -> Outcome<Vec<Answer>> {
    if let ([Settlement { claim, action: SettleAction::Ack }], false) = (items, wait) {
        let statement =
            sql.query(ACK).bind(claim.id.get()).bind(claim.queue.as_str()).bind(claim.token.get());
        let acked = sql.first(statement).await?.is_some();
        return Ok(vec![acked.then_some(Ok(Settled::Gone))]);
    }
    let (mut ids, mut queues, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    let (mut actions, mut errors, mut millis) = (Vec::new(), Vec::new(), Vec::new());
    for Settlement { claim, action: asked } in items {
        let (action, error, ms) = action(asked);
        ids.push(claim.id.get());
        queues.push(claim.queue.to_string());
        tokens.push(claim.token.get());
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
    let answers = if items.iter().all(|item| matches!(item.action, SettleAction::Ack)) {
        open.acks.call(open, items.clone()).await?
    } else {
        settle(open, items.clone().into(), false).await?
    };
    // What somebody has locked is settled alone, so that one lock holds up nobody else, and all
    // at once.
    let waiting = items.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
    let alone = waiting.map(|(item, _)| {
        let item: Arc<[Settlement]> = Arc::from([item.clone()]);
        async move { settle(open, item, true).await?.pop().flatten().unwrap_or_else(unanswered) }
    });
    let mut late = futures_util::future::join_all(alone).await.into_iter();
    let answer = |answer: Answer| answer.or_else(|| late.next()).unwrap_or_else(unanswered);
    Ok(answers.into_iter().map(answer).collect())
}

fn unanswered() -> Result<Settled> {
    Err(Error::engine("the server gave no answer to a settlement"))
}

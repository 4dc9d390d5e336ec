//! Settlements, and cancelling.

use std::collections::btree_map::Entry;
use std::time::Duration;

use alkstore_core::{
    Error, JobId, QueueName, Result, SettleAction, Settled, Settlement, ceil_millis,
};

use super::row::{Death, Row, Standing};
use super::{Phase, wake};
use crate::clock::Reading;
use crate::state::{Blocked, View};
use crate::store::Open;

/// The longest backoff between two attempts, in milliseconds.
const LONGEST_BACKOFF: i64 = 60 * 60 * 1_000;

/// Settles one claim: at once, or staged and pinned inside a transaction.
pub(crate) fn settle_job(
    view: &mut View<'_>,
    item: &Settlement,
) -> Result<Result<Settled>, Blocked> {
    let claim = &item.claim;
    let lost = || Error::ClaimLost { queue: claim.queue.to_string(), id: claim.id };
    let own = view.tx.as_ref().map(|staged| staged.id);
    let Some(state) = view.state.queues.get_mut(&claim.queue) else { return Ok(Err(lost())) };
    let Entry::Occupied(row) = state.rows.entry(claim.id) else { return Ok(Err(lost())) };
    let stored = row.get();
    let held = stored.token == claim.token && stored.standing(view.time.now) == Standing::Claimed;
    match stored.pin {
        _ if !held => return Ok(Err(lost())),
        // Settled in this very transaction.
        Some(pin) if Some(pin) == own => return Ok(Err(lost())),
        Some(_) => return Err(Blocked),
        None => {}
    }
    let Some(staged) = &mut view.tx else {
        let settled = match &item.action {
            SettleAction::Ack => {
                let row = row.remove();
                state.sets.remove(&row);
                view.wakes.taken = Some(row);
                Some(Settled::Gone)
            }
            action => state.change(claim.id, |row| act(row, action, view.time)),
        };
        let ready = matches!(settled, Some(Settled::Again(at)) if at <= view.time.now);
        wake(view, &claim.queue, usize::from(ready));
        return Ok(settled.ok_or_else(lost));
    };
    let settled = match &item.action {
        SettleAction::Ack => {
            staged.remove(claim.queue.clone(), claim.id);
            Some(Settled::Gone)
        }
        action => state.row(claim.id).cloned().map(|mut row| {
            let settled = act(&mut row, action, view.time);
            staged.put(claim.queue.clone(), Box::new(row));
            settled
        }),
    };
    state.change(claim.id, |row| row.pin = Some(staged.id));
    Ok(settled.ok_or_else(lost))
}

/// What a settlement other than an ack makes of a row.
fn act(row: &mut Row, action: &SettleAction, time: Reading) -> Settled {
    let again = |row: &mut Row, delay| {
        let at = time.after(delay);
        row.pend(at, time.now);
        Settled::Again(at)
    };
    match action {
        SettleAction::Ack => Settled::Gone,
        SettleAction::Retry { error, delay } => {
            row.last_error = Some(error.as_str().to_owned());
            if row.is_last_attempt() {
                row.die(Death { at: time.now, reason: None });
                return Settled::Dead;
            }
            let delay = delay.unwrap_or_else(|| backoff(row.retry_base, row.attempt));
            again(row, delay)
        }
        SettleAction::Fail { error } => {
            row.last_error = Some(error.as_str().to_owned());
            row.die(Death { at: time.now, reason: None });
            Settled::Dead
        }
        SettleAction::Release { delay } => {
            row.attempt = row.attempt.saturating_sub(1);
            again(row, *delay)
        }
        SettleAction::Heartbeat { extend } => {
            let until = time.after(extend.as_duration());
            if let Phase::Claimed { deadline, .. } = &mut row.phase {
                *deadline = until;
            }
            Settled::Held(until)
        }
    }
}

/// Half of the step for sure, the other half by chance, so that what failed together doesn't
/// come back together.
fn backoff(base: Duration, attempt: u32) -> Duration {
    let factor = 1_i64.checked_shl(attempt.saturating_sub(1)).filter(|&factor| factor > 0);
    let step = ceil_millis(base).saturating_mul(factor.unwrap_or(i64::MAX)).min(LONGEST_BACKOFF);
    Duration::from_millis(fastrand::i64(step - step / 2..=step).unsigned_abs())
}

/// Settles a batch: what isn't blocked at once, each of the others as soon as it isn't. They wait
/// together, so that a batch waits no longer than one of its items would.
pub(super) async fn settle_jobs(
    open: &Open,
    items: Vec<Settlement>,
) -> Result<Vec<Result<Settled>>> {
    let mut begun = false;
    let mut results: Vec<_> = items.iter().map(|_| None).collect();
    let settling = open.act_unblocked(None, |view| {
        begun = true;
        let mut outcome = Ok(());
        for (item, result) in items.iter().zip(&mut results).filter(|(_, r)| r.is_none()) {
            match settle_job(view, item) {
                Ok(settled) => *result = Some(settled),
                Err(Blocked) => outcome = Err(Blocked),
            }
        }
        outcome
    });
    let message = match settling.await {
        Err(error) if !begun => return Err(error),
        Err(Error::Unavailable { message, .. }) => Some(message),
        _ => None,
    };
    let in_vain = || message.clone().map_or(Error::Closed, Error::unavailable);
    Ok(results.into_iter().map(|result| result.unwrap_or_else(|| Err(in_vain()))).collect())
}

pub(super) fn cancel_job(
    view: &mut View<'_>,
    queue: &QueueName,
    id: JobId,
) -> Result<bool, Blocked> {
    let Some(state) = view.state.queues.get_mut(queue) else { return Ok(false) };
    match state.row(id).map(|row| (row.standing(view.time.now), row.pin)) {
        Some((Standing::Pending { .. } | Standing::Claimed, None)) => Ok(state.take(id).is_some()),
        Some((Standing::Pending { .. } | Standing::Claimed, Some(_))) => Err(Blocked),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_an_hour_at_any_attempt() {
        let base = Duration::from_secs(5);
        for (attempt, step) in
            [(1, 5), (2, 10), (5, 80), (11, 3_600), (63, 3_600), (64, 3_600), (u32::MAX, 3_600)]
        {
            let delay = backoff(base, attempt);
            let step = Duration::from_secs(step);
            assert!(delay >= step / 2 && delay <= step, "attempt {attempt}: {delay:?}");
        }
        assert_eq!(backoff(Duration::ZERO, 7), Duration::ZERO);
        assert!(backoff(Duration::MAX, 1) >= Duration::from_secs(1_800));
    }
}

//! Settlements in batches: what handlers end with is collected while a batch is under way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{BoxFuture, Error, Result, SettleAction, Settled, Settlement};
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::claim::{Claim, Staged};
use super::report::{self, Ended};
use super::runtime::Runtime;
use super::time::Backoff;

/// How many are settled in one call.
const BATCH: usize = 512;

/// From how many unsettled jobs on nothing is claimed, and down to how many.
const CLOGGED: usize = 4 * BATCH;
const CLEAR: usize = BATCH;

/// How a handler ended, to be written.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) claim: Arc<Claim>,
    pub(super) action: SettleAction,
    pub(super) ended: Ended,
    pub(super) took: Duration,
    /// An earlier try may have taken effect.
    unknown: bool,
}

impl Pending {
    pub(super) fn new(
        claim: Arc<Claim>,
        action: SettleAction,
        ended: Ended,
        took: Duration,
    ) -> Self {
        Self { claim, action, ended, took, unknown: false }
    }
}

#[derive(Debug, Default)]
pub(super) struct Settler {
    waiting: Mutex<Vec<Pending>>,
    told: Notify,
    unsettled: AtomicUsize,
    closing: AtomicBool,
    emptied: CancellationToken,
}

impl Settler {
    /// Whether so much is unsettled now that nothing more should be claimed.
    pub(super) fn push(&self, pending: Pending) -> bool {
        let unsettled = self.unsettled.fetch_add(1, Ordering::SeqCst) + 1;
        let first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(pending);
            waiting.len() == 1
        };
        if first {
            self.told.notify_one();
        }
        unsettled >= CLOGGED
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// Nothing more is coming: [`run`] ends once everything is settled.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.told.notify_one();
    }

    /// Ends once it is closed and everything is settled.
    pub(super) async fn empty(&self) {
        self.emptied.cancelled().await;
    }

    fn take(&self) -> Vec<Pending> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() <= BATCH {
            return std::mem::take(&mut *waiting);
        }
        waiting.drain(..BATCH).collect()
    }
}

/// Settles until it is closed and everything is settled.
pub(super) async fn run(rt: Arc<Runtime>) -> Result<()> {
    let settler = &rt.settler;
    let (mut again, mut pause): (Vec<Pending>, Option<BoxFuture<'_, Result<()>>>) = (vec![], None);
    let mut backoff = Backoff::new();
    loop {
        // Those whose handler acked in a transaction may have to wait for its end: apart.
        let (staged, mut batch): (Vec<_>, Vec<_>) =
            settler.take().into_iter().partition(|pending| pending.claim.staged() == Staged::Open);
        for pending in staged {
            rt.spawn(&rt.services, "a settlement", settle_alone(rt.clone(), pending));
        }
        if batch.is_empty() && again.is_empty() {
            if settler.closing.load(Ordering::SeqCst) && settler.unsettled() == 0 {
                settler.emptied.cancel();
                return Ok(());
            }
            settler.told.notified().await;
            continue;
        }
        if !again.is_empty() {
            // However much else comes: what failed is tried again after its pause.
            let sleep = || -> BoxFuture<'_, _> { rt.store.sleep(backoff.next()) };
            let sleeping = pause.get_or_insert_with(sleep);
            let slept = if batch.is_empty() {
                tokio::select! {
                    biased;
                    slept = sleeping => Some(slept),
                    () = settler.told.notified() => None,
                }
            } else {
                sleeping.now_or_never()
            };
            if let Some(slept) = slept {
                slept?;
                pause = None;
                batch.append(&mut again);
            }
            if batch.is_empty() {
                continue;
            }
        }
        let (left, all) = settle(&rt, batch).await?;
        again.extend(left);
        if again.is_empty() {
            backoff.reset();
        }
        if all {
            // The store is at fault, not a single job.
            rt.store.sleep(backoff.next()).await?;
        }
    }
}

async fn settle_alone(rt: Arc<Runtime>, pending: Pending) -> Result<()> {
    let mut left = vec![pending];
    let mut backoff = Backoff::new();
    loop {
        (left, _) = settle(&rt, left).await?;
        if left.is_empty() {
            return Ok(());
        }
        rt.store.sleep(backoff.next()).await?;
    }
}

/// One call. Gives back what has to be tried again, and whether the call failed as a whole.
async fn settle(rt: &Runtime, batch: Vec<Pending>) -> Result<(Vec<Pending>, bool)> {
    let item = |pending: &Pending| Settlement {
        claim: pending.claim.reference.clone(),
        action: pending.action.clone(),
    };
    let items: Vec<_> = batch.iter().map(item).collect();
    let results = match rt.store.settle_jobs(items).await {
        Ok(results) if results.len() == batch.len() => results,
        Ok(_) => {
            let error = Error::engine("the engine answered a batch with another number of results");
            return Ok((failed(rt, batch, &error), true));
        }
        Err(Error::Closed) => return Err(Error::Closed),
        Err(error) => return Ok((failed(rt, batch, &error), true)),
    };
    rt.health.progress();
    let (mut left, mut settled) = (Vec::new(), Vec::with_capacity(batch.len()));
    for (pending, result) in batch.into_iter().zip(results) {
        match answer(&pending, result) {
            Answer::Settled(ended) => settled.push((pending, Some(ended))),
            Answer::Lost => settled.push((pending, None)),
            Answer::Closed => return Err(Error::Closed),
            Answer::Fault(error) => left.extend(failed(rt, vec![pending], &error)),
        }
    }
    rt.keeper.forget(settled.iter().map(|(pending, _)| &*pending.claim));
    done(rt, settled.len());
    for (pending, ended) in settled {
        let lane = &rt.lanes[pending.claim.lane];
        match ended {
            Some(ended) => report::settled(lane, &pending, ended),
            None => report::lost(lane, &pending.claim),
        }
    }
    Ok((left, false))
}

fn done(rt: &Runtime, count: usize) {
    let before = rt.settler.unsettled.fetch_sub(count, Ordering::SeqCst);
    if before - count <= CLEAR {
        rt.slots.clog(false);
    }
    if before == count && rt.settler.closing.load(Ordering::SeqCst) {
        rt.settler.told.notify_one();
    }
}

enum Answer {
    Settled(Ended),
    Lost,
    Closed,
    Fault(Error),
}

fn answer(pending: &Pending, result: Result<Settled>) -> Answer {
    match result {
        Ok(Settled::Dead) if pending.ended == Ended::Retried => Answer::Settled(Ended::Dead),
        Ok(_) => Answer::Settled(pending.ended),
        Err(Error::ClaimLost { .. }) => match pending.claim.staged() {
            Staged::Open | Staged::Committed => Answer::Settled(Ended::Tx),
            // The try whose outcome wasn't known is what lost the claim.
            Staged::No if pending.unknown && !pending.claim.remaining().is_zero() => {
                Answer::Settled(pending.ended)
            }
            Staged::No => Answer::Lost,
        },
        Err(Error::Closed) => Answer::Closed,
        Err(error) => Answer::Fault(error),
    }
}

/// What is worth another try after a fault: all whose claim still holds.
fn failed(rt: &Runtime, batch: Vec<Pending>, error: &Error) -> Vec<Pending> {
    rt.fault("settle", error);
    let unknown = matches!(error, Error::CommitUnknown { .. });
    let (held, lapsed): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|pending| !pending.claim.remaining().is_zero());
    rt.keeper.forget(lapsed.iter().map(|pending| &*pending.claim));
    done(rt, lapsed.len());
    for pending in lapsed {
        report::lost(&rt.lanes[pending.claim.lane], &pending.claim);
    }
    held.into_iter()
        .map(|pending| Pending { unknown: pending.unknown || unknown, ..pending })
        .collect()
}

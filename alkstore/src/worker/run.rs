//! Runs handlers.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alkstore_core::{ErrorText, Result, SettleAction};
use futures_util::FutureExt;
use tracing::Instrument;

use super::JobContext;
use super::claim::Staged;
use super::handler::Outcome;
use super::report::{self, Ended};
use super::runtime::Runtime;
use super::settle::Pending;
use super::slots::Waiting;
use super::time::now;

/// Runs a job in its slot, and then whatever takes the slot next.
pub(super) async fn run(rt: Arc<Runtime>, first: Waiting) -> Result<()> {
    let mut next = Some(first);
    while let Some(waiting) = next {
        let lane = waiting.claim.lane;
        let took = one(&rt, waiting).await;
        next = rt.slots.finished(lane, took);
        // Handlers that never wait would keep everything else from running.
        tokio::task::coop::consume_budget().await;
    }
    Ok(())
}

enum End {
    Outcome(Outcome),
    Lost,
    /// The worker has stopped waiting for it.
    Halted,
}

/// How long a job waited, by the engine's clock until it was claimed and by ours from then on.
fn waited(waiting: &Waiting, started: Instant) -> Duration {
    let claimed_at = waiting.job.deadline() - waiting.job.visibility_timeout();
    let before = claimed_at.duration_since(waiting.job.enqueued_at()).unwrap_or_default();
    before + started.saturating_duration_since(waiting.arrived)
}

/// Runs one handler to its end, and says how long that took.
async fn one(rt: &Arc<Runtime>, waiting: Waiting) -> Duration {
    let started = now();
    let (lane, waited) = (&rt.lanes[waiting.claim.lane], waited(&waiting, started));
    let Waiting { job, claim, handler, .. } = waiting;
    if job.attempt() == 1 {
        lane.meter.waited(waited);
    }
    let span = report::job_span(lane, &job, waited);
    let (store, stop) = (rt.store.clone(), rt.stop.clone());
    let context = JobContext { job, claim: claim.clone(), store, stop };
    let work = handler(context).instrument(span.clone());
    // The handler comes first: one that has ended is neither lost nor halted.
    let racing = async {
        tokio::select! {
            biased;
            outcome = rt.in_time(lane, work) => {
                End::Outcome(outcome.unwrap_or_else(|| Outcome::retry(lane.timed_out())))
            }
            () = claim.lost() => End::Lost,
            () = rt.halt.cancelled() => End::Halted,
        }
    };
    // Caught out here, so that a panic while a handler is dropped counts as well.
    let end = caught(racing).await.unwrap_or_else(|panic| End::Outcome(Outcome::retry(panic)));
    let took = started.elapsed();
    lane.meter.ran(took);
    let (action, ended) = match end {
        End::Lost => {
            report::ran(&span, "lost", took);
            return took;
        }
        End::Halted => (SettleAction::Release { delay: Duration::ZERO }, Ended::Released),
        End::Outcome(outcome) => action(outcome),
    };
    let (action, ended) = match claim.staged() {
        Staged::No => (action, ended),
        // What has committed can't be taken back.
        Staged::Committed => {
            report::ran(&span, Ended::Tx.name(), took);
            if let SettleAction::Retry { error, .. } | SettleAction::Fail { error } = &action {
                report::failed_after_commit(lane, &claim, error.as_str());
            }
            rt.keeper.forget(std::iter::once(&*claim));
            report::settled(lane, &Pending::new(claim, action, Ended::Tx, took), Ended::Tx);
            return took;
        }
        // If the transaction did commit, this finds the claim gone.
        Staged::Open if ended == Ended::Done => {
            let error = ErrorText::new(
                "the handler returned Ok, but the transaction that acked the job was not \
                 committed; commit it before returning",
            );
            (SettleAction::Retry { error, delay: None }, Ended::Retried)
        }
        Staged::Open => (action, ended),
    };
    report::ran(&span, ended.name(), took);
    rt.settle(Pending::new(claim, action, ended, took));
    took
}

fn action(outcome: Outcome) -> (SettleAction, Ended) {
    match outcome {
        Outcome::Done => (SettleAction::Ack, Ended::Done),
        Outcome::Retry { error, delay } => {
            (SettleAction::Retry { error: ErrorText::new(error), delay }, Ended::Retried)
        }
        Outcome::Discard { reason } => {
            (SettleAction::Fail { error: ErrorText::new(reason) }, Ended::Discarded)
        }
        Outcome::Snooze { delay } => (SettleAction::Release { delay }, Ended::Snoozed),
    }
}

/// What a future ends with, or the text of its panic.
pub(super) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    // What a handler shares with others is its own affair; nothing of ours is left half-done.
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| panic_text(&*panic))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of unknown cause");
    format!("the handler panicked: {text}")
}

//! What the worker tells of itself: spans and events of `tracing`, and metrics. Their names and
//! fields are documented in `docs/guide/observability.md`, and stay.

use std::time::Duration;

use alkstore_core::{Delivery, Error, Job, SettleAction};
use tracing::{Span, debug, error, field, info, info_span, warn};

use super::claim::Claim;
use super::meter::LaneMeter;
use super::runtime::Lane;
use super::settle::Pending;

/// How a job ended; the value of `outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Retried,
    /// Retried on the last attempt.
    Dead,
    Discarded,
    Snoozed,
    /// Given back because the worker stops or can't start it soon.
    Released,
    /// Acked by its handler, in a transaction.
    Tx,
}

impl Ended {
    #[cfg(feature = "metrics")]
    pub(super) const ALL: [Self; 7] = [
        Self::Done,
        Self::Retried,
        Self::Dead,
        Self::Discarded,
        Self::Snoozed,
        Self::Released,
        Self::Tx,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retried => "retry",
            Self::Dead => "dead",
            Self::Discarded => "discard",
            Self::Snoozed => "snooze",
            Self::Released => "release",
            Self::Tx => "tx",
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The span that a handler runs in.
pub(super) fn job_span(lane: &Lane, job: &Job, waited: Duration) -> Span {
    info_span!(
        target: "alkstore::worker",
        "job",
        queue = %lane.name,
        job_id = job.id().get(),
        attempt = job.attempt(),
        max_attempts = job.max_attempts(),
        wait_ms = millis(waited),
        run_ms = field::Empty,
        outcome = field::Empty,
    )
}

/// The span that a delivery of an outbox runs in.
pub(super) fn delivery_span(lane: &Lane, delivery: &Delivery) -> Span {
    info_span!(
        target: "alkstore::worker",
        "job",
        queue = %lane.name,
        job_id = delivery.id().get(),
        attempt = delivery.attempt(),
        max_attempts = delivery.max_attempts(),
        run_ms = field::Empty,
        outcome = field::Empty,
    )
}

pub(super) fn ran(span: &Span, outcome: &str, took: Duration) {
    if !span.is_disabled() {
        span.record("run_ms", millis(took));
        span.record("outcome", outcome);
    }
}

pub(super) fn settled(lane: &Lane, pending: &Pending, ended: Ended) {
    lane.meter.settled(ended);
    let (queue, job_id, attempt) =
        (&lane.name, pending.claim.reference.id.get(), pending.claim.attempt);
    let (run_ms, outcome) = (millis(pending.took), ended.name());
    match &pending.action {
        SettleAction::Retry { error, .. } | SettleAction::Fail { error } if ended != Ended::Tx => {
            let error = error.as_str();
            warn!(
                target: "alkstore::worker",
                %queue, job_id, attempt, outcome, run_ms, error, "job failed"
            );
        }
        _ => debug!(
            target: "alkstore::worker",
            %queue, job_id, attempt, outcome, run_ms, "job settled"
        ),
    }
}

pub(super) fn delivered(
    lane: &Lane,
    delivery: &Delivery,
    took: Duration,
    failure: Option<&str>,
) -> Ended {
    let (queue, job_id, attempt) = (&lane.name, delivery.id().get(), delivery.attempt());
    let run_ms = millis(took);
    let Some(error) = failure else {
        lane.meter.settled(Ended::Done);
        let outcome = Ended::Done.name();
        debug!(
            target: "alkstore::worker",
            %queue, job_id, attempt, outcome, run_ms, "job settled"
        );
        return Ended::Done;
    };
    let last = attempt >= delivery.max_attempts();
    let ended = if last { Ended::Dead } else { Ended::Retried };
    lane.meter.settled(ended);
    let outcome = ended.name();
    warn!(
        target: "alkstore::worker",
        %queue, job_id, attempt, outcome, run_ms, error, "job failed"
    );
    ended
}

pub(super) fn lost(lane: &Lane, claim: &Claim) {
    lost_job(lane, claim.reference.id.get(), claim.attempt);
}

pub(super) fn lost_job(lane: &Lane, job_id: i64, attempt: u32) {
    lane.meter.lost();
    let queue = &lane.name;
    warn!(target: "alkstore::worker", %queue, job_id, attempt, "claim lost");
}

/// A handler acked its job in a transaction that committed, and failed all the same.
pub(super) fn failed_after_commit(lane: &Lane, claim: &Claim, why: &str) {
    let (queue, job_id, attempt) = (&lane.name, claim.reference.id.get(), claim.attempt);
    warn!(
        target: "alkstore::worker",
        %queue, job_id, attempt, error = why, "job failed after its commit"
    );
}

pub(super) fn fault(operation: &'static str, error: &Error, in_a_row: u64) {
    super::meter::fault(operation);
    if in_a_row > 1 {
        warn!(target: "alkstore::worker", operation, %error, in_a_row, "store fault");
    } else {
        error!(target: "alkstore::worker", operation, %error, in_a_row, "store fault");
    }
}

pub(super) fn started(worker: &str, lanes: &[Lane], concurrency: usize) {
    let queues: Vec<_> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    info!(target: "alkstore::worker", worker, ?queues, concurrency, "worker started");
}

pub(super) fn stopping(worker: &str, running: usize, given_back: usize) {
    info!(target: "alkstore::worker", worker, running, given_back, "worker stopping");
}

pub(super) fn ended(worker: &str, error: Option<&Error>) {
    match error {
        None => info!(target: "alkstore::worker", worker, "worker stopped"),
        Some(error) => error!(target: "alkstore::worker", worker, %error, "worker ended"),
    }
}

pub(super) fn ticked(fired: u64) {
    super::meter::ticked(fired);
    debug!(target: "alkstore::worker", fired, "schedules ticked");
}

pub(super) fn maintained(done: &alkstore_core::Maintenance) {
    let (expired, buried, purged) = (done.expired, done.buried, done.purged);
    debug!(target: "alkstore::worker", expired, buried, purged, "store maintained");
}

pub(super) fn claimed(meter: &LaneMeter, count: usize) {
    if count > 0 {
        meter.claimed(count);
    }
}

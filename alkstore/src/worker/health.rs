//! How a worker is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use alkstore_core::Error;

use super::time::{now, wall};

/// Where a worker stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerState {
    /// It hasn't run yet.
    #[default]
    New,
    /// It claims and handles jobs.
    Running,
    /// It was told to stop and finishes what it holds.
    Stopping,
    /// Its run is over.
    Ended,
}

/// A call of the store that failed. The worker tries again until it is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// When, by this host's clock.
    pub at: SystemTime,
    /// What the worker wanted: `claim`, `watch`, `settle`, `heartbeat`, `deliver`, `schedule`,
    /// `maintain`, `sample`.
    pub operation: &'static str,
    /// The error's text.
    pub error: String,
}

/// How a worker is, at the instant of the call.
///
/// A worker that is alive makes progress at least once a poll interval
/// ([`WorkerBuilder::poll_every`](super::WorkerBuilder::poll_every), with some jitter) while it
/// has free slots, and with every heartbeat, a third of the visibility timeout, while it hasn't.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Where it stands.
    pub state: WorkerState,
    /// Jobs and deliveries whose handlers run, and claims of outboxes that are under way.
    pub running: usize,
    /// Jobs that are claimed and wait for a slot.
    pub buffered: usize,
    /// Jobs whose handlers ended and whose outcome isn't written yet.
    pub unsettled: usize,
    /// When the store last did what the worker asked for, by this host's clock.
    pub last_progress: Option<SystemTime>,
    /// How long ago that was, by the monotonic clock.
    pub since_progress: Option<Duration>,
    /// How many calls of the store have failed since the last progress.
    pub faults_since_progress: u64,
    /// The last call that failed.
    pub last_fault: Option<Fault>,
}

impl Health {
    /// Whether it runs or stops, and made progress within this time: for a liveness probe.
    #[must_use]
    pub fn is_alive(&self, within: Duration) -> bool {
        matches!(self.state, WorkerState::Running | WorkerState::Stopping)
            && self.since_progress.is_some_and(|since| since <= within)
    }
}

/// Where the parts of a worker write down how they are.
#[derive(Debug)]
pub(super) struct Pulse {
    origin: (Instant, SystemTime),
    /// Nanoseconds from the origin to the last progress, plus one; 0 before the first.
    progress: AtomicU64,
    faults: AtomicU64,
    rest: Mutex<(WorkerState, Option<Fault>)>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self {
            origin: (now(), wall()),
            progress: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            rest: Mutex::default(),
        }
    }

    pub(super) fn progress(&self) {
        let since = now().saturating_duration_since(self.origin.0).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX - 1) + 1;
        self.progress.store(since, Ordering::Relaxed);
        self.faults.store(0, Ordering::Relaxed);
    }

    /// Says how many there were in a row.
    pub(super) fn fault(&self, operation: &'static str, error: &Error) -> u64 {
        let fault = Fault { at: wall(), operation, error: error.to_string() };
        self.rest.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(fault);
        self.faults.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Moves on to a state, and says where it stood.
    pub(super) fn set(&self, state: WorkerState) -> WorkerState {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut rest.0, state)
    }

    pub(super) fn health(&self) -> Health {
        let (state, last_fault) = self.rest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let at = self.progress.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_nanos);
        Health {
            state,
            last_progress: at.map(|at| self.origin.1 + at),
            since_progress: at.map(|at| (now() - self.origin.0).saturating_sub(at)),
            faults_since_progress: self.faults.load(Ordering::Relaxed),
            last_fault,
            ..Health::default()
        }
    }
}

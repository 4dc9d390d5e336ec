//! A claim that the worker holds: what its handler, the heartbeats and the settlements share.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use alkstore_core::{ClaimRef, Job};
use tokio::sync::Notify;

use super::time::now;

/// Until when a claim holds, on the engine's clock and on ours.
#[derive(Debug, Clone, Copy)]
struct Held {
    deadline: SystemTime,
    asked: Instant,
}

/// What a handler did about its job in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staged {
    /// Nothing.
    No,
    /// It was acked in a transaction, whose end isn't known.
    Open,
    /// It was acked in a transaction that committed.
    Committed,
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) lane: usize,
    pub(super) reference: ClaimRef,
    pub(super) attempt: u32,
    /// The visibility timeout.
    pub(super) length: Duration,
    held: Mutex<Held>,
    staged: AtomicU8,
    lost: AtomicBool,
    told: Notify,
    /// Its handler has ended, and a settlement is on its way.
    settling: AtomicBool,
    /// A heartbeat is under way.
    pub(super) beating: AtomicBool,
}

impl Claim {
    pub(super) fn new(lane: usize, job: &Job, asked: Instant) -> Self {
        Self {
            lane,
            reference: job.claim_ref().clone(),
            attempt: job.attempt(),
            length: job.visibility_timeout(),
            held: Mutex::new(Held { deadline: job.deadline(), asked }),
            staged: AtomicU8::new(0),
            lost: AtomicBool::new(false),
            told: Notify::new(),
            settling: AtomicBool::new(false),
            beating: AtomicBool::new(false),
        }
    }

    fn held(&self) -> Held {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn deadline(&self) -> SystemTime {
        self.held().deadline
    }

    pub(super) fn remaining(&self) -> Duration {
        self.length.saturating_sub(now().saturating_duration_since(self.held().asked))
    }

    pub(super) fn extended(&self, deadline: SystemTime, asked: Instant) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Held { deadline, asked };
    }

    pub(super) fn staged(&self) -> Staged {
        match self.staged.load(Ordering::SeqCst) {
            0 => Staged::No,
            1 => Staged::Open,
            _ => Staged::Committed,
        }
    }

    pub(super) fn stage(&self, staged: Staged) {
        let number = match staged {
            Staged::No => 0,
            Staged::Open => 1,
            Staged::Committed => 2,
        };
        self.staged.store(number, Ordering::SeqCst);
    }

    pub(super) fn settling(&self) {
        self.settling.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling.load(Ordering::SeqCst)
    }

    /// Somebody else may have the job by now: its handler ends.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.told.notify_one();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Ends when the claim is lost; for the one task that handles it.
    pub(super) async fn lost(&self) {
        while !self.is_lost() {
            self.told.notified().await;
        }
    }
}

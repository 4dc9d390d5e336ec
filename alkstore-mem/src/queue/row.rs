//! A job's row: what is stored of it, and what the clock makes of that.

use std::time::Duration;

use alkstore_core::{
    ClaimToken, EXPIRED_ERROR, Headers, JobId, JobRecord, JobState, LAPSED_ERROR, Lease, LocalName,
    Payload, QueueName, Timestamp,
};

/// An open transaction.
pub(crate) type TxId = u64;

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: JobId,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
    pub(crate) priority: i32,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) ready_at: Timestamp,
    pub(crate) visibility: Lease,
    pub(crate) retry_base: Duration,
    pub(crate) dead_retention: Option<Duration>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) unique_key: Option<LocalName>,
    pub(crate) token: ClaimToken,
    pub(crate) last_error: Option<String>,
    pub(crate) phase: Phase,
    /// The open transaction that settled the claim.
    pub(crate) pin: Option<TxId>,
}

/// What is stored of where a job stands.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Claimable, and taken in.
    Ready,
    /// Claimable from `ready_at` on.
    Delayed,
    Claimed {
        worker: LocalName,
        deadline: Timestamp,
    },
    Dead {
        died_at: Timestamp,
    },
}

/// Where a job stands at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Pending { ready_at: Timestamp },
    Claimed,
    Dead(Death),
    Gone,
}

/// When and why a job died; no reason where it was told one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) at: Timestamp,
    pub(crate) reason: Option<&'static str>,
}

impl Row {
    pub(crate) fn is_last_attempt(&self) -> bool {
        self.attempt >= self.max_attempts
    }

    /// When a dead row's retention is over.
    pub(crate) fn gone_at(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Dead { died_at } => self.gone_after(died_at),
            _ => None,
        }
    }

    fn gone_after(&self, died_at: Timestamp) -> Option<Timestamp> {
        self.dead_retention.map(|retention| died_at.plus(retention))
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    pub(crate) fn standing(&self, now: Timestamp) -> Standing {
        let death = match &self.phase {
            Phase::Dead { died_at } => Death { at: *died_at, reason: None },
            Phase::Claimed { deadline, .. } if now < *deadline => return Standing::Claimed,
            Phase::Claimed { deadline, .. } if self.is_last_attempt() => {
                Death { at: *deadline, reason: Some(LAPSED_ERROR) }
            }
            phase => match self.expires_at {
                Some(at) if at <= now => Death { at, reason: Some(EXPIRED_ERROR) },
                _ => {
                    let ready_at = match phase {
                        Phase::Claimed { deadline, .. } => *deadline,
                        _ => self.ready_at,
                    };
                    return Standing::Pending { ready_at };
                }
            },
        };
        match self.gone_after(death.at) {
            Some(gone_at) if gone_at <= now => Standing::Gone,
            _ => Standing::Dead(death),
        }
    }

    /// When it last became claimable, or will: at its claim's deadline too, unless it has expired
    /// by then.
    pub(crate) fn last_ready_at(&self, now: Timestamp) -> Timestamp {
        match self.phase {
            Phase::Claimed { deadline, .. }
                if deadline <= now && !self.is_last_attempt() && !self.is_expired(deadline) =>
            {
                deadline
            }
            _ => self.ready_at,
        }
    }

    pub(crate) fn die(&mut self, death: Death) {
        self.ready_at = self.last_ready_at(death.at);
        self.phase = Phase::Dead { died_at: death.at };
        if let Some(reason) = death.reason {
            self.last_error = Some(reason.to_owned());
        }
    }

    /// Claimable from an instant on.
    pub(crate) fn pend(&mut self, ready_at: Timestamp, now: Timestamp) {
        self.ready_at = ready_at;
        self.phase = if ready_at <= now { Phase::Ready } else { Phase::Delayed };
    }

    /// The job as a reader sees it; nothing where it is gone.
    pub(crate) fn record(&self, queue: &QueueName, now: Timestamp) -> Option<JobRecord> {
        let standing = self.standing(now);
        let mut record =
            JobRecord::new(self.id, queue.as_str(), self.payload.clone(), self.enqueued_at);
        record.headers = self.headers.clone();
        record.priority = self.priority;
        record.attempt = self.attempt;
        record.max_attempts = self.max_attempts;
        record.ready_at = self.last_ready_at(now).into();
        record.visibility_timeout = self.visibility.as_duration();
        record.retry_base = self.retry_base;
        record.dead_retention = self.dead_retention;
        record.expires_at = self.expires_at.map(Into::into);
        record.unique_key = self.unique_key.as_ref().map(ToString::to_string);
        record.last_error = self.last_error.clone();
        match (standing, &self.phase) {
            (Standing::Gone, _) => return None,
            (Standing::Pending { .. }, _) => {}
            (Standing::Claimed, Phase::Claimed { worker, deadline }) => {
                record.state = JobState::Claimed;
                record.worker_id = Some(worker.to_string());
                record.deadline = Some((*deadline).into());
            }
            (Standing::Claimed, _) => {}
            (Standing::Dead(death), _) => {
                record.state = JobState::Dead;
                record.died_at = Some(death.at.into());
                if let Some(reason) = death.reason {
                    record.last_error = Some(reason.to_owned());
                }
            }
        }
        Some(record)
    }
}

//! What is read of a queue: its jobs, their numbers, and which of them are meant.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::JobId;
use crate::macros::setters;
use crate::payload::{Headers, Payload};
use crate::time::Timestamp;

/// How many records [`JobFilter`] returns where it doesn't say.
pub const DEFAULT_PAGE: usize = 100;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// Waits for a claim, or for the instant at which it becomes claimable.
    Pending,
    /// Held by a claim whose deadline hasn't passed.
    Claimed,
    /// A dead letter.
    Dead,
}

/// A job as the store knows it, at the instant of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRecord {
    /// The job's id.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// Where it stands.
    pub state: JobState,
    /// Its payload.
    pub payload: Payload,
    /// Its headers.
    pub headers: Headers,
    /// Higher first.
    pub priority: i32,
    /// How many attempts were counted.
    pub attempt: u32,
    /// How many it may have.
    pub max_attempts: u32,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When it last became, or becomes, claimable.
    pub ready_at: SystemTime,
    /// Its stamp: how long a claim holds.
    pub visibility_timeout: Duration,
    /// Its stamp: the first step of the backoff.
    pub retry_base: Duration,
    /// Its stamp: how long it is kept when dead.
    pub dead_retention: Option<Duration>,
    /// From when on it isn't handed out.
    pub expires_at: Option<SystemTime>,
    /// Its unique key.
    pub unique_key: Option<String>,
    /// Who holds it, while claimed.
    pub worker_id: Option<String>,
    /// Until when, while claimed.
    pub deadline: Option<SystemTime>,
    /// What the last retry or failure said, or why it died.
    pub last_error: Option<String>,
    /// When it died.
    pub died_at: Option<SystemTime>,
}

impl JobRecord {
    /// For engines: a pending job that was never claimed; the other fields are set on it.
    #[must_use]
    pub fn new(id: JobId, queue: impl Into<String>, payload: Payload, at: Timestamp) -> Self {
        Self {
            id,
            queue: queue.into(),
            state: JobState::Pending,
            payload,
            headers: Headers::default(),
            priority: 0,
            attempt: 0,
            max_attempts: 1,
            enqueued_at: at.into(),
            ready_at: at.into(),
            visibility_timeout: Duration::ZERO,
            retry_base: Duration::ZERO,
            dead_retention: None,
            expires_at: None,
            unique_key: None,
            worker_id: None,
            deadline: None,
            last_error: None,
            died_at: None,
        }
    }
}

/// Which jobs [`Queue::jobs`](crate::Queue::jobs) returns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobFilter {
    /// Only jobs in this state. Default: all.
    pub state: Option<JobState>,
    /// Only jobs with a larger id: the last one of the page before. Default: from the first.
    pub after: Option<JobId>,
    /// At most this many. Default: 100.
    pub limit: usize,
}

impl Default for JobFilter {
    fn default() -> Self {
        Self { state: None, after: None, limit: DEFAULT_PAGE }
    }
}

setters!(JobFilter {
    /// Only jobs in this state.
    state: JobState => Some(state);
    /// Only jobs with a larger id: the last one of the page before.
    after: JobId => Some(after);
    /// At most this many.
    limit: usize => limit;
});

/// What a queue holds, at the instant of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue's name.
    pub name: String,
    /// Jobs that a claim would find.
    pub ready: u64,
    /// Jobs that fall due later.
    pub delayed: u64,
    /// Jobs held by a claim.
    pub claimed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Whether claims find nothing.
    pub paused: bool,
    /// Since when the job that has waited longest could be claimed.
    pub oldest_ready_at: Option<SystemTime>,
}

impl QueueStats {
    /// For engines: the stats of a queue without jobs.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ready: 0,
            delayed: 0,
            claimed: 0,
            dead: 0,
            paused: false,
            oldest_ready_at: None,
        }
    }
}

/// Which dead jobs an operation takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadSelection {
    /// All of the queue.
    All,
    /// Those of these that are dead jobs of the queue.
    Ids(Vec<JobId>),
}

impl From<JobId> for DeadSelection {
    fn from(id: JobId) -> Self {
        Self::Ids(vec![id])
    }
}

impl From<Vec<JobId>> for DeadSelection {
    fn from(ids: Vec<JobId>) -> Self {
        Self::Ids(ids)
    }
}

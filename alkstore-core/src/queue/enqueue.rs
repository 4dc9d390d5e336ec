//! What is enqueued: a queue's options, a job's, and both once they are checked.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::macros::setters;
use crate::name::LocalName;
use crate::payload::{Headers, IntoPayload, Payload};
use crate::time::{Lease, Timestamp, whole_millis};

/// What a queue's jobs are stamped with at their enqueue; later changes touch later jobs only.
///
/// An option that isn't set takes the default that goes with the queue's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOpts {
    /// How long a claim holds without a heartbeat, 1 ms to 10 years. Default: 300 s (outbox 60 s).
    pub visibility_timeout: Option<Duration>,
    /// How often a job may be claimed, at least 1. Default: 3 (outbox 5).
    pub max_attempts: Option<u32>,
    /// The first step of the backoff between attempts. Default: 5 s.
    pub retry_base: Option<Duration>,
    /// How long a dead job is kept. Default: until it is purged.
    pub dead_retention: Option<Duration>,
}

setters!(QueueOpts {
    /// How long a claim holds without a heartbeat, 1 ms to 10 years.
    visibility_timeout: Duration => Some(visibility_timeout);
    /// How often a job may be claimed, at least 1.
    max_attempts: u32 => Some(max_attempts);
    /// The first step of the backoff between attempts.
    retry_base: Duration => Some(retry_base);
    /// How long a dead job is kept.
    dead_retention: Duration => Some(dead_retention);
});

impl QueueOpts {
    pub(super) fn checked(mut self) -> Result<Self> {
        check_stamps(self.visibility_timeout, self.max_attempts)?;
        self.visibility_timeout = self.visibility_timeout.map(whole_millis);
        self.retry_base = self.retry_base.map(whole_millis);
        self.dead_retention = self.dead_retention.map(whole_millis);
        Ok(self)
    }
}

pub(crate) fn check_stamps(visibility: Option<Duration>, attempts: Option<u32>) -> Result<()> {
    if let Some(timeout) = visibility {
        Lease::new("visibility_timeout", timeout)?;
    }
    if attempts == Some(0) {
        return Err(Error::invalid_argument("max_attempts", 0, "at least 1"));
    }
    Ok(())
}

/// What one job may say of itself.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use alkstore_core::EnqueueOpts;
///
/// let opts = EnqueueOpts::new().delay(Duration::from_secs(60)).priority(5).unique_key("user-7");
/// assert_eq!(opts.priority, 5);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnqueueOpts {
    /// Claimable after this long; wins over `run_at`. Default: at once.
    pub delay: Option<Duration>,
    /// Claimable from this instant; at once where it is past.
    pub run_at: Option<SystemTime>,
    /// Higher first. Default: 0.
    pub priority: i32,
    /// How often the job may be claimed, at least 1. Default: as the queue says.
    pub max_attempts: Option<u32>,
    /// Not handed out once this long has passed since the enqueue. Default: never expires.
    pub expires: Option<Duration>,
    /// While a live job of the queue has this key, the enqueue adds nothing.
    pub unique_key: Option<String>,
    /// Headers that travel with the job.
    pub headers: Headers,
}

setters!(EnqueueOpts {
    /// Claimable after this long; wins over `run_at`.
    delay: Duration => Some(delay);
    /// Claimable from this instant; at once where it is past.
    run_at: SystemTime => Some(run_at);
    /// Higher first.
    priority: i32 => priority;
    /// How often the job may be claimed, at least 1.
    max_attempts: u32 => Some(max_attempts);
    /// Not handed out once this long has passed since the enqueue.
    expires: Duration => Some(expires);
    /// While a live job of the queue has this key, the enqueue adds nothing.
    unique_key: impl Into<String> => Some(unique_key.into());
    /// Headers that travel with the job.
    headers: Headers => headers;
});

/// A job to be enqueued with others in one call.
///
/// # Examples
///
/// ```
/// use alkstore_core::{EnqueueOpts, NewJob};
///
/// let job = NewJob::new(&"hello")?.opts(EnqueueOpts::new().priority(1));
/// # let _ = job;
/// # Ok::<(), alkstore_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NewJob {
    payload: Payload,
    opts: EnqueueOpts,
}

impl NewJob {
    /// A job with this payload and no options.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] where the payload doesn't encode.
    pub fn new(payload: impl IntoPayload) -> Result<Self> {
        Ok(Self { payload: payload.into_payload()?, opts: EnqueueOpts::default() })
    }

    /// Sets the job's options; they are checked when it is enqueued.
    #[must_use]
    pub fn opts(mut self, opts: EnqueueOpts) -> Self {
        self.opts = opts;
        self
    }

    pub(super) fn check(self, payload_limit: usize) -> Result<JobSpec> {
        let Self { payload, opts } = self;
        let unique_key = opts.unique_key.as_deref().map(LocalName::new).transpose()?;
        check_stamps(None, opts.max_attempts)?;
        let due = match (opts.delay, opts.run_at) {
            (Some(delay), _) => Due::After(delay),
            (None, Some(at)) => Due::At(at.into()),
            (None, None) => Due::After(Duration::ZERO),
        };
        Ok(JobSpec {
            payload: payload.within(payload_limit)?,
            headers: opts.headers,
            priority: opts.priority,
            due,
            max_attempts: opts.max_attempts,
            expires: opts.expires,
            unique_key,
        })
    }
}

/// When a job becomes claimable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// This long after the enqueue.
    After(Duration),
    /// At this instant, or at the enqueue where it is past.
    At(Timestamp),
}

/// A checked job as an engine takes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobSpec {
    /// The payload, within the store's limit.
    pub payload: Payload,
    /// Its headers.
    pub headers: Headers,
    /// Higher first.
    pub priority: i32,
    /// When it becomes claimable.
    pub due: Due,
    /// At least 1; else the queue's.
    pub max_attempts: Option<u32>,
    /// Counts from the enqueue.
    pub expires: Option<Duration>,
    /// See [`EnqueueOpts::unique_key`].
    pub unique_key: Option<LocalName>,
}

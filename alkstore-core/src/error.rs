//! What can go wrong, and what a caller can do about it.

use std::error::Error as StdError;
use std::fmt;

use crate::name::quoted;
use crate::queue::JobId;

/// The result of every fallible operation; the error defaults to [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The driver's own error, kept as the [`source`](StdError::source) of ours.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// Everything an operation can fail with.
///
/// Whatever a caller could lose without noticing is an error here and never a `false`: a stale
/// [`ack`](crate::Job::ack) is [`Error::ClaimLost`]. No work is a value, not an error.
///
/// # Examples
///
/// ```
/// use alkstore_core::{Error, QueueName};
///
/// let error = QueueName::new(" emails").unwrap_err();
/// assert!(matches!(error, Error::InvalidName { .. }));
/// assert!(!error.is_retryable());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name is empty, too long, holds a control character or begins or ends with white space.
    #[error(
        "invalid name {}: {reason}; a name has 1 to 255 bytes, no control character and no white space at either end",
        quoted(name)
    )]
    InvalidName {
        /// The name as it was given.
        name: String,
        /// Which part of the rule it breaks.
        reason: &'static str,
    },
    /// A name begins with a prefix that belongs to the store itself.
    #[error(
        "reserved name {}: names that begin with {prefix:?} belong to the store; choose another",
        quoted(name)
    )]
    ReservedName {
        /// The name as it was given.
        name: String,
        /// The prefix that is taken.
        prefix: &'static str,
    },
    /// A schedule's text isn't of the form `@every <n><unit>`.
    #[error(
        "invalid schedule {}: {reason}; write \"@every <n><unit>\" with one space, n a whole number of at least 1, unit s, m, h or d, for instance \"@every 5m\", and at most 10 years",
        quoted(spec)
    )]
    InvalidSpec {
        /// The text as it was given.
        spec: String,
        /// Which part of the grammar it breaks.
        reason: &'static str,
    },
    /// An argument is outside what the operation takes; nothing was written.
    #[error("invalid argument {argument}: {}; expected {expected}", quoted(value))]
    InvalidArgument {
        /// The argument's name.
        argument: &'static str,
        /// The value as it was given.
        value: String,
        /// What the operation takes.
        expected: String,
    },
    /// A payload is larger than the store takes; nothing was written.
    #[error(
        "payload too large: {size} bytes, and this store takes at most {limit}; store the body elsewhere and send a reference, or open the store with a higher payload limit"
    )]
    PayloadTooLarge {
        /// The payload's size in bytes.
        size: usize,
        /// The store's limit in bytes.
        limit: usize,
    },
    /// A payload isn't JSON, is nested too deep, or isn't of the type asked for.
    #[error("payload can't be converted: {message}")]
    Codec {
        /// What is wrong with it, and where.
        message: String,
        /// The error of the JSON library.
        #[source]
        source: Option<BoxError>,
    },
    /// The claim behind a job handle holds no longer: settled, cancelled, lapsed or claimed anew.
    /// The job stayed as it was.
    #[error(
        "the claim on job {id} of queue {} is lost: it was settled or cancelled, or its visibility timeout ran out; don't settle it again",
        quoted(queue)
    )]
    ClaimLost {
        /// The job's queue.
        queue: String,
        /// The job.
        id: JobId,
    },
    /// The acquisition behind a lock handle holds no longer; whoever holds the lock now keeps it.
    #[error("lock {} is lost: it was released or its ttl ran out; acquire it again", quoted(name))]
    LockLost {
        /// The lock.
        name: String,
    },
    /// Another runner leads the scheduler, or this one lost its lease.
    #[error(
        "the scheduler's lease {} is held by another runner; use run_schedules_standby to wait for it",
        quoted(lock)
    )]
    LeadershipLost {
        /// The lock that stands for leadership.
        lock: String,
    },
    /// A listener's buffer overflowed, or its connection was lost: messages are missing here.
    #[error(
        "the listener fell behind and missed {} messages; receive faster, or open the store with a larger listener buffer",
        if *missed == 0 { "an unknown number of".to_owned() } else { missed.to_string() }
    )]
    Lagged {
        /// How many messages were dropped; 0 where that can't be known.
        missed: u64,
    },
    /// The store was closed.
    #[error("the store is closed; open it again")]
    Closed,
    /// The store can't do it right now, and **nothing was written**: try again later.
    #[error("the store is unavailable: {message}; nothing was written, try again")]
    Unavailable {
        /// What stood in the way.
        message: String,
        /// The driver's error.
        #[source]
        source: Option<BoxError>,
    },
    /// The connection or the disk failed after a write was sent and before its outcome was known.
    #[error("the outcome of a write is unknown: {message}; read back before you repeat it")]
    CommitUnknown {
        /// What failed.
        message: String,
        /// The driver's error.
        #[source]
        source: Option<BoxError>,
    },
    /// Everything else that an engine can fail with.
    #[error("the store failed: {message}")]
    Engine {
        /// What failed.
        message: String,
        /// The driver's error.
        #[source]
        source: Option<BoxError>,
    },
}

impl Error {
    /// Whether the same call may succeed later, nothing having been written: true for
    /// [`Error::Unavailable`] alone.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// An [`Error::InvalidArgument`].
    pub fn invalid_argument(
        argument: &'static str,
        value: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::InvalidArgument { argument, value: value.to_string(), expected: expected.into() }
    }

    /// An [`Error::Unavailable`] without a source.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), source: None }
    }

    /// An [`Error::CommitUnknown`] without a source.
    pub fn commit_unknown(message: impl Into<String>) -> Self {
        Self::CommitUnknown { message: message.into(), source: None }
    }

    /// An [`Error::Engine`] without a source.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::Engine { message: message.into(), source: None }
    }

    /// A loop that owns its work goes on after these: the fault may pass by itself.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::CommitUnknown { .. })
    }

    /// After these a transaction can only be rolled back.
    pub(crate) fn ends_transaction(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::CommitUnknown { .. } | Self::Engine { .. })
    }
}

impl From<serde_json::Error> for Error {
    fn from(source: serde_json::Error) -> Self {
        Self::Codec { message: source.to_string(), source: Some(Box::new(source)) }
    }
}

//! Handlers: what turns a job into an outcome.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{BoxFuture, ErrorText};
use serde::de::DeserializeOwned;

use super::JobContext;

/// What becomes of a job after its handler ran.
///
/// A handler may return an outcome, a `Result` with an outcome or with `()`, or `()`: `Ok(())` is
/// [`Outcome::Done`], an error is [`Outcome::Retry`] with its text (that of its causes included,
/// where the alternate form `{:#}` of the error writes them).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use alkstore::worker::Outcome;
///
/// fn answered(status: u16) -> Outcome {
///     match status {
///         200 => Outcome::Done,
///         429 => Outcome::snooze(Duration::from_secs(60)),
///         410 => Outcome::discard("the receiver is gone"),
///         status => Outcome::retry(format_args!("status {status}")),
///     }
/// }
/// # let _ = answered(200);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a handler returns it"]
pub enum Outcome {
    /// Done: the job is deleted.
    Done,
    /// Failed for now: the job is tried again, and is a dead letter after its last attempt.
    Retry {
        /// What went wrong.
        error: String,
        /// Tried again after this long; by the queue's backoff where none is given.
        delay: Option<Duration>,
    },
    /// Failed for good: the job becomes a dead letter.
    Discard {
        /// Why.
        reason: String,
    },
    /// Not now: the job is given back, its attempt uncharged.
    Snooze {
        /// Claimable after this long.
        delay: Duration,
    },
}

impl Outcome {
    /// [`Outcome::Retry`] by the queue's backoff.
    pub fn retry(error: impl Display) -> Self {
        Self::Retry { error: text(error), delay: None }
    }

    /// [`Outcome::Retry`] after this long.
    pub fn retry_after(error: impl Display, delay: Duration) -> Self {
        Self::Retry { error: text(error), delay: Some(delay) }
    }

    /// [`Outcome::Discard`] with this reason.
    pub fn discard(reason: impl Display) -> Self {
        Self::Discard { reason: text(reason) }
    }

    /// [`Outcome::Snooze`] for this long.
    pub fn snooze(delay: Duration) -> Self {
        Self::Snooze { delay }
    }
}

/// Bounded, and without a panic where the error fails to render.
pub(super) fn text(error: impl Display) -> String {
    ErrorText::new(format_args!("{error:#}")).into_string()
}

/// What a handler may return.
pub trait IntoOutcome {
    /// What becomes of the job.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl<T: IntoOutcome, E: Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => Outcome::retry(error),
        }
    }
}

/// What handles the jobs of a queue: an async closure or function of the payload, or of a
/// [`JobContext`] and the payload, whose types it names.
///
/// `M` only tells the two forms apart.
pub trait Handler<M>: Send + Sync + 'static {
    /// Handles one job. A payload that isn't of the handler's type is an [`Outcome::Retry`].
    ///
    /// # Cancel safety
    ///
    /// The worker drops it where it times out, its claim is lost, or the worker ends: what it did
    /// until then is done.
    fn handle(self: Arc<Self>, job: JobContext) -> BoxFuture<'static, Outcome>;
}

/// A handler without its type.
pub(super) type Handle = Arc<dyn Fn(JobContext) -> BoxFuture<'static, Outcome> + Send + Sync>;

pub(super) fn erased<M, H: Handler<M>>(handler: H) -> Handle {
    let handler = Arc::new(handler);
    Arc::new(move |job| handler.clone().handle(job))
}

impl<F, T, Fut, R> Handler<(T,)> for F
where
    F: Fn(T) -> Fut + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoOutcome,
{
    fn handle(self: Arc<Self>, job: JobContext) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            match job.payload().decode() {
                Ok(payload) => self(payload).await.into_outcome(),
                Err(error) => Outcome::retry(error),
            }
        })
    }
}

impl<F, T, Fut, R> Handler<(JobContext, T)> for F
where
    F: Fn(JobContext, T) -> Fut + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoOutcome,
{
    fn handle(self: Arc<Self>, job: JobContext) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            match job.payload().decode() {
                Ok(payload) => self(job, payload).await.into_outcome(),
                Err(error) => Outcome::retry(error),
            }
        })
    }
}

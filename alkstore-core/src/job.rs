//! A claimed job: the possession that settles it.

use std::fmt::{self, Display, Write};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::macros::ids;
use crate::name::QueueName;
use crate::payload::{Headers, Payload};
use crate::queue::JobId;
use crate::store::Store;
use crate::time::{Countdown, Lease, Timestamp};
use crate::tx::Tx;
use crate::wake::one_result;

/// How much of an error's text a job keeps: 16 KiB.
pub const MAX_ERROR_BYTES: usize = 16 * 1024;

/// Why a job is dead whose last claim ran out.
pub const LAPSED_ERROR: &str = "claim expired on the last attempt";

/// Why a job is dead that wasn't claimed in time.
pub const EXPIRED_ERROR: &str = "expired";

ids! {
    /// What tells one claim of a job from every other; it only grows.
    ClaimToken >= 0;
}

impl ClaimToken {
    /// Of a job that was never claimed.
    pub const NONE: Self = Self(0);
}

/// The very claim that a settlement holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    /// The job's queue.
    pub queue: QueueName,
    /// The job.
    pub id: JobId,
    /// The claim.
    pub token: ClaimToken,
}

/// A claimed job as an engine hands it out.
#[derive(Debug, Clone)]
pub struct ClaimedJob {
    /// The job.
    pub id: JobId,
    /// The claim.
    pub token: ClaimToken,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// How many it may have.
    pub max_attempts: u32,
    /// Its payload.
    pub payload: Payload,
    /// Its headers.
    pub headers: Headers,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// How long the claim holds.
    pub visibility_timeout: Lease,
    /// Until when, on the engine's clock.
    pub deadline: Timestamp,
}

/// What a settlement does.
#[derive(Debug, Clone)]
pub enum SettleAction {
    /// Done: delete the job.
    Ack,
    /// Again after a delay, by the backoff where none is given; dead on the last attempt.
    Retry {
        /// What went wrong.
        error: ErrorText,
        /// The delay.
        delay: Option<Duration>,
    },
    /// Dead.
    Fail {
        /// What went wrong.
        error: ErrorText,
    },
    /// Given back, the attempt uncharged.
    Release {
        /// Claimable after this long.
        delay: Duration,
    },
    /// Held for this long from now.
    Heartbeat {
        /// The new length.
        extend: Lease,
    },
}

/// A settlement of one claim.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The claim it holds for.
    pub claim: ClaimRef,
    /// What it does.
    pub action: SettleAction,
}

/// What a settlement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The job is gone.
    Gone,
    /// The job is pending and claimable from this instant.
    Again(Timestamp),
    /// The job is dead.
    Dead,
    /// The claim holds until this instant.
    Held(Timestamp),
}

/// What [`Job::retry`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// The job can be claimed again.
    Again {
        /// From when on.
        at: SystemTime,
    },
    /// It was the last attempt: the job is a dead letter.
    Dead,
}

/// An error's text as a job keeps it: without NUL, at most 16 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorText(String);

impl ErrorText {
    /// Renders an error. NUL becomes U+FFFD; what goes beyond 16 KiB is cut at a character. An
    /// error that fails to render keeps what it had written: no text makes a settlement fail.
    pub fn new(error: impl Display) -> Self {
        struct Bounded(String);

        impl Write for Bounded {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                for c in text.chars() {
                    let c = if c == '\0' { char::REPLACEMENT_CHARACTER } else { c };
                    if self.0.len() + c.len_utf8() > MAX_ERROR_BYTES {
                        return Err(fmt::Error);
                    }
                    self.0.push(c);
                }
                Ok(())
            }
        }

        let mut text = Bounded(String::new());
        // Full, or the error's own rendering failed: either way what is there is kept.
        let _ = write!(text, "{error}");
        Self(text.0)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, by value.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

/// A claimed job. It is yours until its deadline; settle it before.
///
/// Every settlement holds only for the very claim that made this handle: after another one took
/// effect, after the deadline, or after the job was cancelled it is [`Error::ClaimLost`], and the
/// job stays as it is. Dropping the handle does nothing: the claim lapses at its deadline, its
/// attempt charged.
///
/// # Examples
///
/// ```
/// use alkstore_core::{Retried, StoreExt};
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// # let store = MemStore::new();
/// # let queue = store.queue("emails")?;
/// # queue.enqueue(&7).await?;
/// let mut job = queue.next("worker-1").await?;
/// match job.retry("the server said 503", None).await? {
///     Retried::Again { at } => println!("again at {at:?}"),
///     Retried::Dead => println!("that was the last attempt"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a claimed job that is dropped stays claimed until its deadline; settle or release it"]
pub struct Job {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) claim: ClaimRef,
    pub(crate) claimed: ClaimedJob,
    pub(crate) countdown: Countdown,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("queue", &self.claim.queue)
            .field("id", &self.claim.id)
            .field("attempt", &self.claimed.attempt)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

impl Job {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        queue: QueueName,
        claimed: ClaimedJob,
        asked: Countdown,
    ) -> Self {
        let claim = ClaimRef { queue, id: claimed.id, token: claimed.token };
        let countdown = asked.with_length(claimed.visibility_timeout.as_duration());
        Self { store, claim, claimed, countdown }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.claimed.id
    }

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        self.claim.queue.as_str()
    }

    /// For runtimes: the claim that [`settle_jobs`](crate::QueueStore::settle_jobs) takes to
    /// settle this job together with others.
    #[must_use]
    pub fn claim_ref(&self) -> &ClaimRef {
        &self.claim
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.claimed.attempt
    }

    /// How many attempts it may have.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.claimed.max_attempts
    }

    /// Its payload.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.claimed.payload
    }

    /// Parses its payload.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] where it isn't a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        self.payload().decode()
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.claimed.headers
    }

    /// When it was enqueued.
    #[must_use]
    pub fn enqueued_at(&self) -> SystemTime {
        self.claimed.enqueued_at.into()
    }

    /// How long a claim of it holds without a heartbeat.
    #[must_use]
    pub fn visibility_timeout(&self) -> Duration {
        self.claimed.visibility_timeout.as_duration()
    }

    /// Until when the claim holds, on the engine's clock.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.claimed.deadline.into()
    }

    /// How long the claim still holds, by this process's monotonic clock, counted from before
    /// the claim was asked for: safe where the wall clock is wrong.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.countdown.remaining()
    }

    /// Holds the claim for `extend` from now on, whether that is longer or shorter than before,
    /// and returns the new deadline.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`]; [`Error::InvalidArgument`] outside 1 ms to 10 years; or what the
    /// engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the claim is extended or not; this handle may then show the older deadline.
    pub async fn heartbeat(&mut self, extend: Duration) -> Result<SystemTime> {
        let (deadline, countdown) = heartbeat(&*self.store, &self.claim, extend).await?;
        self.claimed.deadline = deadline;
        self.countdown = countdown;
        Ok(deadline.into())
    }

    /// Done: the job is deleted.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the job is settled or not.
    pub async fn ack(&mut self) -> Result<()> {
        self.settle(SettleAction::Ack).await.map(drop)
    }

    /// Failed for now: the job is claimable again after `delay`, or by the queue's backoff where
    /// none is given: between half and all of `retry_base · 2^(attempt−1)`, at most an hour.
    /// On the last attempt it becomes a dead letter with this error.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the job is settled or not.
    pub fn retry(
        &mut self,
        error: impl Display,
        delay: Option<Duration>,
    ) -> impl Future<Output = Result<Retried>> + Send {
        let action = SettleAction::Retry { error: ErrorText::new(error), delay };
        async move { retried(self.settle(action).await?) }
    }

    /// Failed for good: the job becomes a dead letter with this error.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the job is settled or not.
    pub fn fail(&mut self, error: impl Display) -> impl Future<Output = Result<()>> + Send {
        let action = SettleAction::Fail { error: ErrorText::new(error) };
        async move { self.settle(action).await.map(drop) }
    }

    /// Gives the job back, claimable after `delay`, the attempt uncharged.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the job is settled or not.
    pub async fn release(&mut self, delay: Duration) -> Result<()> {
        self.settle(SettleAction::Release { delay }).await.map(drop)
    }

    /// [`ack`](Self::ack) when the transaction commits. Once this returned `Ok`, nobody else can
    /// claim the job while the transaction lives; after a rollback the handle settles as before.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`]; [`Error::InvalidArgument`] where the transaction is of another
    /// store; or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the settlement is staged or not.
    pub async fn ack_tx(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        self.settle_tx(tx, SettleAction::Ack).await.map(drop)
    }

    /// [`retry`](Self::retry) when the transaction commits; see [`ack_tx`](Self::ack_tx).
    ///
    /// # Errors
    ///
    /// As [`ack_tx`](Self::ack_tx).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the settlement is staged or not.
    pub fn retry_tx(
        &mut self,
        tx: &mut Tx<'_>,
        error: impl Display,
        delay: Option<Duration>,
    ) -> impl Future<Output = Result<Retried>> + Send {
        let action = SettleAction::Retry { error: ErrorText::new(error), delay };
        async move { retried(self.settle_tx(tx, action).await?) }
    }

    /// [`fail`](Self::fail) when the transaction commits; see [`ack_tx`](Self::ack_tx).
    ///
    /// # Errors
    ///
    /// As [`ack_tx`](Self::ack_tx).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the settlement is staged or not.
    pub fn fail_tx(
        &mut self,
        tx: &mut Tx<'_>,
        error: impl Display,
    ) -> impl Future<Output = Result<()>> + Send {
        let action = SettleAction::Fail { error: ErrorText::new(error) };
        async move { self.settle_tx(tx, action).await.map(drop) }
    }

    pub(crate) async fn settle(&self, action: SettleAction) -> Result<Settled> {
        settle(&*self.store, &self.claim, action).await
    }

    async fn settle_tx(&self, tx: &mut Tx<'_>, action: SettleAction) -> Result<Settled> {
        let item = Settlement { claim: self.claim.clone(), action };
        tx.settle_job(self.store.store_id(), item).await
    }
}

async fn settle(store: &dyn Store, claim: &ClaimRef, action: SettleAction) -> Result<Settled> {
    let items = vec![Settlement { claim: claim.clone(), action }];
    one_result(store.settle_jobs(items).await?)?
}

/// The one way to extend a claim, for a job and for a delivery.
pub(crate) async fn heartbeat(
    store: &dyn Store,
    claim: &ClaimRef,
    extend: Duration,
) -> Result<(Timestamp, Countdown)> {
    let extend = Lease::new("extend", extend)?;
    let countdown = Countdown::start(extend.as_duration());
    match settle(store, claim, SettleAction::Heartbeat { extend }).await? {
        Settled::Held(deadline) => Ok((deadline, countdown)),
        other => Err(unexpected(other)),
    }
}

fn retried(settled: Settled) -> Result<Retried> {
    match settled {
        Settled::Again(at) => Ok(Retried::Again { at: at.into() }),
        Settled::Dead => Ok(Retried::Dead),
        other => Err(unexpected(other)),
    }
}

fn unexpected(settled: Settled) -> Error {
    Error::engine(format!("the engine answered a settlement with {settled:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_is_bounded_and_without_nul() {
        let text = ErrorText::new(format!("a\0{}", "ä".repeat(MAX_ERROR_BYTES)));
        assert!(text.as_str().starts_with("a\u{fffd}ä"));
        assert_eq!(text.as_str().len(), MAX_ERROR_BYTES);
    }

    #[test]
    fn error_text_keeps_what_a_failing_display_wrote() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("half")?;
                Err(fmt::Error)
            }
        }
        assert_eq!(ErrorText::new(Broken).as_str(), "half");
    }
}

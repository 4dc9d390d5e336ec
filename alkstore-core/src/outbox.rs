//! The transactional outbox: deliveries to the world outside, committed with the application's
//! own data. A helper over queues.

use std::any::Any;
use std::fmt::{self, Display};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::job::{ClaimRef, ClaimedJob, ErrorText, Job, SettleAction, heartbeat};
use crate::macros::setters;
use crate::name::{LocalName, OutboxName, QueueName};
use crate::payload::{Headers, IntoPayload, Payload};
use crate::queue::{
    ClaimHint, DeadSelection, EnqueueOpts, JobFilter, JobId, JobRecord, Queue, QueueOpts,
    QueueStats,
};
use crate::stop::StopToken;
use crate::store::Store;
use crate::time::{Countdown, Timestamp};
use crate::tx::Tx;
use crate::wake::{Backoff, Topic, unless_stopped};

/// What one delivery may say of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxOpts {
    /// How often it may be tried, at least 1. Default: 5.
    pub max_attempts: Option<u32>,
    /// Tried first after this long. Default: at once.
    pub delay: Option<Duration>,
    /// Headers that travel with it.
    pub headers: Headers,
}

setters!(OutboxOpts {
    /// How often it may be tried, at least 1.
    max_attempts: u32 => Some(max_attempts);
    /// Tried first after this long.
    delay: Duration => Some(delay);
    /// Headers that travel with it.
    headers: Headers => headers;
});

impl From<OutboxOpts> for EnqueueOpts {
    fn from(OutboxOpts { max_attempts, delay, headers }: OutboxOpts) -> Self {
        Self { max_attempts, delay, headers, ..Self::default() }
    }
}

/// An outbox: an address, cheap to clone, that keeps the store open.
///
/// Put what has to reach the outside into the transaction that decides it, and deliver it from
/// here afterwards: at least once, with retries and dead letters. A claim holds 60 s and is tried
/// 5 times, the backoff beginning at 5 s.
///
/// # Examples
///
/// ```
/// use alkstore_core::{OutboxOpts, StoreExt};
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let mails = store.outbox("mails")?;
///
/// let mut tx = store.begin_tx().await?;
/// mails.enqueue_tx(&mut tx, &"your order is paid", OutboxOpts::new()).await?;
/// tx.commit().await?;
///
/// let delivered = mails
///     .run_once("courier-1", |delivery| async move {
///         println!("sending {:?}", delivery.payload());
///         Ok::<_, std::io::Error>(())
///     })
///     .await?;
/// assert!(delivered);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Outbox {
    name: OutboxName,
    queue: Queue,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Outbox {
    pub(crate) fn new(store: Arc<dyn Store>, name: OutboxName) -> Result<Self> {
        let queue = Queue::new(store, QueueName::of_outbox(&name), QueueOpts::default())?;
        Ok(Self { name, queue })
    }

    /// The outbox's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Adds a delivery.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`], [`Error::PayloadTooLarge`], [`Error::InvalidArgument`] for
    /// `max_attempts` 0, or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has added the delivery or not.
    pub fn enqueue(
        &self,
        payload: impl IntoPayload,
        opts: OutboxOpts,
    ) -> impl Future<Output = Result<JobId>> + Send {
        self.queue.enqueue_with(payload, opts.into())
    }

    /// Adds a delivery when the transaction commits.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue); [`Error::InvalidArgument`] where the transaction is of
    /// another store.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged the delivery or not.
    pub fn enqueue_tx(
        &self,
        tx: &mut Tx<'_>,
        payload: impl IntoPayload,
        opts: OutboxOpts,
    ) -> impl Future<Output = Result<JobId>> + Send {
        self.queue.enqueue_tx(tx, payload, opts.into())
    }

    /// Claims one delivery and hands it over: `Ok` acks it, `Err` and a panic retry it with that
    /// error. `false` where there was none.
    ///
    /// Nothing extends the claim by itself: a delivery that takes longer than 60 s calls
    /// [`Delivery::heartbeat`]. A settlement that fails with a passing fault is repeated while
    /// the claim holds.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`] where the claim lapsed before it could be settled;
    /// [`Error::InvalidName`] for the worker id; or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the delivery began, the claim is given back; from then on it lapses at its
    /// deadline, the attempt charged.
    pub async fn run_once<F, Fut, E>(&self, worker_id: &str, delivery: F) -> Result<bool>
    where
        F: FnOnce(Delivery) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Display,
    {
        match self.queue.claim(worker_id).await? {
            Some(job) => deliver(job, delivery).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// For runtimes: [`run_once`](Self::run_once), which where there was nothing to deliver says
    /// when it is worth looking again. Who waits for that watches [`topic`](Self::topic) from
    /// before the call on.
    ///
    /// # Errors
    ///
    /// As [`run_once`](Self::run_once).
    ///
    /// # Cancel safety
    ///
    /// As [`run_once`](Self::run_once).
    pub async fn run_once_hinted<F, Fut, E>(
        &self,
        worker_id: &str,
        delivery: F,
    ) -> Result<Option<ClaimHint>>
    where
        F: FnOnce(Delivery) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Display,
    {
        let (mut jobs, hint) = self.queue.claim_hinted(worker_id, 1).await?;
        match jobs.pop() {
            Some(job) => deliver(job, delivery).await.map(|()| None),
            None => Ok(Some(hint)),
        }
    }

    /// For runtimes: what to watch to hear of deliveries.
    #[must_use]
    pub fn topic(&self) -> Topic {
        self.queue.topic()
    }

    /// Delivers one after the other, waiting where there is nothing to deliver, until it is
    /// stopped. [`StopToken::stop`] lets the delivery under way finish and settle,
    /// [`StopToken::abort`] drops it. Lost claims and passing faults don't end it.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::InvalidName`] for the worker id, or an error of the engine
    /// that doesn't pass by itself.
    ///
    /// # Cancel safety
    ///
    /// As [`run_once`](Self::run_once).
    pub async fn run<F, Fut, E>(
        &self,
        worker_id: &str,
        mut delivery: F,
        stop: StopToken,
    ) -> Result<()>
    where
        F: FnMut(Delivery) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Display,
    {
        LocalName::new(worker_id)?;
        let mut backoff = Backoff::FAULT;
        while !stop.is_stopped() {
            let outcome = match unless_stopped(&stop, self.queue.next(worker_id)).await {
                None => return Ok(()),
                Some(Err(error)) => Err(error),
                Some(Ok(mut job)) if stop.is_stopped() => {
                    // Stopped while it was claimed: nothing has begun. Where it can't be given
                    // back, it lapses.
                    let _ = job.release(Duration::ZERO).await;
                    return Ok(());
                }
                Some(Ok(job)) => {
                    let delivering = std::pin::pin!(deliver(job, &mut delivery));
                    let aborted = std::pin::pin!(stop.aborted());
                    // The delivery comes first, so that what an abort drops has begun.
                    match futures_util::future::select(delivering, aborted).await {
                        futures_util::future::Either::Left((settled, _)) => settled,
                        futures_util::future::Either::Right(_) => return Ok(()),
                    }
                }
            };
            match outcome {
                Ok(()) => backoff.reset(),
                Err(error) if matches!(error, Error::ClaimLost { .. }) || error.is_passing() => {
                    let pause = self.queue.store.sleep(backoff.next());
                    unless_stopped(&stop, pause).await.transpose()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One delivery, live or dead; see [`Queue::get_job`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn get_job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.queue.get_job(id).await
    }

    /// Deliveries by ascending id; see [`Queue::jobs`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobRecord>> {
        self.queue.jobs(filter).await
    }

    /// What the outbox holds; see [`Queue::stats`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn stats(&self) -> Result<QueueStats> {
        self.queue.stats().await
    }

    /// Removes a delivery that isn't dead; see [`Queue::cancel`].
    ///
    /// # Errors
    ///
    /// As [`Queue::cancel`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has removed the delivery or not.
    pub async fn cancel(&self, id: JobId) -> Result<bool> {
        self.queue.cancel(id).await
    }

    /// Tries dead deliveries again; see [`Queue::requeue_dead`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has requeued all of them or none.
    pub async fn requeue_dead(&self, which: impl Into<DeadSelection> + Send) -> Result<u64> {
        self.queue.requeue_dead(which).await
    }

    /// Deletes dead deliveries; see [`Queue::purge_dead`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has deleted all of them or none.
    pub async fn purge_dead(&self, which: impl Into<DeadSelection> + Send) -> Result<u64> {
        self.queue.purge_dead(which).await
    }

    /// Lets nothing be delivered until it is resumed; see [`Queue::pause`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has paused the outbox or not.
    pub async fn pause(&self) -> Result<bool> {
        self.queue.pause().await
    }

    /// Lets deliveries go on; see [`Queue::resume`].
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has resumed the outbox or not.
    pub async fn resume(&self) -> Result<bool> {
        self.queue.resume().await
    }
}

#[derive(Debug, Clone, Copy)]
struct Held {
    deadline: Timestamp,
    countdown: Countdown,
}

/// The claim of a delivery, shared by its clones and by the loop that settles it.
#[derive(Debug)]
struct Hold(Mutex<Held>);

impl Hold {
    fn get(&self) -> Held {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, held: Held) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}

/// One delivery of an outbox, cheap to clone. Settling it stays with [`Outbox::run_once`].
#[derive(Clone)]
pub struct Delivery {
    store: Arc<dyn Store>,
    claim: ClaimRef,
    claimed: ClaimedJob,
    hold: Arc<Hold>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.claim.id)
            .field("attempt", &self.claimed.attempt)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

impl Delivery {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.claim.id
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

    /// When it was enqueued.
    #[must_use]
    pub fn enqueued_at(&self) -> SystemTime {
        self.claimed.enqueued_at.into()
    }

    /// Until when the claim holds, on the engine's clock.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.hold.get().deadline.into()
    }

    /// How long the claim still holds, by this process's monotonic clock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.get().countdown.remaining()
    }

    /// Holds the claim for `extend` from now on, for the settlement too, and returns the new
    /// deadline.
    ///
    /// # Errors
    ///
    /// As [`Job::heartbeat`].
    ///
    /// # Cancel safety
    ///
    /// As [`Job::heartbeat`].
    pub async fn heartbeat(&self, extend: Duration) -> Result<SystemTime> {
        let (deadline, countdown) = heartbeat(&*self.store, &self.claim, extend).await?;
        self.hold.set(Held { deadline, countdown });
        Ok(deadline.into())
    }
}

async fn deliver<F, Fut, E>(job: Job, delivery: F) -> Result<()>
where
    F: FnOnce(Delivery) -> Fut + Send,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Display,
{
    let held = Held { deadline: job.claimed.deadline, countdown: job.countdown };
    let hold = Arc::new(Hold(Mutex::new(held)));
    let delivered = Delivery {
        store: job.store.clone(),
        claim: job.claim.clone(),
        claimed: job.claimed.clone(),
        hold: hold.clone(),
    };
    // Nothing of ours is shared with what may have panicked but the hold, which is whole at any
    // instant.
    let attempt =
        AssertUnwindSafe(async move { delivery(delivered).await.map_err(ErrorText::new) });
    let action = match attempt.catch_unwind().await {
        Ok(Ok(())) => SettleAction::Ack,
        Ok(Err(error)) => SettleAction::Retry { error, delay: None },
        Err(panic) => SettleAction::Retry { error: panic_text(&*panic), delay: None },
    };
    settle_while_held(&job, &hold, action).await
}

fn panic_text(panic: &(dyn Any + Send)) -> ErrorText {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of unknown cause");
    ErrorText::new(format_args!("the delivery panicked: {text}"))
}

/// Repeats a settlement that met a passing fault: it is fenced, so that it can't settle twice.
async fn settle_while_held(job: &Job, hold: &Hold, action: SettleAction) -> Result<()> {
    let mut backoff = Backoff::FAULT;
    let mut outcome_unknown = false;
    loop {
        let error = match job.settle(action.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let remaining = hold.get().countdown.remaining();
        match error {
            // The settlement whose outcome was unknown is what lost the claim.
            Error::ClaimLost { .. } if outcome_unknown && !remaining.is_zero() => return Ok(()),
            error if !error.is_passing() => return Err(error),
            _ if remaining.is_zero() => {
                let queue = job.queue().to_owned();
                return Err(Error::ClaimLost { queue, id: job.id() });
            }
            error => outcome_unknown |= matches!(error, Error::CommitUnknown { .. }),
        }
        job.store.sleep(backoff.next().min(remaining)).await?;
    }
}

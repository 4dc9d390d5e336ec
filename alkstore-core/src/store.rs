//! The store as a whole: the sum of the mechanisms, and the handles that begin at it.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{Error, Result};
use crate::lock::{Lock, LockInfo, LockStore};
use crate::name::{
    ChannelName, LocalName, LockName, OutboxName, QueueName, ScheduleName, StreamName,
};
use crate::notify::{Listener, NotifyStore};
use crate::outbox::Outbox;
use crate::payload::{DEFAULT_PAYLOAD_LIMIT, IntoPayload, Payload};
use crate::queue::{Queue, QueueOpts, QueueStats, QueueStore};
use crate::schedule::{self, Schedule, ScheduleOpts, ScheduleSpec, ScheduleStore};
use crate::stop::StopToken;
use crate::stream::{Stream, StreamInfo, StreamStore};
use crate::time::Lease;
use crate::tx::{Tx, TxStore};
use crate::wake::WakeStore;

/// Tells one `open` of a store from every other in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(u64);

impl StoreId {
    /// For engines: an id for a store that is being opened.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each id is another one")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}", self.0)
    }
}

/// What a store takes; set when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of one payload.
    pub payload: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload: DEFAULT_PAYLOAD_LIMIT }
    }
}

/// What [`StoreExt::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintenance {
    /// Jobs buried because they had expired.
    pub expired: u64,
    /// Jobs buried because their last claim had lapsed.
    pub buried: u64,
    /// Dead jobs deleted because their retention was over.
    pub purged: u64,
}

/// One page of maintenance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenancePage {
    /// What the page did.
    pub done: Maintenance,
    /// Whether there is more to do.
    pub more: bool,
}

/// Finds its way back to a store without keeping it open.
pub trait WeakStore: Send + Sync {
    /// The store, unless it is closed or its last handle was dropped.
    fn upgrade(&self) -> Option<Arc<dyn Store>>;

    /// Whether [`upgrade`](Self::upgrade) would find it.
    fn is_open(&self) -> bool;
}

/// The primitives of an engine that are about the store itself.
#[async_trait]
pub trait StoreBase {
    /// Which `open` this is; clones share it.
    fn store_id(&self) -> StoreId;

    /// What this store takes.
    fn limits(&self) -> Limits;

    /// A handle on this store.
    fn shared(&self) -> Arc<dyn Store>;

    /// A way back to this store that doesn't keep it open.
    fn weak(&self) -> Arc<dyn WeakStore>;

    /// Stores what the clock implies, at most a page of it: buries jobs that have expired or
    /// whose last claim has lapsed, deletes dead jobs whose retention is over.
    async fn maintain_page(&self) -> Result<MaintenancePage>;

    /// Ends this open with all its clones; nothing is left running when it returns. Again, it is
    /// `Ok`.
    async fn shut_down(&self) -> Result<()>;
}

/// What an engine implements: one small trait a mechanism, and this, their sum.
///
/// Applications use [`StoreExt`]. The primitives here are coarse and batch-shaped, and take
/// values that were checked already.
pub trait Store:
    StoreBase
    + QueueStore
    + StreamStore
    + NotifyStore
    + LockStore
    + ScheduleStore
    + TxStore
    + WakeStore
    + Send
    + Sync
    + 'static
{
}

impl<S> Store for S where
    S: StoreBase
        + QueueStore
        + StreamStore
        + NotifyStore
        + LockStore
        + ScheduleStore
        + TxStore
        + WakeStore
        + Send
        + Sync
        + 'static
{
}

fn sendable(store: &(impl Store + ?Sized), payload: impl IntoPayload) -> Result<Payload> {
    payload.into_payload()?.within(store.limits().payload)
}

/// What an application does with a store; works on an engine and on `Arc<dyn Store>` alike.
///
/// # Examples
///
/// ```
/// use alkstore_core::StoreExt;
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let id = store.queue("emails")?.enqueue(&"hello").await?;
/// let job = store.queue("emails")?.next("worker-1").await?;
/// assert_eq!(job.id(), id);
/// # Ok(())
/// # }
/// ```
pub trait StoreExt: Store {
    /// A queue, with the defaults of its name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`].
    fn queue(&self, name: &str) -> Result<Queue> {
        self.queue_with(name, QueueOpts::default())
    }

    /// A queue whose jobs are stamped with these options.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`]; [`Error::InvalidArgument`] for a
    /// visibility timeout outside 1 ms to 10 years and for `max_attempts` 0.
    fn queue_with(&self, name: &str, opts: QueueOpts) -> Result<Queue> {
        Queue::new(self.shared(), QueueName::new(name)?, opts)
    }

    /// A stream.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`].
    fn stream(&self, name: &str) -> Result<Stream> {
        Ok(Stream::new(self.shared(), StreamName::new(name)?))
    }

    /// An outbox.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`].
    fn outbox(&self, name: &str) -> Result<Outbox> {
        Outbox::new(self.shared(), OutboxName::new(name)?)
    }

    /// Sends a message to every listener that the channel has now. There is no replay.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], [`Error::Codec`],
    /// [`Error::PayloadTooLarge`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has sent the message or not.
    fn notify(
        &self,
        channel: &str,
        payload: impl IntoPayload,
    ) -> impl Future<Output = Result<()>> + Send {
        let checked =
            ChannelName::new(channel).and_then(|name| Ok((name, sendable(self, payload)?)));
        async move {
            let (channel, payload) = checked?;
            self.send_message(&channel, payload).await
        }
    }

    /// Listens on a channel: to every message whose commit comes after this returned.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn listen(&self, channel: &str) -> impl Future<Output = Result<Listener>> + Send {
        let channel = ChannelName::new(channel);
        async move { self.open_listener(&channel?).await }
    }

    /// Takes a lock unless it is held, by whomever: locks aren't re-entrant and an owner's name
    /// is only a label.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`]; [`Error::InvalidArgument`] for a ttl
    /// outside 1 ms to 10 years; or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped, it gives back what it had taken.
    fn try_lock(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<Lock>>> + Send {
        let checked = lock_arguments(name, owner, ttl);
        async move {
            let (name, owner, ttl) = checked?;
            Ok(Lock::try_acquire(self.shared(), name, owner, ttl).await?.ok())
        }
    }

    /// Waits until it can take a lock.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock); [`Error::Closed`] when the store is closed meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe, as [`try_lock`](Self::try_lock).
    fn lock(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<Lock>> + Send {
        let checked = lock_arguments(name, owner, ttl);
        async move {
            let (name, owner, ttl) = checked?;
            Lock::acquire(self.shared(), name, owner, ttl).await
        }
    }

    /// Adds a schedule or replaces the one of that name. It fires while somebody runs
    /// [`run_schedules`](Self::run_schedules).
    ///
    /// `spec` is `@every <n><unit>`, for instance `@every 5m`. Registering the same period again
    /// keeps the grid and the next boundary; a new period begins now.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] and [`Error::ReservedName`] for the name and the queue,
    /// [`Error::InvalidSpec`], [`Error::Codec`], [`Error::PayloadTooLarge`],
    /// [`Error::InvalidArgument`] for the options, or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has stored the schedule or not.
    fn schedule(
        &self,
        name: &str,
        spec: &str,
        queue: &str,
        payload: impl IntoPayload,
        opts: ScheduleOpts,
    ) -> impl Future<Output = Result<Schedule>> + Send {
        let checked = (|| -> Result<ScheduleSpec> {
            let (name, queue) = (ScheduleName::new(name)?, QueueName::new(queue)?);
            let opts = opts.checked()?;
            let payload = sendable(self, payload)?;
            Ok(ScheduleSpec { name, spec: spec.to_owned(), queue, payload, opts })
        })();
        async move { self.upsert_schedule(checked?).await }
    }

    /// Removes a schedule; what it fired stays. `false` where there is none of that name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has removed the schedule or not.
    fn unschedule(&self, name: &str) -> impl Future<Output = Result<bool>> + Send {
        let name = ScheduleName::new(name);
        async move { self.delete_schedule(&name?).await }
    }

    /// Every schedule, by name.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn schedules(&self) -> impl Future<Output = Result<Vec<Schedule>>> + Send {
        async move { self.list_schedules().await }
    }

    /// Lets a schedule rest. `false` where it rests already or there is none of that name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has paused the schedule or not.
    fn pause_schedule(&self, name: &str) -> impl Future<Output = Result<bool>> + Send {
        let name = ScheduleName::new(name);
        async move { self.set_schedule_paused(&name?, true).await }
    }

    /// Lets a schedule fire again; what it missed is skipped. `false` where it isn't paused or
    /// there is none of that name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has resumed the schedule or not.
    fn resume_schedule(&self, name: &str) -> impl Future<Output = Result<bool>> + Send {
        let name = ScheduleName::new(name);
        async move { self.set_schedule_paused(&name?, false).await }
    }

    /// Fires schedules until it is stopped, as the one leader among all runners.
    ///
    /// # Errors
    ///
    /// [`Error::LeadershipLost`] where another runner leads, before anything fired, or when the
    /// lease is lost later; the error of a tick that fails for good, or five times in a row with
    /// a retryable one; [`Error::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives the lease back; a tick under way is done or not.
    fn run_schedules(&self, stop: StopToken) -> impl Future<Output = Result<()>> + Send {
        schedule::run(self.shared(), stop)
    }

    /// As [`run_schedules`](Self::run_schedules), but waits for the lease and stands by again
    /// after it was lost or the store was unavailable.
    ///
    /// # Errors
    ///
    /// An error of the engine that doesn't pass by itself; [`Error::Closed`].
    ///
    /// # Cancel safety
    ///
    /// As [`run_schedules`](Self::run_schedules).
    fn run_schedules_standby(&self, stop: StopToken) -> impl Future<Output = Result<()>> + Send {
        schedule::run_schedules_observed(self.shared(), stop, |_| ())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, nothing is left open.
    fn begin_tx(&self) -> impl Future<Output = Result<Tx<'static>>> + Send {
        async move { Ok(Tx::new(self.store_id(), self.limits(), self.begin().await?)) }
    }

    /// Runs a closure in a transaction: `Ok` commits it, `Err` and a panic roll it back. The
    /// closure may borrow from its caller, and its own error passes through.
    ///
    /// # Errors
    ///
    /// The closure's, or what the engine meets at begin and commit.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is rolled back; dropped during the commit, all of it is committed or nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use alkstore_core::{EnqueueOpts, Error, StoreExt};
    /// use alkstore_mem::MemStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> alkstore_core::Result<()> {
    /// # let store = MemStore::new();
    /// let queue = store.queue("emails")?;
    /// let id = store
    ///     .with_tx(|tx| Box::pin(async { queue.enqueue_tx(tx, &1, EnqueueOpts::new()).await }))
    ///     .await?;
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    fn with_tx<'env, T, E, F>(&self, f: F) -> impl Future<Output = Result<T, E>> + Send
    where
        T: Send,
        E: From<Error> + Send,
        F: for<'t> FnOnce(&'t mut Tx<'env>) -> BoxFuture<'t, Result<T, E>> + Send,
    {
        async move {
            let mut tx: Tx<'env> = self.begin_tx().await?;
            // The transaction is rolled back before anything that may have been left half-done
            // is looked at again.
            let outcome = AssertUnwindSafe(async { f(&mut tx).await }).catch_unwind().await;
            match outcome {
                Ok(Ok(value)) => tx.commit().await.map(|()| value).map_err(E::from),
                Ok(Err(error)) => {
                    // The closure's error is the one to hear.
                    let _ = tx.rollback().await;
                    Err(error)
                }
                Err(panic) => {
                    let _ = tx.rollback().await;
                    std::panic::resume_unwind(panic)
                }
            }
        }
    }

    /// Every queue that has a job or is paused, the queues of outboxes included, by name.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn queues(&self) -> impl Future<Output = Result<Vec<QueueStats>>> + Send {
        async move { self.queue_stats(None).await }
    }

    /// Every stream that was ever published to or has a consumer, by name.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn streams(&self) -> impl Future<Output = Result<Vec<StreamInfo>>> + Send {
        async move { self.stream_info(None).await }
    }

    /// Every lock that is held, the scheduler's included, by name.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn locks(&self) -> impl Future<Output = Result<Vec<LockInfo>>> + Send {
        async move { self.held_locks().await }
    }

    /// Stores what the clock implies, in pages: buries jobs that have expired or whose last claim
    /// has lapsed, deletes dead jobs whose retention is over. What is read doesn't depend on it;
    /// it keeps the store small.
    ///
    /// # Errors
    ///
    /// What the engine meets; pages before that are done.
    ///
    /// # Cancel safety
    ///
    /// Dropped, some pages are done.
    fn maintain(&self) -> impl Future<Output = Result<Maintenance>> + Send {
        async move {
            let mut sum = Maintenance::default();
            loop {
                let MaintenancePage { done, more } = self.maintain_page().await?;
                sum.expired += done.expired;
                sum.buried += done.buried;
                sum.purged += done.purged;
                if !more {
                    return Ok(sum);
                }
            }
        }
    }

    /// Closes the store with all its clones: waiting calls end with [`Error::Closed`], listeners
    /// and subscriptions with `None`, and every later call is [`Error::Closed`]. It doesn't wait
    /// for open transactions. Again, it is `Ok`.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the store is closed all the same, maybe a moment later.
    fn close(&self) -> impl Future<Output = Result<()>> + Send {
        async move { self.shut_down().await }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

fn lock_arguments(name: &str, owner: &str, ttl: Duration) -> Result<(LockName, LocalName, Lease)> {
    Ok((LockName::new(name)?, LocalName::new(owner)?, Lease::new("ttl", ttl)?))
}

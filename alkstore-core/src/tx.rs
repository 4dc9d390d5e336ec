//! Transactions: everything staged in one commits together, with the application's own SQL.

use std::any::Any;
use std::fmt;
use std::future::Future;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::job::{Settled, Settlement};
use crate::name::{ChannelName, LocalName, QueueName, StreamName};
use crate::payload::{IntoPayload, Payload};
use crate::queue::{JobId, JobRecord, JobSpec, QueueOpts};
use crate::store::{Limits, StoreId};
use crate::stream::{Event, EventSpec, Offset};

/// An engine's transaction: the same write primitives, staged. Every instant is that of the call.
/// Dropped, it is rolled back.
#[async_trait]
pub trait EngineTx: Send {
    /// See [`QueueStore::insert_jobs`](crate::QueueStore::insert_jobs).
    async fn insert_jobs(
        &mut self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>>;

    /// Settles one claim and pins it: nobody else claims the job while the transaction lives.
    async fn settle_job(&mut self, item: Settlement) -> Result<Settled>;

    /// One job as this transaction sees it.
    async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>>;

    /// Appends events at commit, where they take their places.
    async fn append_events(&mut self, stream: &StreamName, events: Vec<EventSpec>) -> Result<()>;

    /// Reads the committed log.
    async fn read_events(
        &mut self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>>;

    /// A consumer's offset as this transaction sees it.
    async fn consumer_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset>;

    /// See [`StreamStore::store_offset`](crate::StreamStore::store_offset).
    async fn store_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()>;

    /// Sends a message at commit.
    async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()>;

    /// The engine's own transaction, for its SQL.
    fn engine(&mut self) -> Option<&mut dyn Any>;

    /// Makes everything staged visible at once, then wakes who waits for it.
    async fn commit(self: Box<Self>) -> Result<()>;

    /// Undoes everything staged and wakes nobody.
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// A transaction: all that is staged in it becomes visible together at [`commit`](Self::commit),
/// or not at all. Dropped, it is rolled back.
///
/// After an error that leaves the database's transaction in doubt ([`Error::Unavailable`],
/// [`Error::CommitUnknown`], [`Error::Engine`]) only [`rollback`](Self::rollback) is left; after
/// every other error, [`Error::ClaimLost`] included, it stays usable.
///
/// # Examples
///
/// ```
/// use alkstore_core::{EnqueueOpts, PublishOpts, StoreExt};
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let (emails, orders) = (store.queue("emails")?, store.stream("orders")?);
///
/// let mut tx = store.begin_tx().await?;
/// orders.publish_tx(&mut tx, &"order 7 paid", PublishOpts::new()).await?;
/// emails.enqueue_tx(&mut tx, &"receipt for order 7", EnqueueOpts::new()).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Tx<'c> {
    engine: Box<dyn EngineTx + 'c>,
    store: StoreId,
    limits: Limits,
    failed: Option<String>,
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("store", &self.store).field("failed", &self.failed).finish()
    }
}

impl<'c> Tx<'c> {
    /// For engines: a transaction of the store with this id and these limits.
    pub fn new(store: StoreId, limits: Limits, engine: Box<dyn EngineTx + 'c>) -> Self {
        Self { engine, store, limits, failed: None }
    }

    /// Sends a message when the transaction commits.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], [`Error::Codec`],
    /// [`Error::PayloadTooLarge`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged the message or not.
    pub fn notify_tx(
        &mut self,
        channel: &str,
        payload: impl IntoPayload,
    ) -> impl Future<Output = Result<()>> + Send {
        let checked = ChannelName::new(channel).and_then(|channel| {
            Ok((channel, payload.into_payload()?.within(self.limits.payload)?))
        });
        async move {
            let (channel, payload) = checked?;
            self.usable()?;
            let result = self.engine.send_message(&channel, payload).await;
            self.noting(result)
        }
    }

    /// One job, live or dead, as this transaction sees it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn get_job_tx(&mut self, queue: &str, id: JobId) -> Result<Option<JobRecord>> {
        let queue = QueueName::new(queue)?;
        self.usable()?;
        let result = self.engine.find_job(&queue, id).await;
        self.noting(result)
    }

    /// A consumer's saved offset, as this transaction sees it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::ReservedName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn get_offset_tx(&mut self, stream: &str, consumer: &str) -> Result<Offset> {
        let (stream, consumer) = (StreamName::new(stream)?, LocalName::new(consumer)?);
        self.usable()?;
        let result = self.engine.consumer_offset(&stream, &consumer).await;
        self.noting(result)
    }

    /// The engine's own transaction, for the application's own SQL; `None` where the engine has
    /// none of that type, as the memory engine hasn't.
    pub fn engine<T: Any>(&mut self) -> Option<&mut T> {
        self.engine.engine()?.downcast_mut()
    }

    /// Makes everything staged visible, and wakes who waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] where an earlier error had ended the transaction;
    /// [`Error::CommitUnknown`] where the outcome couldn't be learnt; or what the engine meets.
    /// Except for `CommitUnknown` nothing was written.
    ///
    /// # Cancel safety
    ///
    /// Dropped, all of it is committed or nothing.
    pub async fn commit(self) -> Result<()> {
        match self.usable() {
            Ok(()) => self.engine.commit().await,
            Err(error) => {
                // The error that ended it says more than a rollback that fails as well.
                let _ = self.engine.rollback().await;
                Err(error)
            }
        }
    }

    /// Undoes everything staged and wakes nobody.
    ///
    /// # Errors
    ///
    /// What the engine meets; nothing was written all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is rolled back.
    pub async fn rollback(self) -> Result<()> {
        self.engine.rollback().await
    }

    pub(crate) async fn insert_jobs(
        &mut self,
        store: StoreId,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        self.usable_for(store)?;
        let result = self.engine.insert_jobs(queue, opts, jobs).await;
        self.noting(result)
    }

    pub(crate) async fn settle_job(&mut self, store: StoreId, item: Settlement) -> Result<Settled> {
        self.usable_for(store)?;
        let result = self.engine.settle_job(item).await;
        self.noting(result)
    }

    pub(crate) async fn append_events(
        &mut self,
        store: StoreId,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<()> {
        self.usable_for(store)?;
        let result = self.engine.append_events(stream, events).await;
        self.noting(result)
    }

    pub(crate) async fn read_events(
        &mut self,
        store: StoreId,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        self.usable_for(store)?;
        let result = self.engine.read_events(stream, after, limit).await;
        self.noting(result)
    }

    pub(crate) async fn store_offset(
        &mut self,
        store: StoreId,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.usable_for(store)?;
        let result = self.engine.store_offset(stream, consumer, offset).await;
        self.noting(result)
    }

    fn usable_for(&self, store: StoreId) -> Result<()> {
        if store != self.store {
            return Err(Error::invalid_argument(
                "tx",
                format_args!("a transaction of {}", self.store),
                format!("one of {store}, whose handle this is"),
            ));
        }
        self.usable()
    }

    fn usable(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(Error::engine(format!(
                "the transaction can only be rolled back after this error: {error}"
            ))),
        }
    }

    fn noting<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.ends_transaction()
        {
            self.failed = Some(error.to_string());
        }
        result
    }
}

/// The transaction primitive of an engine.
#[async_trait]
pub trait TxStore {
    /// Begins a transaction.
    async fn begin(&self) -> Result<Box<dyn EngineTx>>;
}

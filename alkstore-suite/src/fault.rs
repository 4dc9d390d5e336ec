//! Broken engines: a store with some of its primitives replaced.
//!
//! A [`Layer`] lies over a store and forwards what it doesn't replace. It serves to show that the
//! rows bite: an engine that breaks a rule has to fail that rule's rows.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{
    Acquired, ChannelName, Claimed, DeadSelection, EngineTx, Error, Event, EventSpec, JobFilter,
    JobId, JobRecord, JobSpec, Lease, Limits, Listener, LocalName, LockInfo, LockName, LockRef,
    LockStore, MaintenancePage, NotifyStore, Offset, Payload, QueueName, QueueOpts, QueueStats,
    QueueStore, Result, Schedule, ScheduleName, ScheduleSpec, ScheduleStore, Settled, Settlement,
    Store, StoreBase, StoreId, StreamInfo, StreamName, StreamStore, Tick, Timestamp, Topic,
    TxStore, WakeStore, Watch, WeakStore, async_trait,
};

/// The primitives by trait: those that are replaced and forwarded alike.
macro_rules! primitives {
    ($($store:ident { $($method:ident($($arg:ident: $type:ty),*) -> $result:ty;)* })*) => {
        /// What lies between a store and its user. Each method replaces one primitive of the
        /// engine and is given the store beneath, to which it forwards unless it is overridden.
        ///
        /// One layer may lie over several stores on the same data and so know of all of them.
        #[async_trait]
        pub trait Layer: Send + Sync + 'static {
            $($(
                #[doc = concat!("In place of `", stringify!($store), "::", stringify!($method), "`.")]
                async fn $method(&self, inner: &dyn Store $(, $arg: $type)*) -> $result {
                    inner.$method($($arg),*).await
                }
            )*)*

            /// In place of `LockStore::abandon_lock`.
            fn abandon_lock(&self, inner: &dyn Store, lock: &LockRef) {
                inner.abandon_lock(lock);
            }

            /// In place of `StoreBase::limits`.
            fn limits(&self, inner: &dyn Store) -> Limits {
                inner.limits()
            }
        }

        #[async_trait]
        impl<L: Layer + ?Sized> Layer for Arc<L> {
            $($(
                async fn $method(&self, inner: &dyn Store $(, $arg: $type)*) -> $result {
                    (**self).$method(inner $(, $arg)*).await
                }
            )*)*

            fn abandon_lock(&self, inner: &dyn Store, lock: &LockRef) {
                (**self).abandon_lock(inner, lock);
            }

            fn limits(&self, inner: &dyn Store) -> Limits {
                (**self).limits(inner)
            }
        }

        layered! { $($store { $($method($($arg: $type),*) -> $result;)* })* }
    };
}

macro_rules! layered {
    (
        StoreBase { $($base:ident($($base_arg:ident: $base_type:ty),*) -> $base_result:ty;)* }
        LockStore { $($lock:ident($($lock_arg:ident: $lock_type:ty),*) -> $lock_result:ty;)* }
        $($store:ident { $($method:ident($($arg:ident: $type:ty),*) -> $result:ty;)* })*
    ) => {
        #[async_trait]
        impl<L: Layer> StoreBase for Layered<L> {
            fn store_id(&self) -> StoreId {
                self.inner.store_id()
            }

            fn limits(&self) -> Limits {
                self.layer.limits(&*self.inner)
            }

            fn shared(&self) -> Arc<dyn Store> {
                Arc::new(self.clone())
            }

            fn weak(&self) -> Arc<dyn WeakStore> {
                Arc::new(WeakLayered { inner: self.inner.weak(), layer: self.layer.clone() })
            }

            $(
                async fn $base(&self $(, $base_arg: $base_type)*) -> $base_result {
                    self.layer.$base(&*self.inner $(, $base_arg)*).await
                }
            )*
        }

        #[async_trait]
        impl<L: Layer> LockStore for Layered<L> {
            fn abandon_lock(&self, lock: &LockRef) {
                self.layer.abandon_lock(&*self.inner, lock);
            }

            $(
                async fn $lock(&self $(, $lock_arg: $lock_type)*) -> $lock_result {
                    self.layer.$lock(&*self.inner $(, $lock_arg)*).await
                }
            )*
        }

        $(
            #[async_trait]
            impl<L: Layer> $store for Layered<L> {
                $(
                    async fn $method(&self $(, $arg: $type)*) -> $result {
                        self.layer.$method(&*self.inner $(, $arg)*).await
                    }
                )*
            }
        )*
    };
}

primitives! {
    StoreBase {
        maintain_page() -> Result<MaintenancePage>;
        shut_down() -> Result<()>;
    }
    LockStore {
        acquire_lock(name: &LockName, owner: &LocalName, ttl: Lease) -> Result<Acquired>;
        renew_lock(lock: &LockRef, ttl: Lease) -> Result<Timestamp>;
        release_lock(lock: &LockRef) -> Result<()>;
        held_locks() -> Result<Vec<LockInfo>>;
    }
    QueueStore {
        insert_jobs(
            queue: &QueueName,
            opts: &QueueOpts,
            jobs: Vec<JobSpec>
        ) -> Result<Vec<JobId>>;
        claim_jobs(queue: &QueueName, worker: &LocalName, max: usize) -> Result<Claimed>;
        settle_jobs(items: Vec<Settlement>) -> Result<Vec<Result<Settled>>>;
        cancel_job(queue: &QueueName, id: JobId) -> Result<bool>;
        find_job(queue: &QueueName, id: JobId) -> Result<Option<JobRecord>>;
        find_jobs(queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>>;
        queue_stats(queue: Option<&QueueName>) -> Result<Vec<QueueStats>>;
        requeue_jobs(queue: &QueueName, which: &DeadSelection) -> Result<u64>;
        purge_jobs(queue: &QueueName, which: &DeadSelection) -> Result<u64>;
        set_queue_paused(queue: &QueueName, paused: bool) -> Result<bool>;
    }
    StreamStore {
        append_events(stream: &StreamName, events: Vec<EventSpec>) -> Result<Vec<Offset>>;
        read_events(stream: &StreamName, after: Offset, limit: usize) -> Result<Vec<Event>>;
        trim_stream(stream: &StreamName, horizon: Offset) -> Result<u64>;
        stream_info(stream: Option<&StreamName>) -> Result<Vec<StreamInfo>>;
        consumer_offset(stream: &StreamName, consumer: &LocalName) -> Result<Offset>;
        store_offset(stream: &StreamName, consumer: &LocalName, offset: Offset) -> Result<()>;
        rewind_consumer(stream: &StreamName, consumer: &LocalName, offset: Offset) -> Result<()>;
        delete_consumer(stream: &StreamName, consumer: &LocalName) -> Result<bool>;
    }
    NotifyStore {
        send_message(channel: &ChannelName, payload: Payload) -> Result<()>;
        open_listener(channel: &ChannelName) -> Result<Listener>;
    }
    ScheduleStore {
        upsert_schedule(spec: ScheduleSpec) -> Result<Schedule>;
        delete_schedule(name: &ScheduleName) -> Result<bool>;
        list_schedules() -> Result<Vec<Schedule>>;
        set_schedule_paused(name: &ScheduleName, paused: bool) -> Result<bool>;
        tick_schedules() -> Result<Tick>;
    }
    TxStore {
        begin() -> Result<Box<dyn EngineTx>>;
    }
    WakeStore {
        watch(topic: Topic) -> Result<Box<dyn Watch>>;
        sleep(duration: Duration) -> Result<()>;
    }
}

/// A store with a layer over it.
pub struct Layered<L> {
    inner: Arc<dyn Store>,
    layer: Arc<L>,
}

impl<L> Clone for Layered<L> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<L> fmt::Debug for Layered<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layered").field("store", &self.inner.store_id()).finish_non_exhaustive()
    }
}

struct WeakLayered<L> {
    inner: Arc<dyn WeakStore>,
    layer: Arc<L>,
}

impl<L: Layer> WeakStore for WeakLayered<L> {
    fn upgrade(&self) -> Option<Arc<dyn Store>> {
        let inner = self.inner.upgrade()?;
        Some(Arc::new(Layered { inner, layer: self.layer.clone() }))
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }
}

/// Lays a layer over a store. It is the same `open`: it keeps the store's id.
pub fn layered(store: Arc<dyn Store>, layer: impl Layer) -> Arc<dyn Store> {
    Arc::new(Layered { inner: store, layer: Arc::new(layer) })
}

/// What lies between a transaction and its user, as [`Layer`] does for a store.
#[async_trait]
pub trait TxLayer: Send + 'static {
    /// In place of [`EngineTx::insert_jobs`].
    async fn insert_jobs(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        inner.insert_jobs(queue, opts, jobs).await
    }

    /// In place of [`EngineTx::settle_job`].
    async fn settle_job(&mut self, inner: &mut dyn EngineTx, item: Settlement) -> Result<Settled> {
        inner.settle_job(item).await
    }

    /// In place of [`EngineTx::find_job`].
    async fn find_job(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        inner.find_job(queue, id).await
    }

    /// In place of [`EngineTx::append_events`].
    async fn append_events(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<()> {
        inner.append_events(stream, events).await
    }

    /// In place of [`EngineTx::read_events`].
    async fn read_events(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        inner.read_events(stream, after, limit).await
    }

    /// In place of [`EngineTx::consumer_offset`].
    async fn consumer_offset(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        inner.consumer_offset(stream, consumer).await
    }

    /// In place of [`EngineTx::store_offset`].
    async fn store_offset(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        inner.store_offset(stream, consumer, offset).await
    }

    /// In place of [`EngineTx::send_message`].
    async fn send_message(
        &mut self,
        inner: &mut dyn EngineTx,
        channel: &ChannelName,
        payload: Payload,
    ) -> Result<()> {
        inner.send_message(channel, payload).await
    }

    /// In place of [`EngineTx::commit`].
    async fn commit(self: Box<Self>, inner: Box<dyn EngineTx>) -> Result<()> {
        inner.commit().await
    }

    /// In place of [`EngineTx::rollback`].
    async fn rollback(self: Box<Self>, inner: Box<dyn EngineTx>) -> Result<()> {
        inner.rollback().await
    }
}

/// Lays a layer over a transaction; for [`Layer::begin`].
pub fn layered_tx(tx: Box<dyn EngineTx>, layer: impl TxLayer) -> Box<dyn EngineTx> {
    Box::new(LayeredTx { inner: tx, layer: Box::new(layer) })
}

struct LayeredTx<L> {
    inner: Box<dyn EngineTx>,
    layer: Box<L>,
}

#[async_trait]
impl<L: TxLayer> EngineTx for LayeredTx<L> {
    async fn insert_jobs(
        &mut self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        self.layer.insert_jobs(&mut *self.inner, queue, opts, jobs).await
    }

    async fn settle_job(&mut self, item: Settlement) -> Result<Settled> {
        self.layer.settle_job(&mut *self.inner, item).await
    }

    async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        self.layer.find_job(&mut *self.inner, queue, id).await
    }

    async fn append_events(&mut self, stream: &StreamName, events: Vec<EventSpec>) -> Result<()> {
        self.layer.append_events(&mut *self.inner, stream, events).await
    }

    async fn read_events(
        &mut self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        self.layer.read_events(&mut *self.inner, stream, after, limit).await
    }

    async fn consumer_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        self.layer.consumer_offset(&mut *self.inner, stream, consumer).await
    }

    async fn store_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.layer.store_offset(&mut *self.inner, stream, consumer, offset).await
    }

    async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()> {
        self.layer.send_message(&mut *self.inner, channel, payload).await
    }

    fn engine(&mut self) -> Option<&mut dyn Any> {
        self.inner.engine()
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.layer.commit(self.inner).await
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.layer.rollback(self.inner).await
    }
}

struct FailingTicks(Mutex<VecDeque<Error>>);

#[async_trait]
impl Layer for FailingTicks {
    async fn tick_schedules(&self, inner: &dyn Store) -> Result<Tick> {
        let error = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match error {
            Some(error) => Err(error),
            None => inner.tick_schedules().await,
        }
    }
}

/// The same store, but each of its next ticks fails with one of these errors, in order.
pub fn failing_ticks(store: Arc<dyn Store>, errors: Vec<Error>) -> Arc<dyn Store> {
    layered(store, FailingTicks(Mutex::new(errors.into())))
}

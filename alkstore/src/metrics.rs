//! What the store and the worker do, as metrics of the [`metrics`] facade: install a recorder,
//! for instance one of Prometheus, before the store is opened and the worker begins.
//!
//! The names are in [`names`]; `docs/guide/observability.md` says what each means.
//!
//! [`metrics`]: https://docs.rs/metrics

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{
    Acquired, ChannelName, Claimed, DeadSelection, EngineTx, Event, EventSpec, JobFilter, JobId,
    JobRecord, JobSpec, Lease, Limits, Listener, LocalName, LockInfo, LockName, LockRef, LockStore,
    MaintenancePage, NotifyStore, Offset, Payload, QueueName, QueueOpts, QueueStats, QueueStore,
    Result, Schedule, ScheduleName, ScheduleSpec, ScheduleStore, Settled, Settlement, Store,
    StoreBase, StoreExt, StoreId, StreamInfo, StreamName, StreamStore, Tick, Timestamp, Topic,
    TxStore, WakeStore, Watch, WeakStore, async_trait,
};
use metrics::{counter, gauge};

/// The metrics' names.
pub mod names {
    /// Counter by `queue`: jobs that were enqueued through an [`observed`](super::observed) store.
    pub const ENQUEUED: &str = "alkstore_jobs_enqueued_total";
    /// Counter by `queue`: jobs and deliveries that a worker claimed.
    pub const CLAIMED: &str = "alkstore_jobs_claimed_total";
    /// Counter by `queue` and `outcome`: how the jobs of a worker ended.
    pub const SETTLED: &str = "alkstore_jobs_settled_total";
    /// Counter by `queue`: claims that a worker lost.
    pub const LOST: &str = "alkstore_claims_lost_total";
    /// Histogram by `queue`, seconds: from the enqueue to the start of the first attempt.
    pub const WAIT: &str = "alkstore_job_wait_seconds";
    /// Histogram by `queue`, seconds: how long a handler ran.
    pub const RUN: &str = "alkstore_job_run_seconds";
    /// Gauge by `queue` and `state`: jobs in the store.
    pub const DEPTH: &str = "alkstore_queue_jobs";
    /// Gauge by `queue`, seconds: how long the job that has waited longest could be claimed.
    pub const LAG: &str = "alkstore_queue_lag_seconds";
    /// Gauge by `stream` and `consumer`: retained events behind the consumer's offset.
    pub const CONSUMER_LAG: &str = "alkstore_consumer_lag_events";
    /// Counter: ticks of the scheduler that a worker leads.
    pub const TICKS: &str = "alkstore_schedule_ticks_total";
    /// Counter: jobs that those ticks enqueued.
    pub const FIRED: &str = "alkstore_schedule_fired_total";
    /// Counter by `operation`: calls of the store that failed in a worker.
    pub const FAULTS: &str = "alkstore_worker_faults_total";
}

/// Sets the gauges of depth and lag once, from what the store holds. Lags of queues are counted
/// by this host's clock.
///
/// # Errors
///
/// What the engine meets.
///
/// # Cancel safety
///
/// Dropped, some gauges are set.
pub async fn sample(store: &(impl Store + ?Sized)) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a gauge for people; it decides nothing")]
    let now = SystemTime::now();
    for queue in store.queues().await? {
        let QueueStats { name, ready, delayed, claimed, dead, oldest_ready_at, .. } = queue;
        let states = [("ready", ready), ("delayed", delayed), ("claimed", claimed), ("dead", dead)];
        for (state, jobs) in states {
            gauge!(names::DEPTH, "queue" => name.clone(), "state" => state).set(number(jobs));
        }
        let lag = oldest_ready_at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        gauge!(names::LAG, "queue" => name).set(lag.as_secs_f64());
    }
    for stream in store.streams().await? {
        for consumer in stream.consumers {
            let labels = [("stream", stream.name.clone()), ("consumer", consumer.name)];
            gauge!(names::CONSUMER_LAG, &labels).set(number(consumer.lag));
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn number(count: u64) -> f64 {
    count as f64
}

/// The same store, which counts what is enqueued through it: alone, in batches, and in
/// transactions once they commit. Open it once and give it to everything that enqueues. A job
/// that a unique key turned away counts too; what schedules fire counts as
/// [`FIRED`](names::FIRED).
#[must_use]
pub fn observed(store: &(impl Store + ?Sized)) -> Arc<dyn Store> {
    Arc::new(Observed { inner: store.shared() })
}

fn enqueued(queue: &str, jobs: usize) {
    let jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
    counter!(names::ENQUEUED, "queue" => queue.to_owned()).increment(jobs);
}

#[derive(Clone)]
struct Observed {
    inner: Arc<dyn Store>,
}

struct WeakObserved {
    inner: Arc<dyn WeakStore>,
}

impl WeakStore for WeakObserved {
    fn upgrade(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Observed { inner: self.inner.upgrade()? }))
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }
}

macro_rules! forwarded {
    ($($store:ident { $($method:ident($($arg:ident: $type:ty),*) -> $result:ty;)* })*) => {$(
        #[async_trait]
        impl $store for Observed {
            $(
                async fn $method(&self $(, $arg: $type)*) -> $result {
                    self.inner.$method($($arg),*).await
                }
            )*
        }
    )*};
}

forwarded! {
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
    WakeStore {
        watch(topic: Topic) -> Result<Box<dyn Watch>>;
        sleep(duration: Duration) -> Result<()>;
    }
}

#[async_trait]
impl StoreBase for Observed {
    fn store_id(&self) -> StoreId {
        self.inner.store_id()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn weak(&self) -> Arc<dyn WeakStore> {
        Arc::new(WeakObserved { inner: self.inner.weak() })
    }

    async fn maintain_page(&self) -> Result<MaintenancePage> {
        self.inner.maintain_page().await
    }

    async fn shut_down(&self) -> Result<()> {
        self.inner.shut_down().await
    }
}

#[async_trait]
impl LockStore for Observed {
    async fn acquire_lock(
        &self,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        self.inner.acquire_lock(name, owner, ttl).await
    }

    async fn renew_lock(&self, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        self.inner.renew_lock(lock, ttl).await
    }

    async fn release_lock(&self, lock: &LockRef) -> Result<()> {
        self.inner.release_lock(lock).await
    }

    fn abandon_lock(&self, lock: &LockRef) {
        self.inner.abandon_lock(lock);
    }

    async fn held_locks(&self) -> Result<Vec<LockInfo>> {
        self.inner.held_locks().await
    }
}

#[async_trait]
impl QueueStore for Observed {
    async fn insert_jobs(
        &self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let ids = self.inner.insert_jobs(queue, opts, jobs).await?;
        enqueued(queue.as_str(), ids.len());
        Ok(ids)
    }

    async fn claim_jobs(
        &self,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        self.inner.claim_jobs(queue, worker, max).await
    }

    async fn settle_jobs(&self, items: Vec<Settlement>) -> Result<Vec<Result<Settled>>> {
        self.inner.settle_jobs(items).await
    }

    async fn cancel_job(&self, queue: &QueueName, id: JobId) -> Result<bool> {
        self.inner.cancel_job(queue, id).await
    }

    async fn find_job(&self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        self.inner.find_job(queue, id).await
    }

    async fn find_jobs(&self, queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        self.inner.find_jobs(queue, filter).await
    }

    async fn queue_stats(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStats>> {
        self.inner.queue_stats(queue).await
    }

    async fn requeue_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        self.inner.requeue_jobs(queue, which).await
    }

    async fn purge_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        self.inner.purge_jobs(queue, which).await
    }

    async fn set_queue_paused(&self, queue: &QueueName, paused: bool) -> Result<bool> {
        self.inner.set_queue_paused(queue, paused).await
    }
}

#[async_trait]
impl TxStore for Observed {
    async fn begin(&self) -> Result<Box<dyn EngineTx>> {
        let inner = self.inner.begin().await?;
        Ok(Box::new(ObservedTx { inner, enqueued: BTreeMap::new() }))
    }
}

/// A transaction that counts at its commit what was enqueued in it.
struct ObservedTx {
    inner: Box<dyn EngineTx>,
    enqueued: BTreeMap<String, usize>,
}

#[async_trait]
impl EngineTx for ObservedTx {
    async fn insert_jobs(
        &mut self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let ids = self.inner.insert_jobs(queue, opts, jobs).await?;
        *self.enqueued.entry(queue.to_string()).or_default() += ids.len();
        Ok(ids)
    }

    async fn settle_job(&mut self, item: Settlement) -> Result<Settled> {
        self.inner.settle_job(item).await
    }

    async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        self.inner.find_job(queue, id).await
    }

    async fn append_events(&mut self, stream: &StreamName, events: Vec<EventSpec>) -> Result<()> {
        self.inner.append_events(stream, events).await
    }

    async fn read_events(
        &mut self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        self.inner.read_events(stream, after, limit).await
    }

    async fn consumer_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        self.inner.consumer_offset(stream, consumer).await
    }

    async fn store_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.inner.store_offset(stream, consumer, offset).await
    }

    async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()> {
        self.inner.send_message(channel, payload).await
    }

    fn engine(&mut self) -> Option<&mut dyn Any> {
        self.inner.engine()
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.inner.commit().await?;
        self.enqueued.iter().for_each(|(queue, jobs)| enqueued(queue, *jobs));
        Ok(())
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.inner.rollback().await
    }
}

//! A store behind an `Arc` is a store: `Arc<dyn Store>` among them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::job::{Settled, Settlement};
use crate::lock::{Acquired, LockInfo, LockRef, LockStore};
use crate::name::{ChannelName, LocalName, LockName, QueueName, ScheduleName, StreamName};
use crate::notify::{Listener, NotifyStore};
use crate::payload::Payload;
use crate::queue::{
    Claimed, DeadSelection, JobFilter, JobId, JobRecord, JobSpec, QueueOpts, QueueStats, QueueStore,
};
use crate::schedule::{Schedule, ScheduleSpec, ScheduleStore, Tick};
use crate::store::{Limits, MaintenancePage, Store, StoreBase, StoreId, WeakStore};
use crate::stream::{Event, EventSpec, Offset, StreamInfo, StreamStore};
use crate::time::{Lease, Timestamp};
use crate::tx::{EngineTx, TxStore};
use crate::wake::{Topic, WakeStore, Watch};

#[async_trait]
impl<S: WakeStore + Send + Sync + ?Sized> WakeStore for Arc<S> {
    async fn watch(&self, topic: Topic) -> Result<Box<dyn Watch>> {
        (**self).watch(topic).await
    }

    async fn sleep(&self, duration: Duration) -> Result<()> {
        (**self).sleep(duration).await
    }
}

#[async_trait]
impl<S: QueueStore + Send + Sync + ?Sized> QueueStore for Arc<S> {
    async fn insert_jobs(
        &self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        (**self).insert_jobs(queue, opts, jobs).await
    }

    async fn claim_jobs(
        &self,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        (**self).claim_jobs(queue, worker, max).await
    }

    async fn settle_jobs(&self, items: Vec<Settlement>) -> Result<Vec<Result<Settled>>> {
        (**self).settle_jobs(items).await
    }

    async fn cancel_job(&self, queue: &QueueName, id: JobId) -> Result<bool> {
        (**self).cancel_job(queue, id).await
    }

    async fn find_job(&self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        (**self).find_job(queue, id).await
    }

    async fn find_jobs(&self, queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        (**self).find_jobs(queue, filter).await
    }

    async fn queue_stats(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStats>> {
        (**self).queue_stats(queue).await
    }

    async fn requeue_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        (**self).requeue_jobs(queue, which).await
    }

    async fn purge_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        (**self).purge_jobs(queue, which).await
    }

    async fn set_queue_paused(&self, queue: &QueueName, paused: bool) -> Result<bool> {
        (**self).set_queue_paused(queue, paused).await
    }
}

#[async_trait]
impl<S: StreamStore + Send + Sync + ?Sized> StreamStore for Arc<S> {
    async fn append_events(
        &self,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        (**self).append_events(stream, events).await
    }

    async fn read_events(
        &self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        (**self).read_events(stream, after, limit).await
    }

    async fn trim_stream(&self, stream: &StreamName, horizon: Offset) -> Result<u64> {
        (**self).trim_stream(stream, horizon).await
    }

    async fn stream_info(&self, stream: Option<&StreamName>) -> Result<Vec<StreamInfo>> {
        (**self).stream_info(stream).await
    }

    async fn consumer_offset(&self, stream: &StreamName, consumer: &LocalName) -> Result<Offset> {
        (**self).consumer_offset(stream, consumer).await
    }

    async fn store_offset(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        (**self).store_offset(stream, consumer, offset).await
    }

    async fn rewind_consumer(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        (**self).rewind_consumer(stream, consumer, offset).await
    }

    async fn delete_consumer(&self, stream: &StreamName, consumer: &LocalName) -> Result<bool> {
        (**self).delete_consumer(stream, consumer).await
    }
}

#[async_trait]
impl<S: NotifyStore + Send + Sync + ?Sized> NotifyStore for Arc<S> {
    async fn send_message(&self, channel: &ChannelName, payload: Payload) -> Result<()> {
        (**self).send_message(channel, payload).await
    }

    async fn open_listener(&self, channel: &ChannelName) -> Result<Listener> {
        (**self).open_listener(channel).await
    }
}

#[async_trait]
impl<S: LockStore + Send + Sync + ?Sized> LockStore for Arc<S> {
    async fn acquire_lock(
        &self,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        (**self).acquire_lock(name, owner, ttl).await
    }

    async fn renew_lock(&self, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        (**self).renew_lock(lock, ttl).await
    }

    async fn release_lock(&self, lock: &LockRef) -> Result<()> {
        (**self).release_lock(lock).await
    }

    fn abandon_lock(&self, lock: &LockRef) {
        (**self).abandon_lock(lock);
    }

    async fn held_locks(&self) -> Result<Vec<LockInfo>> {
        (**self).held_locks().await
    }
}

#[async_trait]
impl<S: ScheduleStore + Send + Sync + ?Sized> ScheduleStore for Arc<S> {
    async fn upsert_schedule(&self, spec: ScheduleSpec) -> Result<Schedule> {
        (**self).upsert_schedule(spec).await
    }

    async fn delete_schedule(&self, name: &ScheduleName) -> Result<bool> {
        (**self).delete_schedule(name).await
    }

    async fn list_schedules(&self) -> Result<Vec<Schedule>> {
        (**self).list_schedules().await
    }

    async fn set_schedule_paused(&self, name: &ScheduleName, paused: bool) -> Result<bool> {
        (**self).set_schedule_paused(name, paused).await
    }

    async fn tick_schedules(&self) -> Result<Tick> {
        (**self).tick_schedules().await
    }
}

#[async_trait]
impl<S: TxStore + Send + Sync + ?Sized> TxStore for Arc<S> {
    async fn begin(&self) -> Result<Box<dyn EngineTx>> {
        (**self).begin().await
    }
}

#[async_trait]
impl<S: StoreBase + Send + Sync + ?Sized> StoreBase for Arc<S> {
    fn store_id(&self) -> StoreId {
        (**self).store_id()
    }

    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn shared(&self) -> Arc<dyn Store> {
        (**self).shared()
    }

    fn weak(&self) -> Arc<dyn WeakStore> {
        (**self).weak()
    }

    async fn maintain_page(&self) -> Result<MaintenancePage> {
        (**self).maintain_page().await
    }

    async fn shut_down(&self) -> Result<()> {
        (**self).shut_down().await
    }
}

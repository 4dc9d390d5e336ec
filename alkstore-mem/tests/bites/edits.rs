//! Engines that are broken by one change to what goes in or comes out, the same inside and outside
//! of transactions.

use std::sync::Arc;

use alkstore_core::{
    Acquired, ChannelName, Claimed, EngineTx, Event, EventSpec, JobFilter, JobId, JobRecord,
    JobSpec, Lease, Limits, LocalName, LockInfo, LockName, Offset, Payload, QueueName, QueueOpts,
    QueueStats, Result, Schedule, ScheduleSpec, Settled, Settlement, Store, StreamInfo, StreamName,
    async_trait,
};
use alkstore_suite::fault::{Layer, TxLayer, layered_tx};

/// What is changed; nothing, unless it is set.
#[derive(Clone, Copy)]
pub(crate) struct Edits {
    pub(crate) job: fn(&QueueName, &mut QueueOpts, &mut JobSpec),
    pub(crate) most: fn(usize) -> usize,
    pub(crate) claimed: fn(&mut Claimed),
    pub(crate) settlement: fn(&mut Settlement),
    pub(crate) record: fn(&mut JobRecord),
    pub(crate) stats: fn(&mut Vec<QueueStats>),
    pub(crate) event: fn(&mut EventSpec),
    pub(crate) read: fn(&mut Vec<Event>),
    pub(crate) horizon: fn(Offset) -> Offset,
    pub(crate) streams: fn(&mut Vec<StreamInfo>),
    pub(crate) message: fn(&mut Payload),
    pub(crate) ttl: fn(Lease) -> Lease,
    pub(crate) locks: fn(&mut Vec<LockInfo>),
    pub(crate) schedule: fn(&mut ScheduleSpec),
    pub(crate) limits: fn(&mut Limits),
}

impl Edits {
    pub(crate) const NONE: Self = Self {
        job: |_, _, _| {},
        most: |max| max,
        claimed: |_| {},
        settlement: |_| {},
        record: |_| {},
        stats: |_| {},
        event: |_| {},
        read: |_| {},
        horizon: |offset| offset,
        streams: |_| {},
        message: |_| {},
        ttl: |ttl| ttl,
        locks: |_| {},
        schedule: |_| {},
        limits: |_| {},
    };

    /// The layer that makes these changes.
    pub(crate) fn layer(self) -> Arc<dyn Layer> {
        Arc::new(self)
    }

    fn jobs(&self, queue: &QueueName, opts: &QueueOpts, jobs: &mut [JobSpec]) -> QueueOpts {
        let mut edited = opts.clone();
        for job in jobs {
            edited = opts.clone();
            (self.job)(queue, &mut edited, job);
        }
        edited
    }
}

#[async_trait]
impl Layer for Edits {
    fn limits(&self, inner: &dyn Store) -> Limits {
        let mut limits = inner.limits();
        (self.limits)(&mut limits);
        limits
    }

    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        mut jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let opts = self.jobs(queue, opts, &mut jobs);
        inner.insert_jobs(queue, &opts, jobs).await
    }

    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let mut claimed = inner.claim_jobs(queue, worker, (self.most)(max)).await?;
        (self.claimed)(&mut claimed);
        Ok(claimed)
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        mut items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        items.iter_mut().for_each(self.settlement);
        inner.settle_jobs(items).await
    }

    async fn find_job(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        let mut record = inner.find_job(queue, id).await?;
        record.iter_mut().for_each(self.record);
        Ok(record)
    }

    async fn find_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        filter: &JobFilter,
    ) -> Result<Vec<JobRecord>> {
        let mut records = inner.find_jobs(queue, filter).await?;
        records.iter_mut().for_each(self.record);
        Ok(records)
    }

    async fn queue_stats(
        &self,
        inner: &dyn Store,
        queue: Option<&QueueName>,
    ) -> Result<Vec<QueueStats>> {
        let mut stats = inner.queue_stats(queue).await?;
        let whole = stats.clone();
        (self.stats)(&mut stats);
        // One queue is always answered with one record.
        Ok(if queue.is_some() && stats.len() != 1 { whole } else { stats })
    }

    async fn append_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        mut events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        events.iter_mut().for_each(self.event);
        inner.append_events(stream, events).await
    }

    async fn read_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let mut events = inner.read_events(stream, after, limit).await?;
        (self.read)(&mut events);
        Ok(events)
    }

    async fn trim_stream(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        horizon: Offset,
    ) -> Result<u64> {
        inner.trim_stream(stream, (self.horizon)(horizon)).await
    }

    async fn stream_info(
        &self,
        inner: &dyn Store,
        stream: Option<&StreamName>,
    ) -> Result<Vec<StreamInfo>> {
        let mut streams = inner.stream_info(stream).await?;
        let whole = streams.clone();
        (self.streams)(&mut streams);
        Ok(if stream.is_some() && streams.len() != 1 { whole } else { streams })
    }

    async fn send_message(
        &self,
        inner: &dyn Store,
        channel: &ChannelName,
        mut payload: Payload,
    ) -> Result<()> {
        (self.message)(&mut payload);
        inner.send_message(channel, payload).await
    }

    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        inner.acquire_lock(name, owner, (self.ttl)(ttl)).await
    }

    async fn held_locks(&self, inner: &dyn Store) -> Result<Vec<LockInfo>> {
        let mut locks = inner.held_locks().await?;
        (self.locks)(&mut locks);
        Ok(locks)
    }

    async fn upsert_schedule(&self, inner: &dyn Store, mut spec: ScheduleSpec) -> Result<Schedule> {
        (self.schedule)(&mut spec);
        inner.upsert_schedule(spec).await
    }

    async fn begin(&self, inner: &dyn Store) -> Result<Box<dyn EngineTx>> {
        Ok(layered_tx(inner.begin().await?, *self))
    }
}

#[async_trait]
impl TxLayer for Edits {
    async fn insert_jobs(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        opts: &QueueOpts,
        mut jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let opts = self.jobs(queue, opts, &mut jobs);
        inner.insert_jobs(queue, &opts, jobs).await
    }

    async fn settle_job(
        &mut self,
        inner: &mut dyn EngineTx,
        mut item: Settlement,
    ) -> Result<Settled> {
        (self.settlement)(&mut item);
        inner.settle_job(item).await
    }

    async fn find_job(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        let mut record = inner.find_job(queue, id).await?;
        record.iter_mut().for_each(self.record);
        Ok(record)
    }

    async fn append_events(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        mut events: Vec<EventSpec>,
    ) -> Result<()> {
        events.iter_mut().for_each(self.event);
        inner.append_events(stream, events).await
    }

    async fn send_message(
        &mut self,
        inner: &mut dyn EngineTx,
        channel: &ChannelName,
        mut payload: Payload,
    ) -> Result<()> {
        (self.message)(&mut payload);
        inner.send_message(channel, payload).await
    }
}

//! Engines that break a rule of transactions.

use std::sync::Arc;

use alkstore_core::{
    EngineTx, Event, EventSpec, JobId, JobRecord, JobSpec, LocalName, Offset, QueueName, QueueOpts,
    Result, SettleAction, Settled, Settlement, Store, StreamName, async_trait,
};
use alkstore_suite::Data;
use alkstore_suite::fault::{Layer, TxLayer, layered_tx};

/// How transactions go wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slip {
    /// They don't.
    Nothing,
    /// A settlement is made at commit and pins nothing before.
    NotPinned,
    /// A rollback keeps the jobs that were added.
    RollbackKeepsJobs,
    /// A rollback keeps the offset that was saved.
    RollbackKeepsOffset,
    /// A rollback commits.
    RollbackCommits,
    /// Dropping it keeps the jobs that were added.
    DropKeepsJobs,
    /// What is added is seen by others before the commit.
    DirtyReads,
    /// It doesn't see its own jobs.
    BlindToJobs,
    /// It doesn't see its own offsets.
    BlindToOffsets,
    /// Reading shows the events it staged.
    ShowsStaged,
    /// Events carry the instant of the commit.
    InstantOfCommit,
    /// Its events are lost.
    LosesEvents,
    /// Its offsets are lost.
    LosesOffsets,
    /// Its settlements aren't fenced.
    NotFenced,
    /// Its settlements are seen before the commit.
    SettlesAtOnce,
}

/// Stages badly.
pub(crate) struct StagesBadly {
    slip: Slip,
    data: Arc<dyn Data>,
}

impl StagesBadly {
    pub(crate) fn layer(slip: Slip, data: Arc<dyn Data>) -> Arc<dyn Layer> {
        Arc::new(Self { slip, data })
    }
}

#[async_trait]
impl Layer for StagesBadly {
    async fn begin(&self, inner: &dyn Store) -> Result<Box<dyn EngineTx>> {
        let tx = inner.begin().await?;
        let staged = Staged {
            slip: self.slip,
            data: self.data.clone(),
            store: inner.shared(),
            jobs: Vec::new(),
            events: Vec::new(),
            offsets: Vec::new(),
            settlements: Vec::new(),
            ended: false,
        };
        Ok(layered_tx(tx, staged))
    }
}

struct Staged {
    slip: Slip,
    data: Arc<dyn Data>,
    store: Arc<dyn Store>,
    jobs: Vec<(QueueName, QueueOpts, Vec<JobSpec>)>,
    events: Vec<(StreamName, Vec<EventSpec>)>,
    offsets: Vec<(StreamName, LocalName, Offset)>,
    settlements: Vec<Settlement>,
    ended: bool,
}

impl Staged {
    /// What a settlement would say.
    async fn foretold(&self, item: &Settlement) -> Settled {
        let now = self.data.now().await;
        match &item.action {
            SettleAction::Ack => Settled::Gone,
            SettleAction::Fail { .. } => Settled::Dead,
            SettleAction::Retry { delay, .. } => {
                Settled::Again(now.plus(delay.unwrap_or_default()))
            }
            SettleAction::Release { delay } => Settled::Again(now.plus(*delay)),
            SettleAction::Heartbeat { extend } => {
                Settled::Held(now.plus_millis(extend.as_millis()))
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.slip == Slip::DropKeepsJobs && !self.ended {
            let (store, jobs) = (self.store.clone(), std::mem::take(&mut self.jobs));
            tokio::spawn(async move {
                for (queue, opts, jobs) in jobs {
                    let _ = store.insert_jobs(&queue, &opts, jobs).await;
                }
            });
        }
    }
}

#[async_trait]
impl TxLayer for Staged {
    async fn insert_jobs(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        if self.slip == Slip::DirtyReads {
            return self.store.insert_jobs(queue, opts, jobs).await;
        }
        self.jobs.push((queue.clone(), opts.clone(), jobs.clone()));
        inner.insert_jobs(queue, opts, jobs).await
    }

    async fn settle_job(&mut self, inner: &mut dyn EngineTx, item: Settlement) -> Result<Settled> {
        match self.slip {
            Slip::NotPinned => {
                let held = self.store.find_job(&item.claim.queue, item.claim.id).await?;
                if held.is_none_or(|job| job.state != alkstore_core::JobState::Claimed) {
                    // What is lost already is said so at once.
                    return inner.settle_job(item).await;
                }
                let foretold = self.foretold(&item).await;
                self.settlements.push(item);
                Ok(foretold)
            }
            Slip::NotFenced => {
                let foretold = self.foretold(&item).await;
                inner.settle_job(item).await.or(Ok(foretold))
            }
            Slip::SettlesAtOnce => self.store.settle_jobs(vec![item]).await?.remove(0),
            _ => inner.settle_job(item).await,
        }
    }

    async fn find_job(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        match self.slip {
            Slip::BlindToJobs => self.store.find_job(queue, id).await,
            _ => inner.find_job(queue, id).await,
        }
    }

    async fn append_events(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<()> {
        match self.slip {
            Slip::InstantOfCommit => self.events.push((stream.clone(), events)),
            Slip::LosesEvents => {}
            Slip::ShowsStaged => {
                self.events.push((stream.clone(), events.clone()));
                inner.append_events(stream, events).await?;
            }
            _ => inner.append_events(stream, events).await?,
        }
        Ok(())
    }

    async fn read_events(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let mut events = inner.read_events(stream, after, limit).await?;
        if self.slip == Slip::ShowsStaged {
            let now = self.data.now().await;
            let staged = self.events.iter().filter(|(of, _)| of == stream);
            for spec in staged.flat_map(|(_, events)| events) {
                let offset = events.last().map_or(after, |event| event.offset).get() + 1;
                events.push(Event::new(Offset::try_from(offset)?, spec.clone(), now.into()));
            }
            events.truncate(limit);
        }
        Ok(events)
    }

    async fn consumer_offset(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        match self.slip {
            Slip::BlindToOffsets => self.store.consumer_offset(stream, consumer).await,
            _ => inner.consumer_offset(stream, consumer).await,
        }
    }

    async fn store_offset(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        inner.store_offset(stream, consumer, offset).await?;
        self.offsets.push((stream.clone(), consumer.clone(), offset));
        Ok(())
    }

    async fn commit(mut self: Box<Self>, mut inner: Box<dyn EngineTx>) -> Result<()> {
        self.ended = true;
        for item in std::mem::take(&mut self.settlements) {
            inner.settle_job(item).await?;
        }
        if self.slip == Slip::InstantOfCommit {
            for (stream, events) in std::mem::take(&mut self.events) {
                inner.append_events(&stream, events).await?;
            }
        }
        if self.slip == Slip::LosesOffsets && !self.offsets.is_empty() {
            let before = std::mem::take(&mut self.offsets);
            let mut known = Vec::new();
            for (stream, consumer, _) in before {
                let offset = self.store.consumer_offset(&stream, &consumer).await?;
                known.push((stream, consumer, offset));
            }
            inner.commit().await?;
            for (stream, consumer, offset) in known {
                self.store.rewind_consumer(&stream, &consumer, offset).await?;
            }
            return Ok(());
        }
        inner.commit().await
    }

    async fn rollback(mut self: Box<Self>, inner: Box<dyn EngineTx>) -> Result<()> {
        self.ended = true;
        if self.slip == Slip::RollbackCommits {
            return inner.commit().await;
        }
        inner.rollback().await?;
        if self.slip == Slip::RollbackKeepsJobs {
            for (queue, opts, jobs) in std::mem::take(&mut self.jobs) {
                self.store.insert_jobs(&queue, &opts, jobs).await?;
            }
        }
        if self.slip == Slip::RollbackKeepsOffset {
            for (stream, consumer, offset) in std::mem::take(&mut self.offsets) {
                self.store.store_offset(&stream, &consumer, offset).await?;
            }
        }
        Ok(())
    }
}

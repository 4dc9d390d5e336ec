//! Engines that miss wakes, or break a rule of closing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alkstore_core::{
    ChannelName, Claimed, DeadSelection, EngineTx, Error, EventSpec, JobId, JobSpec, Listener,
    LocalName, LockName, LockRef, Offset, QueueName, QueueOpts, Result, Schedule, ScheduleName,
    ScheduleSpec, Settled, Settlement, Store, StoreId, StreamName, Tick, Topic, Wait, Watch,
    WeakStore, async_trait,
};
use alkstore_suite::fault::{Layer, TxLayer, layered_tx};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Which wake is missed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    /// None.
    Nothing,
    /// That of an enqueue.
    Enqueue,
    /// That of a settlement that leaves a job claimable.
    Settle,
    /// That of a requeue.
    Requeue,
    /// That of a resumed queue.
    Resume,
    /// That of a published event.
    Publish,
    /// That of a released lock.
    Release,
    /// That of a dropped lock.
    Abandon,
    /// That of a changed schedule.
    Schedule,
    /// That of a job which a schedule fired.
    Fire,
    /// That of a commit.
    Commit,
    /// That of a commit, whose wakes come when its parts are staged.
    StageInstead,
    /// Whatever comes before the waiter waits.
    BeforeWait,
    /// The instant at which work falls due.
    Due,
    /// That a job is due which somebody holds.
    Blocked,
}

type Bell = watch::Sender<u64>;

/// Wakes every waiter by itself, for every reason but one.
pub(crate) struct Misses {
    miss: Miss,
    bell: Bell,
    watches: AtomicUsize,
}

fn ring(bell: &Bell) {
    bell.send_modify(|rung| *rung += 1);
}

impl Misses {
    pub(crate) fn layer(miss: Miss) -> Arc<dyn Layer> {
        Arc::new(Self { miss, bell: watch::Sender::new(0), watches: AtomicUsize::new(0) })
    }

    fn ring_unless(&self, miss: Miss) {
        if self.miss != miss {
            ring(&self.bell);
        }
    }
}

#[async_trait]
impl Layer for Misses {
    async fn watch(&self, inner: &dyn Store, _: Topic) -> Result<Box<dyn Watch>> {
        // Of the engine's own wakes none is for this name.
        let inner = inner.watch(Topic::Lock(LockName::stored("nobody takes this"))).await?;
        self.watches.fetch_add(1, Ordering::Relaxed);
        let late = (self.miss == Miss::BeforeWait).then(|| self.bell.clone());
        let deaf = matches!(self.miss, Miss::Due | Miss::Blocked);
        Ok(Box::new(Heard { inner, rung: self.bell.subscribe(), late, deaf }))
    }

    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let ids = inner.insert_jobs(queue, opts, jobs).await?;
        self.ring_unless(Miss::Enqueue);
        Ok(ids)
    }

    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let mut claimed = inner.claim_jobs(queue, worker, max).await?;
        if self.miss == Miss::BeforeWait
            && claimed.jobs.is_empty()
            && self.watches.load(Ordering::Relaxed) > 0
        {
            tokio::task::yield_now().await;
        }
        if !claimed.jobs.is_empty() {
            // It may have taken in more than it handed out.
            ring(&self.bell);
        }
        if self.miss == Miss::Due {
            claimed.next_due = None;
        }
        if self.miss == Miss::Blocked {
            claimed.blocked = false;
        }
        Ok(claimed)
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let results = inner.settle_jobs(items).await?;
        self.ring_unless(Miss::Settle);
        Ok(results)
    }

    async fn requeue_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<u64> {
        let requeued = inner.requeue_jobs(queue, which).await?;
        self.ring_unless(Miss::Requeue);
        Ok(requeued)
    }

    async fn set_queue_paused(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        paused: bool,
    ) -> Result<bool> {
        let changed = inner.set_queue_paused(queue, paused).await?;
        self.ring_unless(Miss::Resume);
        Ok(changed)
    }

    async fn append_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        let offsets = inner.append_events(stream, events).await?;
        self.ring_unless(Miss::Publish);
        Ok(offsets)
    }

    async fn release_lock(&self, inner: &dyn Store, lock: &LockRef) -> Result<()> {
        inner.release_lock(lock).await?;
        self.ring_unless(Miss::Release);
        Ok(())
    }

    fn abandon_lock(&self, inner: &dyn Store, lock: &LockRef) {
        inner.abandon_lock(lock);
        self.ring_unless(Miss::Abandon);
    }

    async fn upsert_schedule(&self, inner: &dyn Store, spec: ScheduleSpec) -> Result<Schedule> {
        let schedule = inner.upsert_schedule(spec).await?;
        self.ring_unless(Miss::Schedule);
        Ok(schedule)
    }

    async fn set_schedule_paused(
        &self,
        inner: &dyn Store,
        name: &ScheduleName,
        paused: bool,
    ) -> Result<bool> {
        let changed = inner.set_schedule_paused(name, paused).await?;
        self.ring_unless(Miss::Schedule);
        Ok(changed)
    }

    async fn delete_schedule(&self, inner: &dyn Store, name: &ScheduleName) -> Result<bool> {
        let known = inner.delete_schedule(name).await?;
        self.ring_unless(Miss::Schedule);
        Ok(known)
    }

    async fn tick_schedules(&self, inner: &dyn Store) -> Result<Tick> {
        let tick = inner.tick_schedules().await?;
        if tick.fired > 0 {
            self.ring_unless(Miss::Fire);
        }
        Ok(tick)
    }

    async fn begin(&self, inner: &dyn Store) -> Result<Box<dyn EngineTx>> {
        let tx = MissesInTx { miss: self.miss, bell: self.bell.clone() };
        Ok(layered_tx(inner.begin().await?, tx))
    }
}

struct Heard {
    inner: Box<dyn Watch>,
    rung: watch::Receiver<u64>,
    late: Option<Bell>,
    /// Whether a wake for no reason is one too many: who moves the clock sends some.
    deaf: bool,
}

#[async_trait]
impl Watch for Heard {
    async fn changed(&mut self, wait: Wait) -> Result<()> {
        if let Some(bell) = &self.late {
            self.rung = bell.subscribe();
        }
        let timed = wait.until.is_some() || wait.within.is_some();
        loop {
            tokio::select! {
                changed = self.inner.changed(wait) => {
                    if changed.is_err() || timed || !self.deaf {
                        return changed;
                    }
                }
                Ok(()) = self.rung.changed() => return Ok(()),
            }
        }
    }
}

struct MissesInTx {
    miss: Miss,
    bell: Bell,
}

impl MissesInTx {
    fn staged(&self) {
        if self.miss == Miss::StageInstead {
            ring(&self.bell);
        }
    }
}

#[async_trait]
impl TxLayer for MissesInTx {
    async fn insert_jobs(
        &mut self,
        inner: &mut dyn EngineTx,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let ids = inner.insert_jobs(queue, opts, jobs).await?;
        self.staged();
        Ok(ids)
    }

    async fn append_events(
        &mut self,
        inner: &mut dyn EngineTx,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<()> {
        inner.append_events(stream, events).await?;
        self.staged();
        Ok(())
    }

    async fn commit(self: Box<Self>, inner: Box<dyn EngineTx>) -> Result<()> {
        inner.commit().await?;
        if !matches!(self.miss, Miss::Commit | Miss::StageInstead) {
            ring(&self.bell);
        }
        Ok(())
    }
}

/// How closing goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// Nothing closes.
    Never,
    /// Every store on the data closes.
    TooMuch,
    /// Closing again is an error.
    Once,
    /// Who waits isn't told.
    WaitersHang,
    /// Not even the last handle's drop closes.
    Leaks,
}

/// Closes badly.
pub(crate) struct ClosesBadly {
    close: Close,
    open: Mutex<Vec<Arc<dyn WeakStore>>>,
    leaked: Mutex<HashMap<StoreId, Arc<dyn Store>>>,
    closed: Mutex<HashSet<StoreId>>,
}

impl ClosesBadly {
    pub(crate) fn layer(close: Close) -> Arc<dyn Layer> {
        Arc::new(Self {
            close,
            open: Mutex::default(),
            leaked: Mutex::default(),
            closed: Mutex::default(),
        })
    }
}

#[async_trait]
impl Layer for ClosesBadly {
    fn limits(&self, inner: &dyn Store) -> alkstore_core::Limits {
        let mut open = self.open.lock();
        if open.len() < 64 {
            open.push(inner.weak());
        }
        if self.close == Close::Leaks {
            self.leaked.lock().entry(inner.store_id()).or_insert_with(|| inner.shared());
        }
        inner.limits()
    }

    async fn shut_down(&self, inner: &dyn Store) -> Result<()> {
        let first = self.closed.lock().insert(inner.store_id());
        match self.close {
            Close::Never => Ok(()),
            Close::Once if !first => Err(Error::Closed),
            Close::TooMuch => {
                let open: Vec<_> = self.open.lock().drain(..).collect();
                for store in open.iter().filter_map(|open| open.upgrade()) {
                    store.shut_down().await?;
                }
                inner.shut_down().await
            }
            _ => inner.shut_down().await,
        }
    }

    async fn open_listener(&self, inner: &dyn Store, channel: &ChannelName) -> Result<Listener> {
        self.limits(inner);
        inner.open_listener(channel).await
    }

    async fn watch(&self, inner: &dyn Store, topic: Topic) -> Result<Box<dyn Watch>> {
        self.limits(inner);
        let inner = inner.watch(topic).await?;
        Ok(if self.close == Close::WaitersHang { Box::new(Deaf(inner)) } else { inner })
    }
}

struct Deaf(Box<dyn Watch>);

#[async_trait]
impl Watch for Deaf {
    async fn changed(&mut self, wait: Wait) -> Result<()> {
        match self.0.changed(wait).await {
            Err(Error::Closed) => std::future::pending().await,
            changed => changed,
        }
    }
}

/// Sleeping on the engine's clock ends at once.
pub(crate) struct NeverSleeps;

#[async_trait]
impl Layer for NeverSleeps {
    async fn sleep(&self, _: &dyn Store, _: Duration) -> Result<()> {
        tokio::task::yield_now().await;
        Ok(())
    }
}

//! Rows of docs/architecture/schedule.md.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alkstore_core::{
    Acquired, Error, Headers, JobFilter, JobRecord, Lease, LocalName, LockInfo, LockName, LockRef,
    Result, SCHEDULER_TTL, Schedule, ScheduleOpts, StopToken, Store, StoreExt, Tick, Timestamp,
    Topic, Wait, Watch, async_trait,
};

use crate::cx::{Cx, Task};
use crate::fault::{Layer, layered};

mod fire;
mod grid;
mod names;
mod pause;
mod run;
mod spec;
mod standby;
mod tick;

pub(crate) use self::fire::*;
pub(crate) use self::grid::*;
pub(crate) use self::names::*;
pub(crate) use self::pause::*;
pub(crate) use self::run::*;
pub(crate) use self::spec::*;
pub(crate) use self::standby::*;
pub(crate) use self::tick::*;

const QUEUE: &str = "reports";
const LEASE: &str = "__alkstore_scheduler";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Registers a schedule whose jobs go to [`QUEUE`] and carry its name.
async fn every(store: &Arc<dyn Store>, name: &str, spec: &str) -> Schedule {
    store.schedule(name, spec, QUEUE, name, ScheduleOpts::new()).await.unwrap()
}

/// How many jobs one tick fires.
async fn tick(store: &Arc<dyn Store>) -> u64 {
    store.tick_schedules().await.unwrap().fired
}

async fn find(store: &Arc<dyn Store>, name: &str) -> Schedule {
    let known = store.schedules().await.unwrap();
    known.into_iter().find(|schedule| schedule.name == name).expect("a schedule of that name")
}

async fn next_of(store: &Arc<dyn Store>, name: &str) -> Timestamp {
    find(store, name).await.next_at.into()
}

/// The jobs of [`QUEUE`], by id.
async fn fired(store: &Arc<dyn Store>) -> Vec<JobRecord> {
    store.queue(QUEUE).unwrap().jobs(JobFilter::new().limit(100_000)).await.unwrap()
}

/// The boundary that a job was fired for, as its header says.
fn boundary(job: &JobRecord) -> Timestamp {
    let header = job.headers.get(Headers::BOUNDARY).expect("a fired job names its boundary");
    Timestamp::from_millis(header.parse().expect("a boundary in milliseconds"))
}

/// The boundaries fired for so far, by id.
async fn boundaries(store: &Arc<dyn Store>) -> Vec<Timestamp> {
    fired(store).await.iter().map(boundary).collect()
}

/// Instants on a grid.
fn grid(anchor: Timestamp, period: Duration, ks: impl IntoIterator<Item = u32>) -> Vec<Timestamp> {
    ks.into_iter().map(|k| anchor.plus(period * k)).collect()
}

/// The scheduler's lease as any handle sees it.
async fn lease(store: &Arc<dyn Store>) -> Option<LockInfo> {
    store.locks().await.unwrap().into_iter().find(|lock| lock.name == LEASE)
}

/// Takes the scheduler's lease as a runner would that then does nothing.
async fn hold_lease(store: &Arc<dyn Store>) -> LockRef {
    let name = LockName::scheduler();
    let owner = LocalName::new("another runner").unwrap();
    let ttl = Lease::new("ttl", SCHEDULER_TTL).unwrap();
    match store.acquire_lock(&name, &owner, ttl).await.unwrap() {
        Acquired::Held { token, .. } => LockRef { name, token },
        Acquired::Busy { until } => panic!("the lease is held until {until:?}"),
    }
}

/// A runner beside the row.
struct Runner {
    stop: StopToken,
    task: Task<Result<()>>,
}

impl Runner {
    fn start(cx: &Cx, store: &Arc<dyn Store>) -> Self {
        let (stop, store) = (StopToken::new(), store.clone());
        let token = stop.clone();
        Self { stop, task: cx.spawn(async move { store.run_schedules(token).await }) }
    }

    fn standby(cx: &Cx, store: &Arc<dyn Store>) -> Self {
        let (stop, store) = (StopToken::new(), store.clone());
        let token = stop.clone();
        Self { stop, task: cx.spawn(async move { store.run_schedules_standby(token).await }) }
    }

    /// A runner that leads and whose first tick is done, a second after the call.
    async fn leading(cx: &Cx, store: &Arc<dyn Store>) -> Self {
        store.schedule("tick", "@every 1s", "ticks", &1, ScheduleOpts::new()).await.unwrap();
        cx.advance(secs(1)).await;
        let runner = Self::start(cx, store);
        ticked(cx, store).await;
        runner
    }

    async fn stop(self) -> Result<()> {
        self.stop.stop();
        self.task.join().await
    }
}

/// Waits until the schedule of [`Runner::leading`] has fired.
async fn ticked(cx: &Cx, store: &Arc<dyn Store>) {
    let ticks = store.queue("ticks").unwrap();
    cx.until(|| async { ticks.stats().await.unwrap().ready > 0 }).await;
}

/// Counts what a runner asks of the engine, and answers with faults instead where it has any.
#[derive(Default)]
struct Script {
    ticks: AtomicUsize,
    acquisitions: AtomicUsize,
    /// For the next ticks; `None` lets one through.
    tick_faults: Mutex<VecDeque<Option<Error>>>,
    renewal_faults: Mutex<VecDeque<Error>>,
    acquisition_faults: Mutex<VecDeque<Error>>,
    last_wait: Arc<Mutex<Option<Wait>>>,
    pauses: Mutex<Vec<Duration>>,
}

impl Script {
    fn over(self, store: &Arc<dyn Store>) -> (Arc<Self>, Arc<dyn Store>) {
        let script = Arc::new(self);
        (script.clone(), layered(store.clone(), script))
    }

    fn ticks(&self) -> usize {
        self.ticks.load(Ordering::SeqCst)
    }

    /// How long the watch on the schedules was last asked to wait.
    fn last_wait(&self) -> Option<Wait> {
        *self.last_wait.lock().unwrap()
    }

    fn acquisitions(&self) -> usize {
        self.acquisitions.load(Ordering::SeqCst)
    }

    /// Every pause that was asked for, the oldest first.
    fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().unwrap().clone()
    }
}

/// A watch that notes how long it is asked to wait.
struct NotingWatch {
    inner: Box<dyn Watch>,
    last_wait: Arc<Mutex<Option<Wait>>>,
}

#[async_trait]
impl Watch for NotingWatch {
    async fn changed(&mut self, wait: Wait) -> Result<()> {
        *self.last_wait.lock().unwrap() = Some(wait);
        self.inner.changed(wait).await
    }
}

fn next_fault<T>(faults: &Mutex<VecDeque<T>>) -> Option<T> {
    faults.lock().unwrap().pop_front()
}

#[async_trait]
impl Layer for Script {
    async fn tick_schedules(&self, inner: &dyn Store) -> Result<Tick> {
        let fault = next_fault(&self.tick_faults).flatten();
        let ticked = match fault {
            Some(fault) => Err(fault),
            None => inner.tick_schedules().await,
        };
        self.ticks.fetch_add(1, Ordering::SeqCst);
        ticked
    }

    async fn watch(&self, inner: &dyn Store, topic: Topic) -> Result<Box<dyn Watch>> {
        let noted = topic == Topic::Schedules;
        let inner = inner.watch(topic).await?;
        let last_wait = self.last_wait.clone();
        Ok(if noted { Box::new(NotingWatch { inner, last_wait }) } else { inner })
    }

    async fn sleep(&self, inner: &dyn Store, duration: Duration) -> Result<()> {
        self.pauses.lock().unwrap().push(duration);
        inner.sleep(duration).await
    }

    async fn renew_lock(&self, inner: &dyn Store, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        match next_fault(&self.renewal_faults) {
            Some(fault) => Err(fault),
            None => inner.renew_lock(lock, ttl).await,
        }
    }

    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        self.acquisitions.fetch_add(1, Ordering::SeqCst);
        match next_fault(&self.acquisition_faults) {
            Some(fault) => Err(fault),
            None => inner.acquire_lock(name, owner, ttl).await,
        }
    }
}

/// So many retryable errors, numbered from 1.
fn unavailable(numbers: impl IntoIterator<Item = u32>) -> Vec<Error> {
    numbers.into_iter().map(|n| Error::unavailable(format!("fault {n}"))).collect()
}

fn is_leadership_lost(result: &Result<()>) -> bool {
    matches!(result, Err(Error::LeadershipLost { lock }) if lock == LEASE)
}

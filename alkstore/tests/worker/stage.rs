//! What a test works with: a store of each engine in turn, a clock to move, and running workers.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore::BoxFuture;
use alkstore::prelude::*;
use alkstore::worker::WorkerBuilder;
use alkstore_suite::{Data, OpenOptions, StoreFactory};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::engines;

/// Runs a test on fresh data of each engine in turn.
pub(crate) async fn on_every_engine(test: impl AsyncFn(Stage)) {
    for (engine, factory) in engines() {
        println!("on {engine}");
        test(Stage::new(factory).await).await;
    }
}

pub(crate) struct Stage {
    factory: Arc<dyn StoreFactory>,
    data: Arc<dyn Data>,
    pub(crate) store: Arc<dyn Store>,
}

impl Stage {
    async fn new(factory: Arc<dyn StoreFactory>) -> Self {
        let data = factory.fresh().await;
        let store = data.open(OpenOptions::default()).await.unwrap();
        Self { factory, data, store }
    }

    /// A further open on the same data.
    pub(crate) async fn second(&self) -> Arc<dyn Store> {
        self.data.open(OpenOptions::default()).await.unwrap()
    }

    pub(crate) fn queue(&self, name: &str) -> Queue {
        self.store.queue(name).unwrap()
    }

    /// Moves the clock.
    pub(crate) async fn advance(&self, by: Duration) {
        self.data.advance(by).await;
    }

    /// Lets what is ready to run run.
    pub(crate) async fn pause(&self) {
        self.factory.sleep(Duration::from_millis(1)).await;
    }

    /// Looks for a short real time that something doesn't happen.
    pub(crate) async fn settle(&self) {
        self.factory.sleep(Duration::from_millis(30)).await;
    }

    /// Awaits what has to happen.
    pub(crate) async fn within<T>(&self, future: impl Future<Output = T>) -> T {
        let patience = self.factory.patience();
        tokio::select! {
            value = future => value,
            () = self.factory.sleep(patience) => panic!("nothing happened within {patience:?}"),
        }
    }

    /// Waits until a condition holds, without moving the clock.
    pub(crate) async fn until(&self, mut holds: impl AsyncFnMut() -> bool) {
        self.within(async {
            while !holds().await {
                self.pause().await;
            }
        })
        .await;
    }

    /// Moves the clock on until a condition holds.
    pub(crate) async fn advancing(&self, step: Duration, mut holds: impl AsyncFnMut() -> bool) {
        self.within(async {
            while !holds().await {
                self.advance(step).await;
                self.pause().await;
            }
        })
        .await;
    }

    /// As [`advancing`](Self::advancing), with time after each step for everything that waits on
    /// the clock to come to look and to wait again.
    pub(crate) async fn advancing_slowly(
        &self,
        step: Duration,
        mut holds: impl AsyncFnMut() -> bool,
    ) {
        self.within(async {
            while !holds().await {
                self.advance(step).await;
                self.settle().await;
            }
        })
        .await;
    }

    /// Moves the clock on by this much, a third of a second at a time at most, so that whoever
    /// waits in between comes to look.
    pub(crate) async fn advance_slowly(&self, by: Duration) {
        let mut left = by;
        while !left.is_zero() {
            let step = left.min(by / 30).max(Duration::from_millis(1));
            self.advance(step).await;
            self.pause().await;
            self.pause().await;
            left = left.saturating_sub(step);
        }
    }

    pub(crate) async fn job(&self, queue: &str, id: JobId) -> Option<JobRecord> {
        self.queue(queue).get_job(id).await.unwrap()
    }

    /// Waits until a job was settled so that it is pending, dead or gone.
    pub(crate) async fn settled(&self, queue: &str, id: JobId) -> Option<JobRecord> {
        self.until(async || match self.job(queue, id).await {
            None => true,
            Some(job) => {
                let tried = job.last_error.is_some() || job.ready_at != job.enqueued_at;
                job.state != JobState::Claimed && tried
            }
        })
        .await;
        self.job(queue, id).await
    }
}

/// A worker that runs beside the test.
pub(crate) struct Run {
    pub(crate) worker: Worker,
    pub(crate) stop: StopToken,
    task: JoinHandle<Result<()>>,
}

impl Run {
    pub(crate) fn start(builder: WorkerBuilder) -> Self {
        let worker = builder.build().unwrap();
        let (stop, running) = (StopToken::new(), worker.clone());
        let token = stop.clone();
        let task = tokio::spawn(async move { running.run(token).await });
        Self { worker, stop, task }
    }

    /// Drops the run where it stands.
    pub(crate) fn cancel(self) {
        self.task.abort();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// What the run returned.
    pub(crate) async fn ended(self, stage: &Stage) -> Result<()> {
        stage.within(self.task).await.unwrap()
    }

    pub(crate) async fn stop(self, stage: &Stage) -> Result<()> {
        self.stop.stop();
        self.ended(stage).await
    }
}

/// Where handlers wait until the test lets them on, and how many of them there are.
#[derive(Clone)]
pub(crate) struct Gate {
    open: Arc<Semaphore>,
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            open: Arc::new(Semaphore::new(0)),
            inside: Arc::default(),
            most: Arc::default(),
            dropped: Arc::default(),
        }
    }

    /// Waits to be let on.
    pub(crate) async fn pass(&self) {
        struct Visit<'a>(&'a Gate, bool);
        impl Drop for Visit<'_> {
            fn drop(&mut self) {
                self.0.inside.fetch_sub(1, Ordering::SeqCst);
                if !self.1 {
                    self.0.dropped.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        let mut visit = Visit(self, false);
        self.open.acquire().await.unwrap().forget();
        visit.1 = true;
    }

    pub(crate) fn let_on(&self, count: usize) {
        self.open.add_permits(count);
    }

    /// How many wait.
    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    /// How many waited at once at most.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// How many were dropped while they waited.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::SeqCst)
    }
}

/// What handlers write down.
#[derive(Clone)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn add(&self, entry: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Jobs to be added in one call, numbered.
pub(crate) fn numbered(range: std::ops::Range<u32>) -> Vec<NewJob> {
    range.map(|n| NewJob::new(&n).unwrap()).collect()
}

/// A handler of numbers that waits at the gate.
pub(crate) fn gated(gate: &Gate) -> impl Fn(u32) -> BoxFuture<'static, ()> + Send + Sync + use<> {
    let gate = gate.clone();
    move |_| {
        let gate = gate.clone();
        Box::pin(async move { gate.pass().await })
    }
}

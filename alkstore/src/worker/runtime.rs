//! One run of a worker: what its parts share, how it begins and how it ends.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{Error, Outbox, Queue, Result, SettleAction, StopToken, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::builder::Options;
use super::handler::Handle;
use super::health::{Pulse, WorkerState};
use super::keep::Keeper;
use super::meter::LaneMeter;
use super::outbox::Deliver;
use super::report::{self, Ended};
use super::settle::{Pending, Settler};
use super::slots::{LaneLimits, Slots, Waiting};
use super::time::jittered;
use super::{fetch, keep, outbox, run, settle, side};

/// Where a lane's work comes from, and what handles it.
#[derive(Clone)]
pub(super) enum Work {
    Queue(Queue, Handle),
    Outbox(Outbox, Deliver),
}

/// A queue or an outbox of the worker.
pub(super) struct Lane {
    /// The queue's name; of an outbox, that of the queue behind it.
    pub(super) name: String,
    pub(super) work: Work,
    pub(super) limits: LaneLimits,
    pub(super) timeout: Option<Duration>,
    pub(super) meter: LaneMeter,
}

impl Lane {
    pub(super) fn timed_out(&self) -> String {
        format!("the handler timed out after {:?}", self.timeout.unwrap_or_default())
    }
}

pub(super) struct Runtime {
    pub(super) store: Arc<dyn Store>,
    pub(super) worker: String,
    pub(super) lanes: Vec<Lane>,
    pub(super) slots: Slots,
    pub(super) keeper: Keeper,
    pub(super) settler: Settler,
    pub(super) health: Arc<Pulse>,
    /// The application's signal.
    pub(super) stop: StopToken,
    /// Nothing is claimed any more.
    pub(super) quit: CancellationToken,
    /// Handlers that still run are given up.
    pub(super) halt: CancellationToken,
    /// Everything ends where it stands.
    kill: CancellationToken,
    /// What claims, and what runs beside the queues.
    sources: TaskTracker,
    pub(super) runners: TaskTracker,
    pub(super) services: TaskTracker,
    error: Mutex<Option<Error>>,
    failed: CancellationToken,
    poll: Duration,
    grace: Duration,
}

impl Runtime {
    pub(super) fn new(
        options: &Options,
        health: Arc<Pulse>,
        stop: StopToken,
    ) -> (Arc<Self>, keep::Asks) {
        let lanes: Vec<_> = options
            .lanes
            .iter()
            .map(|lane| Lane {
                name: lane.name.clone(),
                work: lane.work.clone(),
                limits: lane.limits(options),
                timeout: lane.opts.timeout,
                meter: LaneMeter::new(&lane.name),
            })
            .collect();
        let (keeper, asks) = Keeper::new();
        // However many queues there are, an idle worker asks at most once a second.
        let spread = Duration::from_secs(u64::try_from(lanes.len()).unwrap_or(u64::MAX));
        let rt = Self {
            store: options.store.clone(),
            worker: options.worker_id.clone(),
            slots: Slots::new(options.concurrency, lanes.iter().map(|lane| lane.limits)),
            lanes,
            keeper,
            settler: Settler::default(),
            health,
            stop,
            quit: CancellationToken::new(),
            halt: CancellationToken::new(),
            kill: CancellationToken::new(),
            sources: TaskTracker::new(),
            runners: TaskTracker::new(),
            services: TaskTracker::new(),
            error: Mutex::default(),
            failed: CancellationToken::new(),
            poll: options.poll.max(spread.saturating_mul(4) / 3),
            grace: options.grace,
        };
        (Arc::new(rt), asks)
    }

    /// Spawns a part of the worker. Its error, or its panic, ends the run.
    pub(super) fn spawn(
        self: &Arc<Self>,
        tracker: &TaskTracker,
        part: &'static str,
        future: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let rt = self.clone();
        tracker.spawn(async move {
            match rt.kill.run_until_cancelled(run::caught(future)).await {
                None | Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => rt.fail(error),
                Some(Err(panic)) => rt.fail(Error::engine(format!("{part} ended: {panic}"))),
            }
        });
    }

    fn fail(&self, error: Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.cancel();
    }

    /// What ended the run, once something did.
    async fn failure(&self) -> Error {
        self.failed.cancelled().await;
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.unwrap_or(Error::Closed)
    }

    /// Runs a job that has its slot.
    pub(super) fn start(self: &Arc<Self>, waiting: Waiting) {
        self.spawn(&self.runners, "a runner", run::run(self.clone(), waiting));
    }

    pub(super) fn next(self: &Arc<Self>, waiting: Option<Waiting>) {
        waiting.into_iter().for_each(|waiting| self.start(waiting));
    }

    pub(super) fn settle(&self, pending: Pending) {
        pending.claim.settling();
        if self.settler.push(pending) {
            self.slots.clog(true);
        }
    }

    fn give_back(&self, waiting: Waiting) {
        let action = SettleAction::Release { delay: Duration::ZERO };
        self.settle(Pending::new(waiting.claim, action, Ended::Released, Duration::ZERO));
    }

    /// Gives back what has waited too long for a slot; says whether something still waits.
    pub(super) fn give_back_stale(&self) -> bool {
        let (stale, left) = self.slots.stale();
        stale.into_iter().for_each(|waiting| self.give_back(waiting));
        left
    }

    pub(super) fn fault(&self, operation: &'static str, error: &Error) {
        let in_a_row = self.health.fault(operation, error);
        report::fault(operation, error, in_a_row);
    }

    /// How long to wait for a wake before looking without one.
    pub(super) fn poll(&self) -> Duration {
        jittered(self.poll)
    }

    /// Awaits a future unless the worker stops claiming first.
    pub(super) async fn unless_quit<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.quit.run_until_cancelled(future).await
    }

    /// Awaits a handler for as long as its lane allows.
    pub(super) async fn in_time<T>(&self, lane: &Lane, work: impl Future<Output = T>) -> Option<T> {
        let Some(timeout) = lane.timeout else { return Some(work.await) };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            value = &mut work => Some(value),
            slept = self.store.sleep(timeout) => match slept {
                Ok(()) => None,
                // The store is closed, and the worker about to end.
                Err(_) => Some(work.await),
            }
        }
    }

    fn begin(self: &Arc<Self>, options: &Options, asks: keep::Asks) {
        let rt = || self.clone();
        self.spawn(&self.services, "heartbeats", keep::run(rt(), asks));
        self.spawn(&self.services, "settlements", settle::run(rt()));
        for (place, lane) in self.lanes.iter().enumerate() {
            match lane.work.clone() {
                Work::Queue(queue, handler) => {
                    self.source("a queue's claims", fetch::run(rt(), place, queue, handler));
                }
                Work::Outbox(outbox, deliver) => {
                    self.source("an outbox's claims", outbox::run(rt(), place, outbox, deliver));
                }
            }
        }
        if options.schedules {
            self.spawn(&self.sources, "schedules", side::schedules(rt()));
        }
        if let Some(every) = options.maintenance {
            self.spawn(&self.sources, "maintenance", side::maintenance(rt(), every));
        }
        #[cfg(feature = "metrics")]
        if let Some(every) = options.samples {
            self.spawn(&self.sources, "samples", side::samples(rt(), every));
        }
    }

    fn source(
        self: &Arc<Self>,
        part: &'static str,
        claiming: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let rt = self.clone();
        let until_quit = async move { rt.unless_quit(claiming).await.unwrap_or(Ok(())) };
        self.spawn(&self.sources, part, until_quit);
    }

    /// Stops claiming, gives back what hasn't begun, waits for what has, and settles.
    async fn stop_gracefully(self: &Arc<Self>) -> Result<()> {
        let mut unstarted = self.slots.stop();
        self.quit.cancel();
        self.sources.close();
        self.sources.wait().await;
        // What a claim brought before it was dropped.
        unstarted.extend(self.slots.stop());
        report::stopping(&self.worker, self.slots.counts().0, unstarted.len());
        unstarted.into_iter().for_each(|waiting| self.give_back(waiting));
        self.runners.close();
        let in_time = tokio::select! {
            biased;
            () = self.runners.wait() => true,
            slept = self.store.sleep(self.grace) => {
                slept?;
                false
            }
        };
        if !in_time {
            self.halt.cancel();
            self.runners.wait().await;
        }
        self.settler.close();
        self.drained().await
    }

    /// Waits until everything is settled, at most as long as handlers had.
    async fn drained(&self) -> Result<()> {
        tokio::select! {
            biased;
            () = self.settler.empty() => Ok(()),
            slept = self.store.sleep(self.grace) => {
                slept?;
                let unsettled = self.settler.unsettled();
                Err(Error::unavailable(format!(
                    "the worker stopped with {unsettled} jobs whose outcome could not be written \
                     within the grace of {:?}; they are delivered again",
                    self.grace,
                )))
            }
        }
    }

    async fn end(&self) {
        self.kill.cancel();
        for tracker in [&self.sources, &self.runners, &self.services] {
            tracker.close();
            tracker.wait().await;
        }
    }

    /// Runs until it is stopped or can't go on.
    pub(super) async fn run(self: Arc<Self>, options: &Options, asks: keep::Asks) -> Result<()> {
        // Where this future is dropped, the tasks end all the same.
        let _kill = self.kill.clone().drop_guard();
        report::started(&self.worker, &self.lanes, options.concurrency);
        self.begin(options, asks);
        let outcome = tokio::select! {
            biased;
            error = self.failure() => Err(error),
            () = self.stop.stopped() => {
                self.health.set(WorkerState::Stopping);
                tokio::select! {
                    biased;
                    () = self.stop.aborted() => Ok(()),
                    error = self.failure() => Err(error),
                    stopped = self.stop_gracefully() => stopped,
                }
            }
        };
        self.end().await;
        report::ended(&self.worker, outcome.as_ref().err());
        outcome
    }
}

//! How a worker is put together.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    Delivery, Error, LocalName, Outbox, Result, StopToken, Store, StoreExt, Topic,
};

use super::handler::{Handler, erased};
use super::runtime::Work;
use super::slots::LaneLimits;
use super::{Worker, outbox};

/// How many handlers run at the same time where the builder doesn't say.
pub const DEFAULT_CONCURRENCY: usize = 16;

/// How long a stop waits for handlers where the builder doesn't say.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// How often a worker looks without a wake where the builder doesn't say.
pub const DEFAULT_POLL: Duration = Duration::from_secs(20);

/// How many jobs of a queue are claimed ahead at most where the builder doesn't say.
pub const DEFAULT_BUFFER: usize = 256;

/// How often [`WorkerBuilder::maintenance`] sweeps.
pub const DEFAULT_MAINTENANCE: Duration = Duration::from_secs(60);

const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How the handler of one queue or outbox runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerOpts {
    /// How many run at the same time in this worker, at least 1. Default: as many as all together.
    pub concurrency: Option<usize>,
    /// A handler that takes longer is dropped and counts as failed. Default: no limit.
    pub timeout: Option<Duration>,
}

impl HandlerOpts {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many run at the same time in this worker, at least 1.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// A handler that takes longer is dropped and counts as failed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

#[derive(Clone)]
pub(super) struct LaneOptions {
    pub(super) name: String,
    pub(super) work: Work,
    pub(super) opts: HandlerOpts,
}

impl LaneOptions {
    pub(super) fn limits(&self, options: &Options) -> LaneLimits {
        let concurrency = self.opts.concurrency.unwrap_or(usize::MAX).min(options.concurrency);
        let buffer = match self.work {
            Work::Queue(..) => Some(options.buffer),
            Work::Outbox(..) => None,
        };
        LaneLimits { concurrency, buffer }
    }
}

#[derive(Clone)]
pub(super) struct Options {
    pub(super) store: Arc<dyn Store>,
    pub(super) worker_id: String,
    pub(super) concurrency: usize,
    pub(super) buffer: usize,
    pub(super) grace: Duration,
    pub(super) poll: Duration,
    pub(super) schedules: bool,
    pub(super) maintenance: Option<Duration>,
    #[cfg(feature = "metrics")]
    pub(super) samples: Option<Duration>,
    pub(super) lanes: Vec<LaneOptions>,
}

/// Puts a [`Worker`] together; see there.
#[must_use = "call run() or build()"]
pub struct WorkerBuilder {
    options: Options,
    /// The first thing that was wrong.
    error: Option<Error>,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.options.lanes.iter().map(|lane| &lane.name).collect();
        f.debug_struct("WorkerBuilder")
            .field("queues", &names)
            .field("concurrency", &self.options.concurrency)
            .finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let worker_id = format!("worker-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let options = Options {
            store,
            worker_id,
            concurrency: DEFAULT_CONCURRENCY,
            buffer: DEFAULT_BUFFER,
            grace: DEFAULT_GRACE,
            poll: DEFAULT_POLL,
            schedules: false,
            maintenance: None,
            #[cfg(feature = "metrics")]
            samples: None,
            lanes: Vec::new(),
        };
        Self { options, error: None }
    }

    /// Handles the jobs of a queue.
    ///
    /// The handler is an async closure or function of the payload, or of a
    /// [`JobContext`](super::JobContext) and the payload, and names their types. It returns `()`,
    /// a `Result`, or an [`Outcome`](super::Outcome). It may run twice for one job, so what it
    /// does should bear that.
    pub fn queue<M, H: Handler<M>>(self, name: &str, handler: H) -> Self {
        self.queue_with(name, HandlerOpts::new(), handler)
    }

    /// Handles the jobs of a queue, with options.
    pub fn queue_with<M, H: Handler<M>>(
        mut self,
        name: &str,
        opts: HandlerOpts,
        handler: H,
    ) -> Self {
        let lane = self.options.store.queue(name);
        self.lane(opts, lane.map(|queue| Work::Queue(queue, erased(handler))));
        self
    }

    /// Makes the deliveries of an outbox, as [`Outbox::run_once`] does: one claim each, whose
    /// time isn't extended by itself; an error or a panic is tried again.
    pub fn outbox<F, Fut, E>(self, name: &str, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        self.outbox_with(name, HandlerOpts::new(), handler)
    }

    /// Makes the deliveries of an outbox, with options.
    pub fn outbox_with<F, Fut, E>(mut self, name: &str, opts: HandlerOpts, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let lane = self.options.store.outbox(name);
        self.lane(opts, lane.map(|outbox| Work::Outbox(outbox, outbox::erased(handler))));
        self
    }

    /// Fires schedules while it runs, as the one leader among all workers and runners. Default:
    /// `false`.
    pub fn schedules(mut self, schedules: bool) -> Self {
        self.options.schedules = schedules;
        self
    }

    /// Stores what time implies, about once a minute: buries what has expired or lapsed, deletes
    /// dead jobs whose retention is over. Default: `false`.
    pub fn maintenance(self, maintenance: bool) -> Self {
        let every = maintenance.then_some(DEFAULT_MAINTENANCE);
        Self { options: Options { maintenance: every, ..self.options }, ..self }
    }

    /// As [`maintenance`](Self::maintenance), about so often; 1 ms to a day.
    pub fn maintain_every(mut self, every: Duration) -> Self {
        self.within("maintain_every", every);
        self.options.maintenance = Some(every);
        self
    }

    /// Sets the gauges of depth and lag about so often, 1 ms to a day. It reads every queue and
    /// every stream, so let one worker do it. Default: never.
    #[cfg(feature = "metrics")]
    pub fn sample_every(mut self, every: Duration) -> Self {
        self.within("sample_every", every);
        self.options.samples = Some(every);
        self
    }

    /// How many handlers run at the same time, deliveries included; at least 1. Default: 16.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.at_least_one("concurrency", concurrency);
        self.options.concurrency = concurrency;
        self
    }

    /// How many jobs of a queue are claimed ahead at most, in memory until they start. It claims
    /// no more than it expects to start within a tenth of a second, so that handlers which take
    /// longer claim nothing ahead. Default: 256.
    pub fn buffer(mut self, buffer: usize) -> Self {
        self.options.buffer = buffer;
        self
    }

    /// How long a stop waits for handlers that run, and then once more for the settlements. What
    /// isn't done by then is given back. Default: 30 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// How often a queue is looked at where no wake comes, about; 1 ms to a day. It is a net
    /// beneath the wakes, and for more than 15 queues it is stretched to one look a second
    /// in all. Default: 20 s.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.within("poll_every", every);
        self.options.poll = every;
        self
    }

    /// By what name it claims. Default: one made of the process's id and a random number.
    pub fn worker_id(mut self, worker_id: &str) -> Self {
        self.note(LocalName::new(worker_id).map(drop));
        self.options.worker_id = worker_id.to_owned();
        self
    }

    /// The worker.
    ///
    /// # Errors
    ///
    /// What was wrong first: [`Error::InvalidName`] and [`Error::ReservedName`] for a queue, an
    /// outbox or the worker's id, [`Error::InvalidArgument`] for an option out of its range, a
    /// queue or an outbox that has two handlers, and a worker that has nothing to do.
    pub fn build(self) -> Result<Worker> {
        let Self { options, error } = self;
        error.map_or(Ok(()), Err)?;
        let mut names = BTreeSet::new();
        if let Some(twice) = options.lanes.iter().find(|lane| !names.insert(&lane.name)) {
            return Err(Error::invalid_argument("queue", &twice.name, "one handler for each"));
        }
        if options.lanes.is_empty() && !options.schedules && options.maintenance.is_none() {
            return Err(Error::invalid_argument(
                "worker",
                "nothing to do",
                "a queue, an outbox, schedules(true) or maintenance(true)",
            ));
        }
        Ok(Worker::new(options))
    }

    /// [`build`](Self::build) and [`Worker::run`].
    ///
    /// # Errors
    ///
    /// Those of both.
    ///
    /// # Cancel safety
    ///
    /// As [`Worker::run`].
    pub async fn run(self, stop: StopToken) -> Result<()> {
        self.build()?.run(stop).await
    }

    fn lane(&mut self, opts: HandlerOpts, work: Result<Work>) {
        if let Some(concurrency) = opts.concurrency {
            self.at_least_one("concurrency", concurrency);
        }
        if let Some(timeout) = opts.timeout {
            self.within("timeout", timeout);
        }
        match work {
            Ok(work) => {
                let name = work.queue_name();
                self.options.lanes.push(LaneOptions { name, work, opts });
            }
            Err(error) => self.note(Err(error)),
        }
    }

    fn note(&mut self, checked: Result<()>) {
        if let Err(error) = checked {
            self.error.get_or_insert(error);
        }
    }

    fn at_least_one(&mut self, argument: &'static str, value: usize) {
        if value == 0 {
            self.note(Err(Error::invalid_argument(argument, value, "at least 1")));
        }
    }

    fn within(&mut self, argument: &'static str, value: Duration) {
        if value < Duration::from_millis(1) || value > LONGEST {
            let value = format_args!("{value:?}").to_string();
            self.note(Err(Error::invalid_argument(argument, value, "1 ms to 24 h")));
        }
    }
}

impl Work {
    fn queue_name(&self) -> String {
        match self {
            Self::Queue(queue, _) => queue.name().to_owned(),
            Self::Outbox(outbox, _) => behind(outbox),
        }
    }
}

/// The queue behind an outbox, by which its jobs are counted.
fn behind(outbox: &Outbox) -> String {
    match outbox.topic() {
        Topic::Queue(name) => name.to_string(),
        _ => outbox.name().to_owned(),
    }
}

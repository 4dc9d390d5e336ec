//! The worker runtime: handlers for queues and outboxes, with everything around them that a
//! program in production needs and would rather not write.
//!
//! ```
//! use std::time::Duration;
//!
//! use alkstore::prelude::*;
//! use alkstore::worker::{HandlerOpts, JobContext, Outcome, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Email {
//!     to: String,
//! }
//!
//! async fn report(job: JobContext, month: u8) -> Result<Outcome> {
//!     if month > 12 {
//!         return Ok(Outcome::discard(format_args!("there is no month {month}")));
//!     }
//!     println!("attempt {} at the report of month {month}", job.attempt());
//!     Ok(Outcome::Done)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> alkstore::Result<()> {
//! let store = alkstore::open("memory:").await?;
//! store.queue("emails")?.enqueue(&Email { to: "ada@example.org".into() }).await?;
//!
//! let stop = StopToken::new();
//! # let done = stop.clone();
//! let worker = Worker::builder(&store)
//!     .queue("emails", move |email: Email| {
//! #       let done = done.clone();
//!         async move {
//!             println!("to {}", email.to);
//! #           done.stop();
//!         }
//!     })
//!     .queue_with(
//!         "reports",
//!         HandlerOpts::new().concurrency(2).timeout(Duration::from_secs(600)),
//!         report,
//!     )
//!     .outbox("webhooks", |delivery: Delivery| async move {
//!         println!("posting {:?}", delivery.payload());
//!         Ok::<_, Error>(())
//!     })
//!     .schedules(true)
//!     .maintenance(true)
//!     .concurrency(32)
//!     .build()?;
//! worker.run(stop).await
//! # }
//! ```
//!
//! What it does, and in which order it stops, is in `docs/architecture/worker.md`; its spans,
//! events and metrics are in `docs/guide/observability.md`.

mod builder;
mod claim;
mod context;
mod fetch;
mod handler;
mod health;
mod keep;
mod meter;
mod outbox;
mod report;
mod run;
mod runtime;
mod settle;
mod side;
mod slots;
mod time;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use alkstore_core::{Error, Result, StopToken, Store};

pub use builder::{
    DEFAULT_BUFFER, DEFAULT_CONCURRENCY, DEFAULT_GRACE, DEFAULT_MAINTENANCE, DEFAULT_POLL,
    HandlerOpts, WorkerBuilder,
};
pub use context::JobContext;
pub use handler::{Handler, IntoOutcome, Outcome};
pub use health::{Fault, Health, WorkerState};

use builder::Options;
use health::Pulse;
use runtime::Runtime;

/// Handlers for queues and outboxes in one runtime, cheap to clone.
///
/// It claims in batches no larger than what it can start soon, shares its slots fairly over its
/// queues, extends the claims of what runs, settles in batches, and goes on after faults of the
/// store, which it reports. It needs a tokio runtime, on whose threads the handlers run.
#[derive(Clone)]
#[must_use = "call run()"]
pub struct Worker {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    pulse: Arc<Pulse>,
    runs: AtomicBool,
    /// The run under way.
    run: Mutex<Weak<Runtime>>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.inner.options.lanes.iter().map(|lane| &lane.name).collect();
        f.debug_struct("Worker")
            .field("id", &self.inner.options.worker_id)
            .field("queues", &names)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Begins to put a worker together.
    pub fn builder(store: &(impl Store + ?Sized)) -> WorkerBuilder {
        WorkerBuilder::new(store.shared())
    }

    fn new(options: Options) -> Self {
        let (pulse, runs, run) =
            (Arc::new(Pulse::new()), AtomicBool::new(false), Mutex::new(Weak::new()));
        Self { inner: Arc::new(Inner { options, pulse, runs, run }) }
    }

    /// By what name it claims.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.options.worker_id
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = self.inner.pulse.health();
        let run = self.inner.run.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(run) = run {
            (health.running, health.buffered) = run.slots.counts();
            health.unsettled = run.settler.unsettled();
        }
        health
    }

    /// Runs until it is stopped, and may be run again afterwards.
    ///
    /// [`StopToken::stop`] lets it claim no more, give back what hasn't begun, wait for the
    /// handlers that run, whose claims are still extended, for the grace period, and settle what
    /// they end with; the handlers that are left are dropped and their jobs given back, the
    /// attempts uncharged. [`StopToken::abort`] drops everything at once: claims lapse at their
    /// deadlines, the attempts charged.
    ///
    /// A fault of the store doesn't end it: it tries again, with growing pauses, and reports each
    /// fault as an event, in [`health`](Self::health) and as a metric.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] when the store is closed meanwhile, whose handlers are dropped then;
    /// [`Error::Unavailable`] where outcomes couldn't be written while it stopped, so that the
    /// jobs are delivered again; [`Error::InvalidArgument`] where it runs already.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it ends as by [`StopToken::abort`].
    pub async fn run(&self, stop: StopToken) -> Result<()> {
        if self.inner.runs.swap(true, Ordering::SeqCst) {
            return Err(Error::invalid_argument("worker", self.id(), "one that isn't running"));
        }
        let _ends = Ends(&self.inner);
        let (rt, asks) = Runtime::new(&self.inner.options, self.inner.pulse.clone(), stop);
        *self.inner.run.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&rt);
        self.inner.pulse.set(WorkerState::Running);
        rt.run(&self.inner.options, asks).await
    }
}

/// A run that is over, also where it is dropped.
struct Ends<'a>(&'a Inner);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.pulse.set(WorkerState::Ended);
        self.0.runs.store(false, Ordering::SeqCst);
    }
}

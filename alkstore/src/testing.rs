//! For the tests of an application: a store whose clock the test moves, which runs what the
//! application runs until nothing is left to do, and which knows what came in.
//!
//! Everything behaves as on every other engine; only time stands still, until
//! [`TestStore::advance`] moves it. What a test learns here holds in production.
//!
//! # Examples
//!
//! A service that welcomes who signs up, and writes again a day later; then its test.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use alkstore::prelude::*;
//! use alkstore::testing::TestStore;
//!
//! const DAY: Duration = Duration::from_secs(24 * 60 * 60);
//!
//! struct Service {
//!     mails: Outbox,
//!     reminders: Queue,
//!     store: Arc<dyn Store>,
//! }
//!
//! impl Service {
//!     fn new(store: Arc<dyn Store>) -> Result<Self> {
//!         Ok(Self { mails: store.outbox("mails")?, reminders: store.queue("reminders")?, store })
//!     }
//!
//!     async fn sign_up(&self, name: &str) -> Result<()> {
//!         let mut tx = self.store.begin_tx().await?;
//!         let welcome = format!("welcome, {name}");
//!         self.mails.enqueue_tx(&mut tx, &welcome, OutboxOpts::new()).await?;
//!         self.reminders.enqueue_tx(&mut tx, name, EnqueueOpts::new().delay(DAY)).await?;
//!         tx.commit().await
//!     }
//!
//!     async fn remind(&self, stop: StopToken) -> Result<()> {
//!         loop {
//!             let mut job = tokio::select! {
//!                 () = stop.stopped() => return Ok(()),
//!                 job = self.reminders.next("reminder") => job?,
//!             };
//!             let text = format!("how is it going, {}?", job.decode::<String>()?);
//!             let mut tx = self.store.begin_tx().await?;
//!             self.mails.enqueue_tx(&mut tx, &text, OutboxOpts::new()).await?;
//!             job.ack_tx(&mut tx).await?;
//!             tx.commit().await?;
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] // #[tokio::test] in a test
//! # async fn main() -> Result<()> {
//! let test = TestStore::new();
//! let service = Service::new(test.store())?;
//!
//! service.sign_up("ada").await?;
//! test.run_until_idle(|stop| service.remind(stop)).await?;
//! test.assert_in_outbox("mails", &"welcome, ada");
//! assert_eq!(test.in_outbox("mails").len(), 1, "it is too early for the second");
//!
//! test.advance(DAY);
//! test.run_until_idle(|stop| service.remind(stop)).await?;
//! test.assert_in_outbox("mails", &"how is it going, ada?");
//! # Ok(())
//! # }
//! ```

use std::collections::HashSet;
use std::fmt::{Debug, Write};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use alkstore_core::{
    ChannelName, Event, IntoPayload, JobFilter, JobId, JobRecord, JobState, LockName, OutboxName,
    Payload, QueueName, QueueStats, QueueStore, Result, StopToken, Store, StoreExt, StreamName,
    Timestamp,
};
use alkstore_mem::{Clock, ManualClock, MemStore, MemStoreBuilder, Observed, Observer};
use futures_util::future::{Either, select};

/// How long [`TestStore::run_until_idle`] waits for work that is under way, by default.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often everything else that can run runs before the store is looked at.
const TURNS: usize = 64;

/// How long what is under way may take until the store is looked at again.
const PAUSE: Duration = Duration::from_millis(1);

/// A store in memory for the tests of an application. See the [module](self).
#[derive(Debug, Clone)]
pub struct TestStore {
    store: MemStore,
    clock: Arc<ManualClock>,
    record: Arc<Record>,
    patience: Duration,
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

impl TestStore {
    /// An empty store whose clock stands at 2026-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        Self::with(MemStore::builder())
    }

    /// As [`new`](Self::new), with the options of a builder; its clock and observer are the
    /// test's.
    #[must_use]
    pub fn with(builder: MemStoreBuilder) -> Self {
        let (clock, record) = (Arc::new(ManualClock::new()), Arc::new(Record::default()));
        let store = builder.clock(clock.clone()).observer(record.clone()).build();
        Self { store, clock, record, patience: PATIENCE }
    }

    /// How long [`run_until_idle`](Self::run_until_idle) waits for work that is under way.
    /// Default: 10 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The store, for the application.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    /// The time on the store's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        Timestamp::EPOCH.plus(self.clock.now()).into()
    }

    /// Moves the store's clock. What falls due by that is done by whoever runs, for instance in
    /// [`run_until_idle`](Self::run_until_idle).
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Runs what the application runs until nothing is left to do, then stops the token it was
    /// given, and returns what it returns. Where it ends by itself, it was that.
    ///
    /// Nothing is left to do once every job that it claimed is settled, no job is ready in a
    /// queue that it asked for work (paused queues excepted), no schedule is due that it runs,
    /// and everything waits. Work that isn't a job's can't be seen: a handler of messages or
    /// events is waited for as long as it awaits nothing but the store.
    ///
    /// It expects a runtime of one thread, as `#[tokio::test]` makes one.
    ///
    /// # Panics
    ///
    /// Where work is still under way after the [`patience`](Self::patience): it says which. A job
    /// that a handler dropped unsettled, for instance, is held until the clock is moved.
    ///
    /// # Cancel safety
    ///
    /// Dropped, what it ran is dropped.
    pub async fn run_until_idle<F, Fut>(&self, run: F) -> Fut::Output
    where
        F: FnOnce(StopToken) -> Fut,
        Fut: Future,
    {
        let stop = StopToken::new();
        let held = self.held_jobs().await.unwrap_or_default();
        self.record.lock().asked.clear();
        let mut running = pin!(run(stop.clone()));
        match select(running.as_mut(), pin!(self.until_idle(&held))).await {
            Either::Left((output, _)) => return output,
            Either::Right(_) => stop.stop(),
        }
        let patience = pin!(self.out_of_patience());
        match select(running, patience).await {
            Either::Left((output, _)) => output,
            Either::Right(_) => fail(format_args!(
                "what was run until idle was stopped {:?} ago and didn't end; \
                 does it wait for the token it was given?",
                self.patience
            )),
        }
    }

    /// Every job that was enqueued to a queue, as it was then, in the order in which they became
    /// visible; those of schedules too.
    ///
    /// # Panics
    ///
    /// Where the queue's name is invalid.
    #[must_use]
    #[track_caller]
    pub fn enqueued(&self, queue: &str) -> Vec<JobRecord> {
        self.record.lock().jobs_of(&valid(QueueName::new(queue)))
    }

    /// Every delivery that was put into an outbox, as [`enqueued`](Self::enqueued).
    ///
    /// # Panics
    ///
    /// Where the outbox's name is invalid.
    #[must_use]
    #[track_caller]
    pub fn in_outbox(&self, outbox: &str) -> Vec<JobRecord> {
        self.record.lock().jobs_of(&QueueName::of_outbox(&valid(OutboxName::new(outbox))))
    }

    /// Every event that was published to a stream, those that were trimmed too.
    ///
    /// # Panics
    ///
    /// Where the stream's name is invalid.
    #[must_use]
    #[track_caller]
    pub fn published(&self, stream: &str) -> Vec<Event> {
        let name = valid(StreamName::new(stream));
        let record = self.record.lock();
        let published = record.published.iter().filter(|(stream, _)| *stream == name);
        published.map(|(_, event)| event.clone()).collect()
    }

    /// Every message that was sent to a channel, whether somebody listened or not.
    ///
    /// # Panics
    ///
    /// Where the channel's name is invalid.
    #[must_use]
    #[track_caller]
    pub fn notified(&self, channel: &str) -> Vec<Payload> {
        let name = valid(ChannelName::new(channel));
        let record = self.record.lock();
        let notified = record.notified.iter().filter(|(channel, _)| *channel == name);
        notified.map(|(_, payload)| payload.clone()).collect()
    }

    /// Forgets what was enqueued, published and notified until now. The store keeps it.
    pub fn forget(&self) {
        let mut record = self.record.lock();
        record.enqueued.clear();
        record.published.clear();
        record.notified.clear();
    }

    /// Asserts that a job with this payload was enqueued to a queue, and returns the first.
    ///
    /// # Panics
    ///
    /// Where there was none: it says what was enqueued there instead.
    #[track_caller]
    pub fn assert_enqueued(&self, queue: &str, payload: impl IntoPayload) -> JobRecord {
        let place = format!("queue {queue:?}");
        first_with(payload, &place, self.enqueued(queue), |job| &job.payload)
    }

    /// Asserts that a delivery with this payload was put into an outbox, and returns the first.
    ///
    /// # Panics
    ///
    /// As [`assert_enqueued`](Self::assert_enqueued).
    #[track_caller]
    pub fn assert_in_outbox(&self, outbox: &str, payload: impl IntoPayload) -> JobRecord {
        let place = format!("outbox {outbox:?}");
        first_with(payload, &place, self.in_outbox(outbox), |job| &job.payload)
    }

    /// Asserts that an event with this payload was published to a stream, and returns the first.
    ///
    /// # Panics
    ///
    /// As [`assert_enqueued`](Self::assert_enqueued).
    #[track_caller]
    pub fn assert_published(&self, stream: &str, payload: impl IntoPayload) -> Event {
        let place = format!("stream {stream:?}");
        first_with(payload, &place, self.published(stream), |event| &event.payload)
    }

    /// Asserts that a message with this payload was sent to a channel.
    ///
    /// # Panics
    ///
    /// As [`assert_enqueued`](Self::assert_enqueued).
    #[track_caller]
    pub fn assert_notified(&self, channel: &str, payload: impl IntoPayload) {
        let place = format!("channel {channel:?}");
        first_with(payload, &place, self.notified(channel), |payload| payload);
    }

    async fn until_idle(&self, held: &HashSet<JobId>) {
        let mut looks = self.looks();
        loop {
            let before = self.record.lock().count;
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let under_way = self.under_way(held).await;
            pause().await;
            match under_way {
                Ok(None) if self.record.lock().count == before => return,
                // The application has closed the store: nothing is left to do.
                Err(_) => return,
                Ok(work) if looks == 0 => fail(format_args!(
                    "still not idle after {:?}: {}; does a handler hang, or did one drop a job \
                     unsettled?",
                    self.patience,
                    work.as_deref().unwrap_or("jobs, events or messages go on coming in"),
                )),
                Ok(_) => {}
            }
            looks = looks.saturating_sub(1);
        }
    }

    async fn out_of_patience(&self) {
        for _ in 0..self.looks() {
            pause().await;
        }
    }

    fn looks(&self) -> u128 {
        self.patience.as_millis() / PAUSE.as_millis()
    }

    /// What is left to do, in words; nothing where it is idle.
    async fn under_way(&self, held: &HashSet<JobId>) -> Result<Option<String>> {
        let mut work = String::new();
        let asked = self.record.lock().asked.clone();
        for QueueStats { name, ready, claimed, paused, .. } in self.store.queues().await? {
            let queue = QueueName::stored(name);
            if claimed > 0 {
                let claimed = self.claimed_in(&queue).await?;
                for id in claimed.iter().filter(|id| !held.contains(id)) {
                    let _ = write!(work, "job {id} of queue {queue:?} is claimed, ");
                }
            }
            if ready > 0 && !paused && asked.contains(&queue) {
                let _ = write!(work, "{ready} ready in queue {queue:?}, ");
            }
        }
        let leader = LockName::scheduler();
        if self.store.locks().await?.iter().any(|lock| lock.name == leader.as_str()) {
            let now = self.now();
            for schedule in self.store.schedules().await? {
                if !schedule.paused && schedule.next_at <= now {
                    let _ = write!(work, "schedule {:?} is due, ", schedule.name);
                }
            }
        }
        Ok(work.strip_suffix(", ").map(str::to_owned))
    }

    async fn held_jobs(&self) -> Result<HashSet<JobId>> {
        let mut held = HashSet::new();
        for QueueStats { name, .. } in self.store.queues().await? {
            held.extend(self.claimed_in(&QueueName::stored(name)).await?);
        }
        Ok(held)
    }

    async fn claimed_in(&self, queue: &QueueName) -> Result<Vec<JobId>> {
        let filter = JobFilter::new().state(JobState::Claimed).limit(usize::MAX);
        let jobs = self.store.find_jobs(queue, &filter).await?;
        Ok(jobs.into_iter().map(|job| job.id).collect())
    }
}

/// What came in.
#[derive(Debug, Default)]
struct Record(Mutex<Recorded>);

#[derive(Debug, Default)]
struct Recorded {
    enqueued: Vec<JobRecord>,
    published: Vec<(StreamName, Event)>,
    notified: Vec<(ChannelName, Payload)>,
    /// The queues that were asked for work.
    asked: HashSet<QueueName>,
    /// How much came in, and how many queues came to be asked.
    count: u64,
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorded {
    fn jobs_of(&self, queue: &QueueName) -> Vec<JobRecord> {
        let jobs = self.enqueued.iter().filter(|job| job.queue == queue.as_str());
        jobs.cloned().collect()
    }
}

impl Observer for Record {
    fn observe(&self, observed: Observed) {
        let mut record = self.lock();
        // That a queue is asked again says nothing: who polls is idle, too.
        if !matches!(&observed, Observed::Asked(queue) if record.asked.contains(queue)) {
            record.count += 1;
        }
        match observed {
            Observed::Enqueued(job) => record.enqueued.push(job),
            Observed::Published { stream, event } => record.published.push((stream, event)),
            Observed::Notified(message) => record.notified.push((message.channel, message.payload)),
            Observed::Asked(queue) => {
                record.asked.insert(queue);
            }
            _ => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "what is waited for isn't the store's")]
async fn pause() {
    tokio::time::sleep(PAUSE).await;
}

/// The first item whose payload is the expected document, white space and the order of keys aside.
#[track_caller]
fn first_with<T>(
    expected: impl IntoPayload,
    place: &str,
    items: Vec<T>,
    payload: impl Fn(&T) -> &Payload,
) -> T {
    let expected = valid(expected.into_payload());
    let document = |payload: &Payload| payload.decode::<serde_json::Value>().ok();
    let (wanted, mut seen) = (document(&expected), String::new());
    for item in items {
        if document(payload(&item)) == wanted {
            return item;
        }
        let _ = write!(seen, "\n  {:?}", payload(&item));
    }
    let seen = if seen.is_empty() { " nothing" } else { &seen };
    fail(format_args!("no {expected:?} came to {place}; what came:{seen}"))
}

#[track_caller]
fn valid<T: Debug>(checked: Result<T>) -> T {
    match checked {
        Ok(value) => value,
        Err(error) => fail(format_args!("{error}")),
    }
}

#[track_caller]
#[expect(clippy::panic, reason = "a test fails by a panic")]
fn fail(why: impl std::fmt::Display) -> ! {
    panic!("{why}")
}

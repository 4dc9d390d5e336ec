//! What wakes a waiter, with a clock that moves without waking anybody for nothing: the suite's
//! clock does, which hides a timer that is missing.
//!
//! Writes happen on a thread of the engine's, so that a test can't let everything run until it
//! rests. It looks at the clock instead, which knows who waits there and until when.
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic, and what may not come is waited for in real time"
)]

#[path = "support/directory.rs"]
mod directory;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use alkstore_core::{
    BoxFuture, EnqueueOpts, Error, Job, JobId, Lock, NewJob, Queue, QueueOpts, ScheduleOpts,
    StopToken, StoreExt, Timestamp,
};
use alkstore_sqlite::rusqlite::{Connection, TransactionBehavior};
use alkstore_sqlite::{Clock, Durability, SqliteStore};
use directory::directory;
use futures_util::FutureExt;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const MILLI: Duration = Duration::from_millis(1);

/// A clock that stands still until it is moved, and knows who sleeps.
#[derive(Debug, Default)]
struct Sleepers {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    /// How many sleep until each instant.
    asleep: BTreeMap<Duration, usize>,
}

/// One who sleeps; dropped, it doesn't any more.
struct Asleep<'c>(&'c Sleepers, Duration);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap();
        let count = state.asleep.get_mut(&self.1).unwrap();
        *count -= 1;
        if *count == 0 {
            state.asleep.remove(&self.1);
        }
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl Clock for Sleepers {
    fn now(&self) -> Duration {
        self.state.lock().unwrap().now
    }

    fn sleep_until(&self, instant: Timestamp) -> BoxFuture<'_, ()> {
        let until = instant.since(Timestamp::EPOCH);
        Box::pin(async move {
            *self.state.lock().unwrap().asleep.entry(until).or_default() += 1;
            let _asleep = Asleep(self, until);
            self.changed.notify_waiters();
            self.once(|state| state.now >= until).await;
        })
    }
}

impl Sleepers {
    fn new() -> Self {
        let clock = Self::default();
        clock.state.lock().unwrap().now = Duration::from_secs(1_767_225_600);
        clock
    }

    async fn once(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if holds(&self.state.lock().unwrap()) {
                return;
            }
            changed.await;
        }
    }

    fn advance(&self, by: Duration) {
        self.state.lock().unwrap().now += by;
        self.changed.notify_waiters();
    }

    /// Ends once so many sleep, and until just these lengths from now.
    async fn asleep(&self, lengths: &[Duration]) {
        let mut expected = BTreeMap::new();
        for length in lengths {
            *expected.entry(self.now() + *length).or_insert(0_usize) += 1;
        }
        let asleep = self.once(|state| state.asleep == expected);
        if tokio::time::timeout(Duration::from_secs(20), asleep).await.is_err() {
            let state = self.state.lock().unwrap();
            panic!("expected {expected:?} to be slept until, and it is {state:?}");
        }
    }
}

struct Fixture {
    _directory: TempDir,
    path: PathBuf,
    clock: Arc<Sleepers>,
    store: SqliteStore,
    queue: Queue,
}

async fn fixture() -> Fixture {
    let directory = directory();
    let path = directory.path().join("app.db");
    let clock = Arc::new(Sleepers::new());
    let builder = SqliteStore::builder(&path).durability(Durability::Normal).safety_poll(None);
    let store = builder.clock(clock.clone()).open().await.unwrap();
    let queue = store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    Fixture { _directory: directory, path, clock, store, queue }
}

impl Fixture {
    async fn add(&self, delay: Duration) -> JobId {
        self.queue.enqueue_with(&1, EnqueueOpts::new().delay(delay)).await.unwrap()
    }

    fn wait(&self) -> JoinHandle<Job> {
        let queue = self.queue.clone();
        tokio::spawn(async move { queue.next("w").await.unwrap() })
    }

    async fn claimed(&self) -> Job {
        self.add(Duration::ZERO).await;
        self.queue.claim("holds").await.unwrap().unwrap()
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("it sleeps on"))
}

async fn id(task: JoinHandle<Job>) -> JobId {
    within(task).await.unwrap().id()
}

/// Time for what should not happen.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(30)).await;
}

#[tokio::test]
async fn a_waiter_wakes_at_the_instant_work_falls_due() {
    let f = fixture().await;
    let due = f.add(MINUTE).await;
    let waiting = f.wait();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE - MILLI);
    a_while().await;
    f.clock.asleep(&[MILLI]).await;
    assert!(!waiting.is_finished());
    f.clock.advance(MILLI);
    assert_eq!(id(waiting).await, due);
}

#[tokio::test]
async fn a_waiter_wakes_at_the_deadline_of_a_claim() {
    let f = fixture().await;
    let killed = f.claimed().await;
    let waiting = f.wait();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    assert_eq!(id(waiting).await, killed.id());
}

#[tokio::test]
async fn a_waiter_learns_of_an_earlier_instant() {
    let f = fixture().await;
    f.add(HOUR).await;
    let waiting = f.wait();
    f.clock.asleep(&[HOUR]).await;
    let sooner = f.add(MINUTE).await;
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    assert_eq!(id(waiting).await, sooner);
}

#[tokio::test]
async fn a_waiter_learns_of_an_earlier_deadline() {
    let f = fixture().await;
    let mut job = f.claimed().await;
    job.heartbeat(HOUR).await.unwrap();
    let waiting = f.wait();
    f.clock.asleep(&[HOUR]).await;
    job.heartbeat(MINUTE).await.unwrap();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    assert_eq!(id(waiting).await, job.id());
}

#[tokio::test]
async fn a_waiter_learns_when_a_job_that_was_given_back_comes_again() {
    let f = fixture().await;
    let (mut released, mut retried) = (f.claimed().await, f.claimed().await);
    released.heartbeat(HOUR).await.unwrap();
    retried.heartbeat(HOUR).await.unwrap();
    let waiting = [f.wait(), f.wait()];
    f.clock.asleep(&[HOUR, HOUR]).await;
    released.release(MINUTE).await.unwrap();
    f.clock.asleep(&[HOUR, MINUTE]).await;
    let sooner = MINUTE - MILLI;
    retried.retry("busy", Some(sooner)).await.unwrap();
    within(f.clock.once(|state| state.asleep.contains_key(&(state.now + sooner)))).await;
    f.clock.advance(MINUTE);
    let mut found = Vec::new();
    for task in waiting {
        found.push(id(task).await);
    }
    found.sort_unstable();
    assert_eq!(found, [released.id(), retried.id()]);
}

#[tokio::test]
async fn what_one_waiter_takes_in_wakes_the_others() {
    let f = fixture().await;
    f.add(HOUR).await;
    let waiting = [f.wait(), f.wait(), f.wait()];
    f.clock.asleep(&[HOUR; 3]).await;
    // One of the three learns of the earlier instant, and finds three jobs there.
    let delayed = (0..3).map(|n| NewJob::new(&n).unwrap().opts(EnqueueOpts::new().delay(MINUTE)));
    let delayed = f.queue.enqueue_many(delayed.collect()).await.unwrap();
    within(f.clock.once(|state| state.asleep.contains_key(&(state.now + MINUTE)))).await;
    f.clock.advance(MINUTE);
    let mut taken = Vec::new();
    for task in waiting {
        taken.push(id(task).await);
    }
    taken.sort_unstable();
    assert_eq!(taken, delayed);
}

#[tokio::test]
async fn what_a_waiter_that_leaves_has_learnt_goes_to_the_next() {
    let f = fixture().await;
    f.add(HOUR).await;
    // The first that came is the one that is told.
    let leaves = f.wait();
    f.clock.asleep(&[HOUR]).await;
    let stays = f.wait();
    f.clock.asleep(&[HOUR; 2]).await;
    let sooner = f.add(MINUTE).await;
    f.clock.asleep(&[HOUR, MINUTE]).await;
    leaves.abort();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    assert_eq!(id(stays).await, sooner);
}

#[tokio::test]
async fn a_wake_that_nobody_took_goes_to_the_next() {
    let f = fixture().await;
    for _ in 0..50 {
        f.add(HOUR).await;
        let waiting = [f.wait(), f.wait()];
        f.clock.asleep(&[HOUR; 2]).await;
        let added = f.add(Duration::ZERO).await;
        // Woken or not, it is gone; what it was woken for, or had claimed, comes to the other.
        waiting[0].abort();
        let [first, second] = waiting;
        let found = match first.await {
            Ok(job) => {
                second.abort();
                assert!(second.await.unwrap_err().is_cancelled());
                job.id()
            }
            Err(_) => id(second).await,
        };
        assert_eq!(found, added);
        for job in f.queue.jobs(alkstore_core::JobFilter::new()).await.unwrap() {
            f.queue.cancel(job.id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_waiter_learns_what_another_connection_committed() {
    let f = fixture().await;
    f.add(HOUR).await;
    let waiting = f.wait();
    f.clock.asleep(&[HOUR]).await;
    let mut conn = Connection::open(&f.path).unwrap();
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let delayed = EnqueueOpts::new().delay(MINUTE);
    let sooner = f.store.attach(&tx).unwrap().enqueue(&f.queue, &1, delayed).unwrap();
    tx.commit().unwrap();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    assert_eq!(id(waiting).await, sooner);
}

#[tokio::test]
async fn a_waiter_has_a_job_as_soon_as_the_transaction_that_held_it_is_undone() {
    let f = fixture().await;
    let mut conn = Connection::open(&f.path).unwrap();
    for attached in [false, true] {
        let mut job = f.claimed().await;
        let waiting = f.wait();
        f.clock.asleep(&[MINUTE]).await;
        if attached {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            f.store.attach(&tx).unwrap().ack(&mut job).unwrap();
            f.clock.advance(MINUTE);
            a_while().await;
            assert!(!waiting.is_finished());
            tx.rollback().unwrap();
        } else {
            let mut tx = f.store.begin_tx().await.unwrap();
            job.ack_tx(&mut tx).await.unwrap();
            f.clock.advance(MINUTE);
            a_while().await;
            assert!(!waiting.is_finished());
            tx.rollback().await.unwrap();
        }
        let mut again = within(waiting).await.unwrap();
        assert_eq!((again.id(), again.attempt()), (job.id(), 2));
        again.ack().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_is_waited_for_until_it_runs_out() {
    let f = fixture().await;
    let mut held = f.store.try_lock("l", "holds", MINUTE).await.unwrap().unwrap();
    let store = f.store.clone();
    let waiting: JoinHandle<Lock> =
        tokio::spawn(async move { store.lock("l", "waits", MINUTE).await.unwrap() });
    f.clock.asleep(&[MINUTE]).await;
    // Renewed for longer, it is looked at when it would have ended.
    held.renew(HOUR).await.unwrap();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    f.clock.asleep(&[HOUR - MINUTE]).await;
    // Renewed for a shorter time, it is known at once.
    held.renew(MINUTE).await.unwrap();
    f.clock.asleep(&[MINUTE]).await;
    f.clock.advance(MINUTE);
    let lock = within(waiting).await.unwrap();
    assert!(lock.token() > held.token());
    assert!(matches!(held.renew(HOUR).await, Err(Error::LockLost { .. })));
}

#[tokio::test]
async fn a_schedule_fires_at_its_boundary_and_a_new_one_is_heard_of() {
    let f = fixture().await;
    let stop = StopToken::new();
    let (store, stopped) = (f.store.clone(), stop.clone());
    f.store.schedule("slow", "@every 1h", "q", &1, ScheduleOpts::new()).await.unwrap();
    let running = tokio::spawn(async move { store.run_schedules(stopped).await });
    // The lease is renewed every 10 s.
    let renewal = Duration::from_secs(10);
    within(f.clock.once(|state| state.asleep.contains_key(&(state.now + renewal)))).await;
    f.store.schedule("fast", "@every 5s", "q", &1, ScheduleOpts::new()).await.unwrap();
    let boundary = Duration::from_secs(5);
    within(f.clock.once(|state| state.asleep.contains_key(&(state.now + boundary)))).await;
    let waiting = f.wait();
    f.clock.advance(boundary);
    let job = within(waiting).await.unwrap();
    assert_eq!(job.headers().get("alkstore-schedule"), Some("fast"));
    stop.stop();
    within(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_safety_poll_without_a_pause_lets_others_run() {
    let directory = directory();
    let builder = SqliteStore::builder(directory.path().join("app.db"));
    let store = builder.safety_poll(Some(Duration::ZERO)).open().await.unwrap();
    let queue = store.queue("q").unwrap();
    let waiting = tokio::spawn(async move { queue.next("w").await.unwrap() });
    yield_now().await;
    store.queue("q").unwrap().enqueue(&1).await.unwrap();
    assert_eq!(within(waiting).await.unwrap().attempt(), 1);
}

/// Runs the task where it is woken, as an executor may.
struct Inline(SqliteStore, AtomicBool);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.0.data().wake_all();
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn whoever_is_woken_finds_no_lock_held() {
    let (done, woken) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for closes in [false, true] {
                let f = fixture().await;
                f.add(HOUR).await;
                let other = SqliteStore::open(&f.path).await.unwrap();
                let inline = Arc::new(Inline(other, AtomicBool::new(false)));
                let waker = Waker::from(inline.clone());
                let mut waiting = Box::pin(f.queue.next("w"));
                while f.clock.asleep(&[HOUR]).now_or_never().is_none() {
                    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                    yield_now().await;
                }
                inline.1.store(false, Ordering::SeqCst);
                if closes {
                    f.store.close().await.unwrap();
                } else {
                    f.add(Duration::ZERO).await;
                }
                done.send(inline.1.load(Ordering::SeqCst)).unwrap();
            }
        });
    });
    for _ in 0..2 {
        assert_eq!(woken.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}

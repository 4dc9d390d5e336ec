//! What wakes a waiter, with a clock that moves without waking anybody for nothing: the suite's
//! clock does, which hides a timer that is missing.
#![cfg(not(target_family = "wasm"))]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Job, JobId, Queue, QueueOpts, StoreExt};
use alkstore_mem::{ManualClock, MemStore};
use tokio::task::{JoinHandle, yield_now};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const MILLI: Duration = Duration::from_millis(1);

struct Fixture {
    clock: Arc<ManualClock>,
    store: MemStore,
    queue: Queue,
}

fn fixture() -> Fixture {
    let clock = Arc::new(ManualClock::new());
    let store = MemStore::builder().clock(clock.clone()).safety_poll(None).build();
    let queue = store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    Fixture { clock, store, queue }
}

impl Fixture {
    async fn add(&self, delay: Duration) -> JobId {
        self.queue.enqueue_with(&1, EnqueueOpts::new().delay(delay)).await.unwrap()
    }

    async fn wait(&self) -> JoinHandle<Job> {
        let queue = self.queue.clone();
        let task = tokio::spawn(async move { queue.next("w").await.unwrap() });
        settle().await;
        assert!(!task.is_finished());
        task
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        settle().await;
    }
}

/// Lets the other tasks of this thread run until they wait.
async fn settle() {
    for _ in 0..32 {
        yield_now().await;
    }
}

async fn id(task: JoinHandle<Job>) -> JobId {
    assert!(task.is_finished(), "the waiter sleeps on");
    task.await.unwrap().id()
}

#[tokio::test]
async fn a_waiter_wakes_at_the_instant_work_falls_due() {
    let f = fixture();
    let due = f.add(MINUTE).await;
    let waiting = f.wait().await;
    f.advance(MINUTE - MILLI).await;
    assert!(!waiting.is_finished());
    f.advance(MILLI).await;
    assert_eq!(id(waiting).await, due);
}

#[tokio::test]
async fn a_waiter_wakes_at_the_deadline_of_a_claim() {
    let f = fixture();
    let held = f.add(Duration::ZERO).await;
    let _job = f.queue.claim("killed").await.unwrap().unwrap();
    let waiting = f.wait().await;
    f.advance(MINUTE).await;
    assert_eq!(id(waiting).await, held);
}

#[tokio::test]
async fn a_waiter_learns_of_an_earlier_instant() {
    let f = fixture();
    f.add(HOUR).await;
    let waiting = f.wait().await;
    let sooner = f.add(MINUTE).await;
    settle().await;
    f.advance(MINUTE).await;
    assert_eq!(id(waiting).await, sooner);
}

#[tokio::test]
async fn a_waiter_learns_of_an_earlier_deadline() {
    let f = fixture();
    let held = f.add(Duration::ZERO).await;
    let mut job = f.queue.claim("holds").await.unwrap().unwrap();
    job.heartbeat(HOUR).await.unwrap();
    let waiting = f.wait().await;
    job.heartbeat(MINUTE).await.unwrap();
    settle().await;
    f.advance(MINUTE).await;
    assert_eq!(id(waiting).await, held);
}

#[tokio::test]
async fn what_one_waiter_takes_in_wakes_the_others() {
    let f = fixture();
    f.add(HOUR).await;
    let waiting = [f.wait().await, f.wait().await, f.wait().await];
    // One of the three learns of the earlier instant, and finds three jobs there.
    let delayed = f.queue.enqueue_many(
        (0..3)
            .map(|n| alkstore_core::NewJob::new(&n).unwrap().opts(EnqueueOpts::new().delay(MINUTE)))
            .collect(),
    );
    let delayed = delayed.await.unwrap();
    settle().await;
    f.advance(MINUTE).await;
    let mut taken = Vec::new();
    for task in waiting {
        taken.push(id(task).await);
    }
    taken.sort();
    assert_eq!(taken, delayed);
}

#[tokio::test]
async fn what_a_waiter_that_leaves_has_learnt_goes_to_the_next() {
    let f = fixture();
    f.add(HOUR).await;
    let mut waiting = vec![f.wait().await, f.wait().await];
    let sooner = f.add(MINUTE).await;
    settle().await;
    let leaves = waiting.remove(0);
    leaves.abort();
    settle().await;
    f.advance(MINUTE).await;
    assert_eq!(id(waiting.remove(0)).await, sooner);
}

#[tokio::test]
async fn a_waiter_looks_again_for_a_job_that_a_transaction_holds() {
    let f = fixture();
    for looks in 0..8 {
        let pinned = f.add(Duration::ZERO).await;
        let mut job = f.queue.claim("holds").await.unwrap().unwrap();
        let mut tx = f.store.begin_tx().await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        let waiting = f.wait().await;
        f.advance(MINUTE).await;
        // Seen at the deadline; from there on after 50 ms, and twice as long each time.
        let mut pause = 50;
        for _ in 0..looks {
            f.advance(Duration::from_millis(pause)).await;
            pause = (pause * 2).min(1_000);
        }
        tx.rollback().await.unwrap();
        f.advance(Duration::from_millis(pause - 1)).await;
        assert!(!waiting.is_finished(), "a rollback woke it, or it looked too early");
        f.advance(MILLI).await;
        assert!(waiting.is_finished(), "it sleeps on after {looks} looks");
        let mut job = waiting.await.unwrap();
        assert_eq!((job.id(), job.attempt()), (pinned, 2));
        job.ack().await.unwrap();
    }
}

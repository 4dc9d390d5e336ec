//! A worker without work, on a clock that wakes nobody but sleepers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alkstore::prelude::*;
use alkstore::{LocalName, MemStore, QueueName};
use alkstore_core::Claimed;
use alkstore_mem::ManualClock;
use alkstore_suite::fault::{Layer, layered};
use async_trait::async_trait;

use crate::stage::{Gate, Log, Run, gated, millis};

/// Counts the claims.
#[derive(Default)]
struct Claims(AtomicUsize);

#[async_trait]
impl Layer for Claims {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        self.0.fetch_add(1, Ordering::SeqCst);
        inner.claim_jobs(queue, worker, max).await
    }
}

/// A memory store whose clock wakes sleepers only, as time does.
fn quiet() -> (Arc<ManualClock>, Arc<dyn Store>, Arc<Claims>) {
    let clock = Arc::new(ManualClock::new());
    let store = MemStore::builder().clock(clock.clone()).safety_poll(None).build();
    let claims = Arc::new(Claims::default());
    (clock, layered(Arc::new(store), claims.clone()), claims)
}

async fn yields() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_idle_worker_asks_at_most_once_a_second() {
    for queues in [1_u32, 60] {
        let (clock, store, claims) = quiet();
        let builder = (0..queues).fold(Worker::builder(&store), |builder, n| {
            builder.queue(&format!("q{n}"), async |_: u32| {})
        });
        let run = Run::start(builder);
        yields().await;
        let at_first = claims.0.swap(0, Ordering::SeqCst);
        assert!(at_first <= 2 * usize::try_from(queues).unwrap(), "{at_first} claims at the start");
        for _ in 0..2_000 {
            clock.advance(millis(100));
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        yields().await;
        let in_200_s = claims.0.load(Ordering::SeqCst);
        assert!((7..=200).contains(&in_200_s), "{in_200_s} claims of {queues} queues in 200 s");
        // A wake is heard all the same, without a poll.
        store.queue("q0").unwrap().enqueue(&1).await.unwrap();
        yields().await;
        assert!(store.queues().await.unwrap().is_empty());
        run.stop.stop();
        yields().await;
        assert!(run.is_over());
    }
}

#[tokio::test]
async fn a_wake_that_a_busy_worker_cannot_use_is_passed_on() {
    let (clock, store, _) = quiet();
    let (gate, log) = (Gate::new(), Log::new());
    let noting = |log: &Log<u32>| {
        let log = log.clone();
        move |n: u32| {
            log.add(n);
            async {}
        }
    };
    let busy = Worker::builder(&store).concurrency(1).worker_id("busy");
    let busy = Run::start(busy.queue("q", noting(&log)).queue("slow", gated(&gate)));
    yields().await;
    let idle = Run::start(Worker::builder(&store).queue("q", noting(&log)).worker_id("idle"));
    yields().await;
    store.queue("slow").unwrap().enqueue(&1).await.unwrap();
    yields().await;
    assert_eq!(gate.inside(), 1, "its one slot is taken");
    for n in 0..3 {
        store.queue("q").unwrap().enqueue(&n).await.unwrap();
        yields().await;
        for _ in 0..3 {
            clock.advance(Duration::from_millis(100));
            yields().await;
        }
        assert_eq!(log.len(), usize::try_from(n).unwrap() + 1, "no poll was due");
    }
    gate.let_on(1);
    for run in [busy, idle] {
        run.stop.stop();
        yields().await;
        assert!(run.is_over());
    }
}

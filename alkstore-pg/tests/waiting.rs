//! What wakes a waiter whom nobody tells, without the safety poll: the suite's clock wakes everybody
//! when it is moved, so that its rows can't see this.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::pin::{Pin, pin};
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Job, Queue, QueueOpts, Result, StoreExt, Wait, WakeStore, Watch};
use alkstore_pg::PgStore;
use alkstore_suite::pg::Cluster;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

/// How long a claim holds.
const SHORT: Duration = Duration::from_millis(500);

/// A queue, and a watch that is told before any other.
async fn watched() -> (PgStore, Queue, Box<dyn Watch>) {
    let cluster = Cluster::shared();
    let builder = PgStore::builder(&cluster.url()).schema(cluster.fresh_schema());
    let store = builder.safety_poll(None).connect().await.unwrap();
    let queue = store.queue_with("q", QueueOpts::new().visibility_timeout(SHORT)).unwrap();
    let watch = store.watch(queue.topic()).await.unwrap();
    (store, queue, watch)
}

/// Lets a waiter go on until it waits.
async fn waits(waiter: &mut Pin<&mut impl Future<Output = Result<Job>>>) {
    assert!(timeout(SHORT, waiter).await.is_err(), "there was a job for it");
}

async fn woken(watch: &mut Box<dyn Watch>) {
    timeout(LONG, watch.changed(Wait::default())).await.unwrap().unwrap();
}

#[tokio::test]
async fn who_takes_less_than_it_may_lets_another_one_learn_of_the_deadline() {
    let (store, queue, mut watch) = watched().await;
    let mut waiter = pin!(queue.next("waits"));
    waits(&mut waiter).await;
    queue.enqueue(&1).await.unwrap();
    woken(&mut watch).await;
    let (claimed, _) = queue.claim_hinted("takes", 10).await.unwrap();
    assert_eq!(claimed.len(), 1);
    // It is never heard of again.
    let job = timeout(LONG, waiter).await.expect("nobody looks for the lapsed claim").unwrap();
    assert_eq!((job.id(), job.attempt()), (claimed[0].id(), 2));
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_watch_that_ends_before_it_has_looked_passes_its_wake_on() {
    let (store, queue, mut watch) = watched().await;
    let mut waiter = pin!(queue.next("waits"));
    waits(&mut waiter).await;
    queue.enqueue(&1).await.unwrap();
    woken(&mut watch).await;
    drop(watch);
    let job = timeout(LONG, waiter).await.expect("nobody looks for the job").unwrap();
    assert_eq!(job.attempt(), 1);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_watch_that_ends_passes_on_what_it_waits_for() {
    let (store, queue, mut watch) = watched().await;
    let mut waiter = pin!(queue.next("waits"));
    waits(&mut waiter).await;
    queue.enqueue_with(&1, EnqueueOpts::new().delay(3 * SHORT)).await.unwrap();
    woken(&mut watch).await;
    let (_, hint) = queue.claim_hinted("looks", 1).await.unwrap();
    let wait = Wait { until: hint.next_due, within: None };
    assert!(wait.until.is_some());
    assert!(timeout(SHORT, watch.changed(wait)).await.is_err(), "it is told for nothing");
    drop(watch);
    let job = timeout(LONG, waiter).await.expect("nobody knows when the job falls due").unwrap();
    assert_eq!(job.attempt(), 1);
    store.close().await.unwrap();
}

#[tokio::test]
async fn who_takes_as_many_as_it_may_wakes_the_next_one() {
    let (store, queue, mut watch) = watched().await;
    let mut waiter = pin!(queue.next("waits"));
    waits(&mut waiter).await;
    let jobs = (1..=2).map(|n| alkstore_core::NewJob::new(&n).unwrap()).collect();
    queue.enqueue_many(jobs).await.unwrap();
    woken(&mut watch).await;
    let (claimed, _) = queue.claim_hinted("takes", 1).await.unwrap();
    let job = timeout(LONG, waiter).await.expect("nobody looks for the other job").unwrap();
    assert_ne!(job.id(), claimed[0].id());
    store.close().await.unwrap();
}

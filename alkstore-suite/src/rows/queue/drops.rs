//! Futures that are dropped before they end.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Job, JobState, Queue, StoreExt};
use futures_channel::oneshot;
use futures_util::future::{Either, select};

use super::{
    ROUNDS, add, add_many, brief_queue, count, now, queue, race, record, secs, state, take, waiter,
};
use crate::cx::{Cx, drop_at_every_await};

/// Waits until the job can be claimed, which nothing but a give-back makes it, and sees that no
/// attempt was charged.
async fn assert_given_back(cx: &Cx, queue: &Queue) {
    let found = Mutex::new(None);
    cx.until(async || {
        let job = queue.claim("after").await.unwrap();
        let is_some = job.is_some();
        *found.lock().unwrap() = job;
        is_some
    })
    .await;
    let mut job = found.into_inner().unwrap().expect("it was found");
    assert_eq!(job.attempt(), 1, "a claim whose caller is gone was charged");
    job.ack().await.unwrap();
}

pub(crate) async fn q32_a_dropped_claim_is_given_back(cx: Cx) {
    let queue = queue(&cx);
    add(&queue, EnqueueOpts::new()).await;
    let last = cx.within(drop_at_every_await(|| queue.claim("w"), async || ())).await.unwrap();
    match last {
        Some(mut job) => {
            assert_eq!(job.attempt(), 1, "a claim whose caller is gone was charged");
            job.ack().await.unwrap();
        }
        // The one before is just being given back.
        None => assert_given_back(&cx, &queue).await,
    }
}

pub(crate) async fn q32_a_dropped_batch_is_given_back_whole(cx: Cx) {
    let queue = queue(&cx);
    add_many(&queue, 5, EnqueueOpts::new()).await;
    let make = || queue.claim_batch("w", 10);
    let last = cx.within(drop_at_every_await(make, async || ())).await.unwrap();
    let held = last.len() as u64;
    cx.until(async || queue.stats().await.unwrap().ready == 5 - held).await;
    for job in last.iter().chain(&queue.claim_batch("w", 10).await.unwrap()) {
        assert_eq!(job.attempt(), 1, "a claim whose caller is gone was charged");
    }
}

pub(crate) async fn q32_a_dropped_wait_is_given_back(cx: Cx) {
    let queue = queue(&cx);
    add(&queue, EnqueueOpts::new()).await;
    let mut job = cx.within(drop_at_every_await(|| queue.next("w"), async || ())).await.unwrap();
    assert_eq!(job.attempt(), 1, "a claim whose caller is gone was charged");
    job.ack().await.unwrap();
}

pub(crate) async fn q24_a_job_that_is_given_back_counts_from_then(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let enqueued_at = record(&queue, id).await.enqueued_at;
    cx.advance(secs(5)).await;
    let given_back_at = now(&cx).await;
    let dropped = async || {
        cx.until(async || state(&queue, id).await == Some(JobState::Pending)).await;
        let back = record(&queue, id).await;
        assert_eq!((back.attempt, back.worker_id, back.deadline), (0, None, None));
        // Where the claim hadn't come to it, nothing was given back.
        assert!([enqueued_at, given_back_at].contains(&back.ready_at), "{:?}", back.ready_at);
    };
    let mut job = cx.within(drop_at_every_await(|| queue.next("w"), dropped)).await.unwrap();
    job.ack().await.unwrap();
}

pub(crate) async fn q73_what_is_written_after_dropped_calls_is_kept(cx: Cx) {
    let queue = queue(&cx);
    let reader = cx.second().await.queue("q").unwrap();
    drop(cx.within(drop_at_every_await(|| queue.claim("w"), async || ())).await.unwrap());
    let tx = cx.within(drop_at_every_await(|| cx.store.begin_tx(), async || ())).await.unwrap();
    tx.rollback().await.unwrap();
    for added in 1..=20 {
        add(&queue, EnqueueOpts::new()).await;
        assert_eq!(count(&reader).await, added, "an enqueue that was acknowledged is gone");
    }
}

/// `next` beside a stop signal, as `select!` does it: `None` where the signal came first.
async fn next_or_stopped(queue: Queue, stop: oneshot::Receiver<()>) -> Option<Job> {
    match select(pin!(queue.next("w")), stop).await {
        Either::Left((job, _)) => Some(job.unwrap()),
        Either::Right(_) => None,
    }
}

pub(crate) async fn q32_a_wait_that_loses_a_race_loses_no_job(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    for round in 0..ROUNDS {
        let (stop, stopped) = oneshot::channel();
        let waiting = cx.spawn(next_or_stopped(queue.clone(), stopped));
        if round % 10 == 0 {
            cx.settle().await;
        }
        let adding = other.clone();
        let adding = async move { add(&adding, EnqueueOpts::new()).await };
        let _ = race(&cx, round, adding, async move { stop.send(()) }).await;
        match waiting.join().await {
            Some(mut job) => {
                assert_eq!(job.attempt(), 1);
                job.ack().await.unwrap();
            }
            None => assert_given_back(&cx, &queue).await,
        }
        assert_eq!(count(&queue).await, 0);
    }
}

pub(crate) async fn q68_a_waiter_that_leaves_passes_its_wake_on(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    for round in 0..ROUNDS {
        let (stop, stopped) = oneshot::channel();
        let leaving = cx.spawn(next_or_stopped(queue.clone(), stopped));
        let staying_queue = if round % 2 == 0 { queue.clone() } else { other.clone() };
        let staying = cx.spawn(async move { staying_queue.next("stays").await.unwrap() });
        if round % 10 == 0 {
            cx.settle().await;
        }
        let adding = other.clone();
        let adding = async move { add(&adding, EnqueueOpts::new()).await };
        let _ = race(&cx, round, adding, async move { stop.send(()) }).await;
        if let Some(mut job) = leaving.join().await {
            job.release(Duration::ZERO).await.unwrap();
        }
        let mut job = staying.join().await;
        assert_eq!(job.attempt(), 1);
        job.ack().await.unwrap();
    }
}

pub(crate) async fn q32_a_dropped_waiter_leaves_the_queue_to_the_others(cx: Cx) {
    let queue = queue(&cx);
    let waiting = waiter(&cx, &queue).await;
    waiting.cancel().await;
    let id = add(&queue, EnqueueOpts::new()).await;
    cx.settle().await;
    assert_eq!(take(&queue).await.id(), id);
}

pub(crate) async fn q73_a_dropped_enqueue_has_added_all_or_nothing(cx: Cx) {
    let queue = queue(&cx);
    let make = || add_many(&queue, 3, EnqueueOpts::new());
    let added = cx.within(drop_at_every_await(make, async || ())).await;
    assert_eq!(added.len(), 3);
    cx.settle().await;
    let seen = count(&queue).await;
    assert!(seen >= 3 && seen % 3 == 0, "a part of a batch was added: {seen}");
    assert_eq!(queue.claim_batch("w", 10_000).await.unwrap().len(), seen);
}

pub(crate) async fn q73_a_dropped_settlement_took_effect_or_not(cx: Cx) {
    let queue = brief_queue(&cx);
    let added = add_many(&queue, 50, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 50).await.unwrap();
    let make = || {
        let mut job = jobs.pop().expect("a settlement has few awaits");
        async move { job.ack().await }
    };
    cx.within(drop_at_every_await(make, async || ())).await.unwrap();
    cx.settle().await;
    let mut left = 0;
    for id in added {
        match state(&queue, id).await {
            None => {}
            Some(JobState::Claimed) => left += 1,
            other => panic!("job {id} is {other:?}"),
        }
    }
    assert!(left < 50, "the last one ended, and yet nothing is gone");
    for mut job in jobs {
        job.ack().await.unwrap();
        left -= 1;
    }
    cx.advance(secs(10)).await;
    let rest = queue.claim_batch("w", 50).await.unwrap();
    assert_eq!(rest.len(), left);
    assert!(rest.iter().all(|job| job.attempt() == 2));
}

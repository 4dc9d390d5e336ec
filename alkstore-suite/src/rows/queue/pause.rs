//! Paused queues.

use std::time::Duration;

use alkstore_core::{EnqueueOpts, JobFilter, JobState, StoreExt};

use super::{
    add, add_dead, add_many, assert_none, brief, brief_queue, queue, secs, state, take, take_id,
    waiter,
};
use crate::cx::Cx;

pub(crate) async fn q60_claims_of_a_paused_queue_find_nothing(cx: Cx) {
    let (queue, other) = (queue(&cx), cx.store.queue("other").unwrap());
    let second = cx.second().await.queue("q").unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let elsewhere = add(&other, EnqueueOpts::new()).await;
    assert!(queue.pause().await.unwrap());
    assert!(!second.pause().await.unwrap(), "it was paused already");
    for queue in [&queue, &second] {
        assert_none(queue).await;
        assert!(queue.claim_batch("w", 9).await.unwrap().is_empty());
        let stats = queue.stats().await.unwrap();
        assert_eq!((stats.paused, stats.ready), (true, 1));
    }
    assert_eq!(take_id(&other).await, elsewhere);
    assert!(second.resume().await.unwrap());
    assert!(!queue.resume().await.unwrap(), "it wasn't paused");
    assert!(!queue.stats().await.unwrap().paused);
    assert_eq!(take_id(&queue).await, id);
}

pub(crate) async fn q60_everything_else_goes_on_in_a_paused_queue(cx: Cx) {
    let queue = brief_queue(&cx);
    let dead = add_dead(&queue, EnqueueOpts::new()).await;
    let held = add_many(&queue, 6, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 6).await.unwrap();
    queue.pause().await.unwrap();
    let added = add(&queue, EnqueueOpts::new()).await;
    jobs[0].ack().await.unwrap();
    jobs[1].retry("again", None).await.unwrap();
    jobs[2].fail("no").await.unwrap();
    jobs[3].release(Duration::ZERO).await.unwrap();
    jobs[4].heartbeat(secs(60)).await.unwrap();
    assert!(queue.cancel(held[5]).await.unwrap());
    assert_eq!(queue.requeue_dead(dead).await.unwrap(), 1);
    assert_eq!(queue.purge_dead(held[2]).await.unwrap(), 1);
    cx.advance(secs(20)).await;
    assert_none(&queue).await;
    let states = [
        (dead, Some(JobState::Pending)),
        (added, Some(JobState::Pending)),
        (held[0], None),
        (held[1], Some(JobState::Pending)),
        (held[2], None),
        (held[3], Some(JobState::Pending)),
        (held[4], Some(JobState::Claimed)),
        (held[5], None),
    ];
    for (id, expected) in states {
        assert_eq!(state(&queue, id).await, expected, "job {id}");
    }
}

pub(crate) async fn q61_a_pause_needs_no_jobs_and_lasts(cx: Cx) {
    let queue = queue(&cx);
    assert!(queue.pause().await.unwrap());
    let id = add(&queue, EnqueueOpts::new()).await;
    assert!(queue.cancel(id).await.unwrap());
    cx.advance(secs(1_000_000)).await;
    cx.store.maintain().await.unwrap();
    let later = cx.second().await;
    assert!(later.queues().await.unwrap()[0].paused);
    let queue = later.queue("q").unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    assert_none(&queue).await;
    assert!(queue.resume().await.unwrap());
    assert_eq!(take(&queue).await.id(), id);
}

pub(crate) async fn q61_a_waiter_sleeps_through_a_pause(cx: Cx) {
    let queue = queue(&cx);
    let second = cx.second().await.queue("q").unwrap();
    queue.pause().await.unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let waiting = waiter(&cx, &second).await;
    cx.advance(secs(60)).await;
    cx.settle().await;
    assert!(!waiting.is_done(), "a paused queue handed out a job");
    queue.resume().await.unwrap();
    assert_eq!(waiting.join().await.id(), id);
}

pub(crate) async fn q75_a_queue_outlives_its_handles(cx: Cx) {
    let queue = brief_queue(&cx);
    let dead = add_dead(&queue, EnqueueOpts::new()).await;
    let held = add(&queue, EnqueueOpts::new()).await;
    let _ = take(&queue).await;
    let delayed = add(&queue, EnqueueOpts::new().delay(secs(60))).await;
    let gone = add(&queue, EnqueueOpts::new()).await;
    assert!(queue.cancel(gone).await.unwrap());
    assert!(queue.pause().await.unwrap());
    let before = queue.jobs(JobFilter::new()).await.unwrap();
    cx.store.close().await.unwrap();

    let again = cx.second().await.queue_with("q", brief()).unwrap();
    assert_eq!(again.jobs(JobFilter::new()).await.unwrap(), before);
    let stats = again.stats().await.unwrap();
    assert_eq!((stats.delayed, stats.claimed, stats.dead, stats.paused), (1, 1, 1, true));
    assert!(again.resume().await.unwrap());
    let new = add(&again, EnqueueOpts::new()).await;
    assert!(new > gone, "the id of the last job was used again");
    assert_eq!(take_id(&again).await, new);
    cx.advance(secs(10)).await;
    let job = take(&again).await;
    assert_eq!((job.id(), job.attempt()), (held, 2));
    assert_eq!(again.requeue_dead(dead).await.unwrap(), 1);
    assert_eq!(state(&again, delayed).await, Some(JobState::Pending));
}

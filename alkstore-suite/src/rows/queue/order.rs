//! Which jobs a claim hands out, and in which order.

use std::time::Duration;

use alkstore_core::{EnqueueOpts, QueueOpts, StoreExt};

use super::{
    MANY, add, add_many, assert_none, brief_queue, ids, millis, now, queue, secs, take, take_id,
};
use crate::cx::Cx;

fn delayed(delay: Duration) -> EnqueueOpts {
    EnqueueOpts::new().delay(delay)
}

pub(crate) async fn q23_a_claim_hands_out_at_most_so_many(cx: Cx) {
    let queue = queue(&cx);
    let added = add_many(&queue, 4, EnqueueOpts::new()).await;
    assert!(queue.claim_batch("w", 0).await.unwrap().is_empty());
    assert_eq!(queue.stats().await.unwrap().ready, 4);
    assert_eq!(ids(&queue.claim_batch("w", 3).await.unwrap()), added[..3]);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.ready, stats.claimed), (1, 3), "more were claimed than handed out");
    let last = queue.claim_batch("w", usize::MAX).await.unwrap();
    assert_eq!(ids(&last), added[3..]);
    assert_eq!(last[0].attempt(), 1);
    assert!(queue.claim_batch("w", 1).await.unwrap().is_empty());
}

pub(crate) async fn q24_of_equal_priority_the_longest_claimable_comes_first(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().visibility_timeout(secs(100))).unwrap();
    let lapsed = add(&queue, EnqueueOpts::new()).await;
    let due = add(&queue, delayed(secs(50))).await;
    let retried = add(&queue, EnqueueOpts::new()).await;
    let released = add(&queue, EnqueueOpts::new()).await;
    let requeued = add(&queue, EnqueueOpts::new()).await;
    let mut held = queue.claim_batch("w", 10).await.unwrap();
    assert_eq!(ids(&held), [lapsed, retried, released, requeued]);
    held[3].fail("no").await.unwrap();

    cx.advance(secs(10)).await;
    let enqueued = add(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(10)).await;
    assert_eq!(queue.requeue_dead(requeued).await.unwrap(), 1);
    cx.advance(secs(10)).await;
    held[2].release(Duration::ZERO).await.unwrap();
    cx.advance(secs(5)).await;
    held[1].retry("again", Some(secs(5))).await.unwrap();
    cx.advance(secs(65)).await;

    let jobs = queue.claim_batch("w", 10).await.unwrap();
    assert_eq!(ids(&jobs), [enqueued, requeued, released, retried, due, lapsed]);
}

pub(crate) async fn q24_a_past_instant_counts_from_the_enqueue(cx: Cx) {
    let queue = queue(&cx);
    let start = now(&cx).await;
    let first = add(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(1)).await;
    let past = add(&queue, EnqueueOpts::new().run_at(start - secs(3_600))).await;
    assert_eq!(ids(&queue.claim_batch("w", 10).await.unwrap()), [first, past]);
}

pub(crate) async fn q24_of_the_same_instant_the_lower_id_comes_first(cx: Cx) {
    let (one, other) = (queue(&cx), cx.second().await.queue("q").unwrap());
    let mut added = vec![add(&one, delayed(secs(10))).await];
    cx.advance(secs(5)).await;
    added.push(add(&other, delayed(secs(5))).await);
    added.push(add(&one, delayed(secs(5))).await);
    cx.advance(secs(5)).await;
    added.push(add(&one, EnqueueOpts::new()).await);
    added.push(add(&other, EnqueueOpts::new()).await);
    added.sort();
    assert_eq!(ids(&one.claim_batch("w", 10).await.unwrap()), added);
}

pub(crate) async fn q24_priority_goes_before_every_instant(cx: Cx) {
    let queue = brief_queue(&cx);
    let lapsed = add(&queue, EnqueueOpts::new()).await;
    let _ = take(&queue).await;
    let low = add(&queue, EnqueueOpts::new().priority(-1)).await;
    cx.advance(secs(10)).await;
    let high = add(&queue, EnqueueOpts::new().priority(1)).await;
    let due = add(&queue, delayed(secs(1)).priority(2)).await;
    cx.advance(secs(1)).await;
    assert_eq!(take_id(&queue).await, due);
    assert_eq!(ids(&queue.claim_batch("w", 10).await.unwrap()), [high, lapsed, low]);
}

pub(crate) async fn q25_what_is_not_yet_claimable_has_no_place_in_the_order(cx: Cx) {
    let queue = queue(&cx);
    let later = add(&queue, delayed(secs(10)).priority(9)).await;
    let low = add_many(&queue, 2, EnqueueOpts::new()).await;
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(take_id(&queue).await, low[0]);
    cx.advance(millis(1)).await;
    assert_eq!(take_id(&queue).await, later);
    assert_eq!(take_id(&queue).await, low[1]);
    assert_none(&queue).await;
}

pub(crate) async fn q26_a_backlog_within_the_bound_is_taken_in_whole(cx: Cx) {
    let queue = queue(&cx);
    add_many(&queue, 999, delayed(secs(10))).await;
    let high = add(&queue, delayed(secs(20)).priority(1)).await;
    cx.advance(secs(20)).await;
    assert_eq!(take_id(&queue).await, high);
}

pub(crate) async fn q26_of_a_larger_backlog_the_oldest_thousand_are_taken_in(cx: Cx) {
    let queue = queue(&cx);
    let low = add_many(&queue, 1_000, delayed(secs(10))).await;
    let high = add(&queue, delayed(secs(20)).priority(1)).await;
    cx.advance(secs(20)).await;
    assert_eq!(queue.stats().await.unwrap().ready, 1_001, "what is read depends on no claim");
    assert_eq!(take_id(&queue).await, low[0]);
    assert_eq!(take_id(&queue).await, high);
    assert_eq!(take_id(&queue).await, low[1]);
}

pub(crate) async fn q26_due_and_lapsed_jobs_are_taken_in_together(cx: Cx) {
    for lapsed_first in [false, true] {
        let (due, timeout) = if lapsed_first { (15, 10) } else { (10, 15) };
        let opts = QueueOpts::new().visibility_timeout(secs(timeout));
        let queue = cx.store.queue_with(&format!("q{lapsed_first}"), opts).unwrap();
        let held = add_many(&queue, 500, EnqueueOpts::new()).await;
        assert_eq!(queue.claim_batch("w", 500).await.unwrap().len(), 500);
        let delayed_jobs = add_many(&queue, 500, delayed(secs(due))).await;
        let high = add(&queue, delayed(secs(16)).priority(1)).await;
        cx.advance(secs(16)).await;
        let oldest = if lapsed_first { held[0] } else { delayed_jobs[0] };
        assert_eq!(take_id(&queue).await, oldest);
        assert_eq!(take_id(&queue).await, high);
    }
}

pub(crate) async fn q26_a_batch_holds_no_more_than_was_taken_in(cx: Cx) {
    let queue = queue(&cx);
    let added = add_many(&queue, 1_200, delayed(secs(10))).await;
    cx.advance(secs(10)).await;
    assert_eq!(ids(&queue.claim_batch("w", 2_000).await.unwrap()), added[..1_000]);
    assert_eq!(ids(&queue.claim_batch("w", 2_000).await.unwrap()), added[1_000..]);
}

pub(crate) async fn q26_what_was_never_delayed_needs_no_taking_in(cx: Cx) {
    let queue = queue(&cx);
    add_many(&queue, MANY, EnqueueOpts::new()).await;
    cx.advance(secs(1)).await;
    let high = add(&queue, EnqueueOpts::new().priority(1)).await;
    assert_eq!(take_id(&queue).await, high);
}

pub(crate) async fn q26_the_bound_is_each_queue_s_own(cx: Cx) {
    let (queue, other) = (queue(&cx), cx.store.queue("other").unwrap());
    add_many(&other, MANY, delayed(secs(10))).await;
    add(&queue, delayed(secs(19))).await;
    let high = add(&queue, delayed(secs(20)).priority(1)).await;
    cx.advance(secs(20)).await;
    assert_eq!(take_id(&queue).await, high);
}

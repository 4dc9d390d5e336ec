//! What is read: by the clock, whatever was swept or not.

use alkstore_core::{
    DeadSelection, EXPIRED_ERROR, EnqueueOpts, JobFilter, JobId, JobState, LAPSED_ERROR,
    OutboxOpts, Queue, StoreExt,
};

use super::{
    add, add_dead, add_many, assert_lost, assert_none, brief, brief_queue, keyed, millis, now,
    queue, record, secs, state, take, take_id,
};
use crate::cx::Cx;

pub(crate) async fn q47_a_job_that_is_pending_or_claimed_can_be_cancelled(cx: Cx) {
    let queue = queue(&cx);
    let held = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let ready = add(&queue, EnqueueOpts::new()).await;
    let delayed = add(&queue, EnqueueOpts::new().delay(secs(60))).await;
    for id in [held, ready, delayed] {
        assert!(queue.cancel(id).await.unwrap());
        assert_eq!(state(&queue, id).await, None);
        assert!(!queue.cancel(id).await.unwrap());
    }
    assert_lost(job.heartbeat(secs(60)).await);
    assert_lost(job.ack().await);
    cx.advance(secs(600)).await;
    assert_none(&queue).await;
}

pub(crate) async fn q47_nothing_else_can_be_cancelled(cx: Cx) {
    let (queue, other) = (queue(&cx), cx.store.queue("other").unwrap());
    let dead = add_dead(&queue, EnqueueOpts::new()).await;
    assert!(!queue.cancel(dead).await.unwrap());
    assert_eq!(state(&queue, dead).await, Some(JobState::Dead));
    let elsewhere = add(&other, EnqueueOpts::new()).await;
    assert!(!queue.cancel(elsewhere).await.unwrap());
    assert_eq!(state(&other, elsewhere).await, Some(JobState::Pending));
    assert!(!queue.cancel(JobId::try_from(i64::MAX).unwrap()).await.unwrap());
}

pub(crate) async fn q54_a_lapsed_claim_with_attempts_left_is_pending(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let deadline = take(&queue).await.deadline();
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(state(&queue, id).await, Some(JobState::Claimed));
    cx.advance(secs(1)).await;
    let record = record(&queue, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
    assert_eq!((record.worker_id, record.deadline), (None, None));
    assert_eq!(record.ready_at, deadline);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.ready, stats.claimed, stats.oldest_ready_at), (1, 0, Some(deadline)));
    let pending = queue.jobs(JobFilter::new().state(JobState::Pending)).await.unwrap();
    assert_eq!(pending.len(), 1);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let seen = tx.get_job_tx("q", id).await.unwrap().expect("the job exists");
    assert_eq!(seen, pending[0]);
    tx.rollback().await.unwrap();
}

/// Reads a job in every way there is and sees it dead, with this error, since this instant.
async fn assert_reads_dead(
    cx: &Cx,
    queue: &Queue,
    id: JobId,
    error: &str,
    died_at: std::time::SystemTime,
) {
    let dead = record(queue, id).await;
    assert_eq!((dead.state, dead.last_error.as_deref()), (JobState::Dead, Some(error)));
    assert_eq!(dead.died_at, Some(died_at));
    assert_eq!((&dead.worker_id, dead.deadline), (&None, None));
    let listed = queue.jobs(JobFilter::new().state(JobState::Dead)).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&dead));
    for live in [JobState::Pending, JobState::Claimed] {
        assert!(queue.jobs(JobFilter::new().state(live)).await.unwrap().is_empty());
    }
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.ready, stats.delayed, stats.claimed, stats.dead), (0, 0, 0, 1));
    assert_eq!(stats.oldest_ready_at, None);
    assert_eq!(cx.store.queues().await.unwrap(), [stats]);
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_eq!(tx.get_job_tx(queue.name(), id).await.unwrap(), Some(dead));
    tx.rollback().await.unwrap();
    assert!(!queue.cancel(id).await.unwrap(), "a dead job was cancelled");
}

pub(crate) async fn q54_a_lapsed_claim_without_attempts_is_dead(cx: Cx) {
    let queue = cx.store.queue_with("q", brief().max_attempts(1)).unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let deadline = take(&queue).await.deadline();
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(state(&queue, id).await, Some(JobState::Claimed));
    cx.advance(secs(5)).await;
    assert_reads_dead(&cx, &queue, id, LAPSED_ERROR, deadline).await;
}

pub(crate) async fn q54_an_expired_job_is_dead(cx: Cx) {
    let queue = queue(&cx);
    let start = now(&cx).await;
    let id = add(&queue, EnqueueOpts::new().delay(secs(5)).expires(secs(10))).await;
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(state(&queue, id).await, Some(JobState::Pending));
    cx.advance(millis(1)).await;
    assert_reads_dead(&cx, &queue, id, EXPIRED_ERROR, start + secs(10)).await;
    cx.advance(secs(5)).await;
    assert_reads_dead(&cx, &queue, id, EXPIRED_ERROR, start + secs(10)).await;
}

pub(crate) async fn q54_a_claim_that_lapsed_after_the_expiry_is_dead_since_the_expiry(cx: Cx) {
    let queue = brief_queue(&cx);
    let start = now(&cx).await;
    let id = add(&queue, EnqueueOpts::new().expires(secs(5))).await;
    let _ = take(&queue).await;
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(state(&queue, id).await, Some(JobState::Claimed));
    cx.advance(millis(1)).await;
    assert_reads_dead(&cx, &queue, id, EXPIRED_ERROR, start + secs(5)).await;
}

pub(crate) async fn q54_a_sweep_changes_nothing_of_what_is_read_of_the_dead(cx: Cx) {
    for sweep in ["claim", "maintain", "requeue", "purge"] {
        let queue = cx.store.queue_with(sweep, brief()).unwrap();
        let start = now(&cx).await;
        let expiring = |after| EnqueueOpts::new().expires(secs(after));
        let held = add(&queue, expiring(5)).await;
        let lapsed = add(&queue, expiring(15)).await;
        let exhausted = add(&queue, EnqueueOpts::new().max_attempts(1)).await;
        assert_eq!(queue.claim_batch("w", 10).await.unwrap().len(), 3);
        let waited = add(&queue, expiring(5).delay(secs(3))).await;
        let early = add(&queue, expiring(5).delay(secs(60))).await;
        cx.advance(secs(20)).await;
        let read = async || queue.jobs(JobFilter::new().state(JobState::Dead)).await.unwrap();
        let before = read().await;
        // When each could last be claimed, or could have been.
        let ready: Vec<_> = before.iter().map(|job| (job.id, job.ready_at)).collect();
        let expected = [(held, 0), (lapsed, 10), (exhausted, 0), (waited, 3), (early, 60)];
        assert_eq!(ready, expected.map(|(id, after)| (id, start + secs(after))));
        match sweep {
            "claim" => assert_none(&queue).await,
            "maintain" => assert!(cx.store.maintain().await.unwrap().expired >= 4),
            "requeue" => assert_eq!(queue.requeue_dead(Vec::new()).await.unwrap(), 0),
            _ => assert_eq!(queue.purge_dead(Vec::new()).await.unwrap(), 0),
        }
        assert_eq!(read().await, before, "a {sweep} is seen");
    }
}

pub(crate) async fn q54_time_holds_back_nothing_from_requeue_and_purge(cx: Cx) {
    for purge in [false, true] {
        for all in [false, true] {
            let cx = cx.isolated().await;
            let queue = cx.store.queue_with("q", brief().max_attempts(1)).unwrap();
            let lapsed = add(&queue, EnqueueOpts::new()).await;
            let _ = take(&queue).await;
            cx.advance(secs(5)).await;
            // Those whose time comes later neither go with them nor hide them.
            let held = add(&queue, EnqueueOpts::new()).await;
            let _ = take(&queue).await;
            let lasting = add(&queue, EnqueueOpts::new().expires(secs(15))).await;
            let expired = add(&queue, EnqueueOpts::new().expires(secs(5))).await;
            let which = if all { DeadSelection::All } else { vec![lapsed, expired].into() };
            cx.advance(secs(5)).await;
            if purge {
                assert_eq!(queue.purge_dead(which).await.unwrap(), 2);
                assert_eq!(super::ids(&queue.claim_batch("w", 9).await.unwrap()), [lasting]);
            } else {
                assert_eq!(queue.requeue_dead(which).await.unwrap(), 2);
                let ids = super::ids(&queue.claim_batch("w", 9).await.unwrap());
                assert_eq!(ids, [lasting, lapsed, expired]);
            }
            assert_eq!(state(&queue, held).await, Some(JobState::Claimed));
            assert_eq!(queue.stats().await.unwrap().dead, 0);
        }
    }
}

pub(crate) async fn q55_a_lapse_on_the_last_attempt_wins_over_the_expiry(cx: Cx) {
    let opts = brief().max_attempts(1);
    for expires in [5, 10, 15] {
        for sweep in [false, true] {
            let cx = cx.isolated().await;
            let queue = cx.store.queue_with("q", opts.clone()).unwrap();
            let id = add(&queue, EnqueueOpts::new().expires(secs(expires))).await;
            let deadline = take(&queue).await.deadline();
            cx.advance(secs(20)).await;
            if sweep {
                assert_none(&queue).await;
            }
            assert_reads_dead(&cx, &queue, id, LAPSED_ERROR, deadline).await;
        }
    }
}

pub(crate) async fn q56_cancel_goes_by_the_clock(cx: Cx) {
    let queue = brief_queue(&cx);
    let lapsed = add(&queue, EnqueueOpts::new()).await;
    let exhausted = add(&queue, EnqueueOpts::new().max_attempts(1)).await;
    let mut held = queue.claim_batch("w", 2).await.unwrap();
    let expired = add(&queue, EnqueueOpts::new().expires(secs(10))).await;
    cx.advance(secs(10)).await;
    for dead in [exhausted, expired] {
        assert!(!queue.cancel(dead).await.unwrap());
        assert_eq!(state(&queue, dead).await, Some(JobState::Dead));
    }
    assert!(queue.cancel(lapsed).await.unwrap());
    assert_eq!(state(&queue, lapsed).await, None);
    assert_lost(held[0].ack().await);
}

pub(crate) async fn q57_jobs_are_paged_by_id(cx: Cx) {
    let queue = queue(&cx);
    add(&cx.store.queue("other").unwrap(), EnqueueOpts::new()).await;
    let mut added = Vec::new();
    for priority in [0, 5, -5] {
        added.extend(add_many(&queue, 35, EnqueueOpts::new().priority(priority)).await);
    }
    let page = async |filter: JobFilter| {
        let page = queue.jobs(filter).await.unwrap();
        page.into_iter().map(|job| job.id).collect::<Vec<_>>()
    };
    assert_eq!(page(JobFilter::new()).await, added[..100]);
    assert_eq!(page(JobFilter::new().after(added[99])).await, added[100..]);
    assert_eq!(page(JobFilter::new().limit(2).after(added[3])).await, added[4..6]);
    assert_eq!(page(JobFilter::new().limit(usize::MAX)).await, added);
    assert!(page(JobFilter::new().limit(0)).await.is_empty());
    assert!(page(JobFilter::new().after(added[104])).await.is_empty());
    assert!(queue.cancel(added[4]).await.unwrap());
    assert_eq!(page(JobFilter::new().limit(1).after(added[4])).await, [added[5]]);
}

pub(crate) async fn q57_jobs_are_filtered_by_state(cx: Cx) {
    let queue = queue(&cx);
    let dead = add_dead(&queue, EnqueueOpts::new()).await;
    let held = add_many(&queue, 2, EnqueueOpts::new()).await;
    assert_eq!(queue.claim_batch("w", 2).await.unwrap().len(), 2);
    let ready = add(&queue, EnqueueOpts::new()).await;
    let delayed = add(&queue, EnqueueOpts::new().delay(secs(60))).await;
    let filtered = async |filter: JobFilter| {
        let page = queue.jobs(filter).await.unwrap();
        page.into_iter().map(|job| job.id).collect::<Vec<_>>()
    };
    let with = |state| JobFilter::new().state(state);
    assert_eq!(filtered(with(JobState::Dead)).await, [dead]);
    assert_eq!(filtered(with(JobState::Claimed)).await, held);
    assert_eq!(filtered(with(JobState::Pending)).await, [ready, delayed]);
    assert_eq!(filtered(with(JobState::Claimed).limit(1).after(held[0])).await, held[1..]);
    assert_eq!(filtered(with(JobState::Pending).limit(1)).await, [ready]);
}

pub(crate) async fn q58_stats_count_jobs_by_where_they_stand(cx: Cx) {
    let queue = brief_queue(&cx);
    add_dead(&queue, EnqueueOpts::new()).await;
    add_many(&queue, 2, EnqueueOpts::new()).await;
    assert_eq!(queue.claim_batch("w", 2).await.unwrap().len(), 2);
    add_many(&queue, 3, EnqueueOpts::new().delay(secs(5))).await;
    let stats = queue.stats().await.unwrap();
    let counts = (stats.ready, stats.delayed, stats.claimed, stats.dead);
    assert_eq!((counts, stats.paused, stats.oldest_ready_at), ((0, 3, 2, 1), false, None));
    let oldest = now(&cx).await + secs(5);
    cx.advance(secs(6)).await;
    add(&queue, EnqueueOpts::new()).await;
    let stats = cx.second().await.queue("q").unwrap().stats().await.unwrap();
    let counts = (stats.ready, stats.delayed, stats.claimed, stats.dead);
    assert_eq!((counts, stats.oldest_ready_at), ((4, 0, 2, 1), Some(oldest)));
    cx.advance(secs(4)).await;
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.ready, stats.claimed), (6, 0), "claims have lapsed");
    assert_eq!(stats.name, "q");
}

pub(crate) async fn q59_every_queue_with_a_job_or_paused_is_listed_by_name(cx: Cx) {
    let store = &cx.store;
    for name in ["z", "a", "B", "\u{e9}", "gone", "dead"] {
        add(&store.queue(name).unwrap(), EnqueueOpts::new()).await;
    }
    store.queue("paused").unwrap().pause().await.unwrap();
    take(&store.queue("gone").unwrap()).await.ack().await.unwrap();
    take(&store.queue("dead").unwrap()).await.fail("no").await.unwrap();
    let long = "o".repeat(255);
    let backing = format!("__alkstore_outbox:{long}");
    store.outbox(&long).unwrap().enqueue(&1, OutboxOpts::default()).await.unwrap();
    let queues = cx.second().await.queues().await.unwrap();
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["B", &backing, "a", "dead", "paused", "z", "\u{e9}"]);
    for stats in &queues {
        if stats.name != backing {
            assert_eq!(&store.queue(&stats.name).unwrap().stats().await.unwrap(), stats);
        }
    }
    store.queue("paused").unwrap().resume().await.unwrap();
    assert_eq!(store.queues().await.unwrap().len(), 6);
}

pub(crate) async fn q59_a_queue_of_the_longest_name_is_listed(cx: Cx) {
    let name = "\u{e9}".repeat(127);
    let queue = cx.store.queue(&name).unwrap();
    let id = add(&queue, keyed("k")).await;
    assert_eq!(cx.store.queues().await.unwrap()[0].name, name);
    assert_eq!(take_id(&queue).await, id);
}

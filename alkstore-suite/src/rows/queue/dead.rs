//! Dead letters: what they keep, requeue, purge, retention, maintenance.

use std::time::Duration;

use alkstore_core::{
    DeadSelection, EXPIRED_ERROR, EnqueueOpts, Headers, JobFilter, JobId, JobState, LAPSED_ERROR,
    Maintenance, Queue, QueueOpts, StoreExt,
};

use super::{
    MANY, add, add_dead, add_many, assert_none, assert_unavailable, brief, brief_queue, count,
    impatient, keyed, millis, now, queue, record, secs, state, take, take_id,
};
use crate::cx::Cx;

fn unknown() -> JobId {
    JobId::try_from(i64::MAX).unwrap()
}

fn retained(retention: Duration) -> QueueOpts {
    QueueOpts::new().dead_retention(retention)
}

pub(crate) async fn q48_a_dead_job_keeps_what_it_was(cx: Cx) {
    let opts = brief().max_attempts(4).retry_base(secs(3)).dead_retention(secs(1_000));
    let queue = cx.store.queue_with("q", opts).unwrap();
    let headers = Headers::new([("k", "v")]).unwrap();
    let opts = keyed("key").priority(5).expires(secs(100)).headers(headers.clone());
    let enqueued_at = now(&cx).await;
    let id = add_dead(&queue, opts).await;
    cx.advance(secs(500)).await;
    let dead = record(&cx.second().await.queue("q").unwrap(), id).await;
    assert_eq!((dead.id, dead.queue.as_str(), dead.state), (id, "q", JobState::Dead));
    assert_eq!((dead.payload.as_str(), dead.headers), ("\"work\"", headers));
    assert_eq!((dead.priority, dead.attempt, dead.max_attempts), (5, 1, 4));
    assert_eq!((dead.visibility_timeout, dead.retry_base), (secs(10), secs(3)));
    assert_eq!(dead.dead_retention, Some(secs(1_000)));
    assert_eq!(dead.unique_key.as_deref(), Some("key"));
    assert_eq!((dead.enqueued_at, dead.died_at), (enqueued_at, Some(enqueued_at)));
    assert_eq!(dead.last_error.as_deref(), Some("no"));
}

pub(crate) async fn q49_a_requeued_job_begins_anew(cx: Cx) {
    let opts = brief().max_attempts(2).retry_base(secs(3)).dead_retention(secs(1_000));
    let queue = cx.store.queue_with("q", opts).unwrap();
    let id = add_dead(&queue, keyed("key").priority(5).expires(secs(60))).await;
    cx.advance(secs(100)).await;
    let other = cx.store.queue("q").unwrap();
    assert_eq!(other.requeue_dead(id).await.unwrap(), 1);
    let requeued = record(&queue, id).await;
    assert_eq!((requeued.state, requeued.attempt), (JobState::Pending, 0));
    assert_eq!((requeued.expires_at, requeued.died_at), (None, None));
    assert_eq!(requeued.ready_at, now(&cx).await);
    assert_eq!((requeued.priority, requeued.max_attempts), (5, 2));
    assert_eq!((requeued.visibility_timeout, requeued.retry_base), (secs(10), secs(3)));
    assert_eq!(requeued.dead_retention, Some(secs(1_000)));
    assert_eq!(requeued.unique_key.as_deref(), Some("key"));
    cx.advance(secs(1_000_000)).await;
    for attempt in 1..=2 {
        let mut job = take(&queue).await;
        assert_eq!((job.id(), job.attempt()), (id, attempt));
        job.retry("again", Some(Duration::ZERO)).await.unwrap();
    }
    assert_eq!(state(&queue, id).await, Some(JobState::Dead));
}

pub(crate) async fn q49_only_dead_jobs_of_the_queue_are_requeued(cx: Cx) {
    let (queue, other) = (queue(&cx), cx.store.queue("other").unwrap());
    let dead = add_dead(&queue, EnqueueOpts::new()).await;
    let elsewhere = add_dead(&other, EnqueueOpts::new()).await;
    let held = add(&queue, EnqueueOpts::new()).await;
    let _held = take(&queue).await;
    let pending = add(&queue, EnqueueOpts::new().delay(secs(60))).await;
    let which = vec![pending, dead, held, elsewhere, unknown(), dead];
    assert_eq!(queue.requeue_dead(which).await.unwrap(), 1);
    assert_eq!(queue.requeue_dead(dead).await.unwrap(), 0);
    assert_eq!(queue.requeue_dead(Vec::new()).await.unwrap(), 0);
    assert_eq!(state(&queue, dead).await, Some(JobState::Pending));
    assert_eq!(state(&queue, held).await, Some(JobState::Claimed));
    assert_eq!(state(&queue, pending).await, Some(JobState::Pending));
    assert_eq!(queue.stats().await.unwrap().delayed, 1, "a delayed job was made due");
    assert_eq!(state(&other, elsewhere).await, Some(JobState::Dead));
}

pub(crate) async fn q49_all_dead_jobs_are_requeued_at_once(cx: Cx) {
    let queue = queue(&cx);
    let added = add_many(&queue, MANY, EnqueueOpts::new().expires(secs(1))).await;
    let other = cx.store.queue("other").unwrap();
    add_dead(&other, EnqueueOpts::new()).await;
    cx.advance(secs(1)).await;
    assert_eq!(queue.requeue_dead(DeadSelection::All).await.unwrap(), MANY as u64);
    assert_eq!(queue.requeue_dead(DeadSelection::All).await.unwrap(), 0);
    assert_eq!(take_id(&queue).await, added[0]);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.ready, stats.dead), (MANY as u64 - 1, 0));
    assert_eq!(other.stats().await.unwrap().dead, 1);
}

pub(crate) async fn q50_a_requeue_leaves_a_key_to_the_job_that_holds_it(cx: Cx) {
    let queue = queue(&cx);
    let dead = add_dead(&queue, keyed("k")).await;
    let free = add_dead(&queue, keyed("free")).await;
    let live = add(&queue, keyed("k")).await;
    assert_eq!(queue.requeue_dead(dead).await.unwrap(), 0);
    assert_eq!(queue.requeue_dead(DeadSelection::All).await.unwrap(), 1);
    assert_eq!(state(&queue, dead).await, Some(JobState::Dead));
    assert_eq!(state(&queue, free).await, Some(JobState::Pending));
    assert!(queue.cancel(live).await.unwrap());
    assert_eq!(queue.requeue_dead(dead).await.unwrap(), 1);
    assert_eq!(add(&queue, keyed("k")).await, dead, "it holds its key again");
}

pub(crate) async fn q50_of_two_with_one_key_the_lower_id_is_requeued(cx: Cx) {
    let queue = queue(&cx);
    let low = add_dead(&queue, keyed("k")).await;
    let high = add_dead(&queue, keyed("k")).await;
    assert_eq!(queue.requeue_dead(vec![high, low]).await.unwrap(), 1);
    assert_eq!(state(&queue, low).await, Some(JobState::Pending));
    assert_eq!(state(&queue, high).await, Some(JobState::Dead));
    assert!(queue.cancel(low).await.unwrap());
    let higher = add_dead(&queue, keyed("k")).await;
    assert_eq!(queue.requeue_dead(DeadSelection::All).await.unwrap(), 1);
    assert_eq!(state(&queue, high).await, Some(JobState::Pending));
    assert_eq!(state(&queue, higher).await, Some(JobState::Dead));
}

pub(crate) async fn q50_a_key_that_time_has_freed_is_no_hindrance(cx: Cx) {
    let queue = queue(&cx);
    let dead = add_dead(&queue, keyed("k")).await;
    let expired = add(&queue, keyed("k").expires(secs(1))).await;
    cx.advance(secs(1)).await;
    assert_eq!(queue.requeue_dead(vec![dead]).await.unwrap(), 1);
    assert_eq!(state(&queue, dead).await, Some(JobState::Pending));
    assert_eq!(state(&queue, expired).await, Some(JobState::Dead));
}

pub(crate) async fn q51_a_purge_deletes_dead_jobs_only(cx: Cx) {
    let (queue, other) = (queue(&cx), cx.store.queue("other").unwrap());
    let dead = add_dead(&queue, EnqueueOpts::new()).await;
    let kept = add_dead(&queue, EnqueueOpts::new()).await;
    let elsewhere = add_dead(&other, EnqueueOpts::new()).await;
    let held = add(&queue, EnqueueOpts::new()).await;
    let _held = take(&queue).await;
    let pending = add(&queue, EnqueueOpts::new()).await;
    let which = vec![dead, held, pending, elsewhere, unknown(), dead];
    assert_eq!(queue.purge_dead(which).await.unwrap(), 1);
    assert_eq!(state(&queue, dead).await, None);
    assert_eq!(queue.purge_dead(Vec::new()).await.unwrap(), 0);
    let left = queue.jobs(JobFilter::new()).await.unwrap();
    assert_eq!(left.iter().map(|job| job.id).collect::<Vec<_>>(), [kept, held, pending]);
    assert_eq!(state(&other, elsewhere).await, Some(JobState::Dead));
    assert_eq!(queue.purge_dead(DeadSelection::All).await.unwrap(), 1);
    assert_eq!(count(&queue).await, 2);
    assert_eq!(queue.purge_dead(DeadSelection::All).await.unwrap(), 0);
}

async fn assert_no_trace(queue: &Queue, id: JobId, store: &dyn alkstore_core::Store) {
    assert!(queue.get_job(id).await.unwrap().is_none());
    assert!(queue.jobs(JobFilter::new()).await.unwrap().is_empty());
    assert!(queue.jobs(JobFilter::new().state(JobState::Dead)).await.unwrap().is_empty());
    assert_eq!(queue.stats().await.unwrap().dead, 0);
    assert!(store.queues().await.unwrap().is_empty());
    assert!(!queue.cancel(id).await.unwrap());
    for which in [DeadSelection::All, id.into()] {
        assert_eq!(queue.requeue_dead(which.clone()).await.unwrap(), 0);
        assert_eq!(queue.purge_dead(which).await.unwrap(), 0);
    }
}

pub(crate) async fn q52_a_dead_job_is_gone_once_its_retention_is_over(cx: Cx) {
    let queue = cx.store.queue_with("q", retained(secs(60))).unwrap();
    let id = add_dead(&queue, keyed("k")).await;
    cx.advance(secs(60) - millis(1)).await;
    assert_eq!(state(&queue, id).await, Some(JobState::Dead));
    assert_eq!(queue.stats().await.unwrap().dead, 1);
    cx.advance(millis(1)).await;
    assert_no_trace(&queue, id, &*cx.store).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert!(tx.get_job_tx("q", id).await.unwrap().is_none());
    tx.rollback().await.unwrap();
}

pub(crate) async fn q52_retention_counts_from_the_death_that_time_brought(cx: Cx) {
    let opts = brief().max_attempts(1).dead_retention(secs(60));
    for (name, expires) in [("expires", Some(secs(10))), ("lapses", None)] {
        let cx = cx.isolated().await;
        let queue = cx.store.queue_with(name, opts.clone()).unwrap();
        let mut enqueue = EnqueueOpts::new();
        enqueue.expires = expires;
        let id = add(&queue, enqueue).await;
        if expires.is_none() {
            let _ = take(&queue).await;
        }
        cx.advance(secs(70) - millis(1)).await;
        assert_eq!(state(&queue, id).await, Some(JobState::Dead), "{name}");
        cx.advance(millis(1)).await;
        assert_no_trace(&queue, id, &*cx.store).await;
    }
}

pub(crate) async fn q52_retention_is_the_job_s_own(cx: Cx) {
    let short = cx.store.queue_with("q", retained(secs(60))).unwrap();
    let none = cx.store.queue_with("q", QueueOpts::new()).unwrap();
    let at_once = cx.store.queue_with("q", retained(Duration::ZERO)).unwrap();
    let goes = add_dead(&short, EnqueueOpts::new()).await;
    let stays = add_dead(&none, EnqueueOpts::new()).await;
    let never_seen = add_dead(&at_once, EnqueueOpts::new()).await;
    assert_eq!(state(&none, never_seen).await, None);
    assert_eq!(state(&none, goes).await, Some(JobState::Dead));
    cx.advance(secs(10 * 365 * 24 * 3_600)).await;
    cx.store.maintain().await.unwrap();
    assert_eq!(state(&short, goes).await, None);
    assert_eq!(state(&short, stays).await, Some(JobState::Dead));
}

fn assert_did(done: Maintenance, expired: usize, buried: usize, purged: usize) {
    let counted = (done.expired, done.buried, done.purged);
    assert_eq!(
        counted,
        (expired as u64, buried as u64, purged as u64),
        "(expired, buried, purged)"
    );
}

pub(crate) async fn q53_maintenance_stores_what_time_implies(cx: Cx) {
    let queue = cx.store.queue_with("q", brief().max_attempts(1).dead_retention(secs(60))).unwrap();
    add_dead(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(50)).await;
    let lapsed = add_many(&queue, 2, EnqueueOpts::new().expires(secs(5))).await;
    assert_eq!(queue.claim_batch("w", 2).await.unwrap().len(), 2);
    let expired = add(&queue, EnqueueOpts::new().expires(secs(10))).await;
    let kept = add(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(10)).await;
    assert_did(cx.store.maintain().await.unwrap(), 1, 2, 1);
    assert_did(cx.store.maintain().await.unwrap(), 0, 0, 0);
    for (id, error) in
        [(lapsed[0], LAPSED_ERROR), (lapsed[1], LAPSED_ERROR), (expired, EXPIRED_ERROR)]
    {
        assert_eq!(record(&queue, id).await.last_error.as_deref(), Some(error));
    }
    assert_eq!(state(&queue, kept).await, Some(JobState::Pending));
    assert_eq!(count(&queue).await, 4);
}

pub(crate) async fn q53_maintenance_changes_nothing_that_is_read(cx: Cx) {
    let queue = brief_queue(&cx);
    let other = cx.store.queue_with("q", brief().max_attempts(1).dead_retention(secs(60))).unwrap();
    add_dead(&other, EnqueueOpts::new()).await;
    add_many(&queue, 2, EnqueueOpts::new()).await;
    add_many(&other, 2, EnqueueOpts::new()).await;
    assert_eq!(queue.claim_batch("w", 4).await.unwrap().len(), 4);
    add_many(&queue, 2, EnqueueOpts::new().expires(secs(5))).await;
    add_many(&queue, 2, EnqueueOpts::new().delay(secs(5))).await;
    for step in [0, 5, 10, 60] {
        cx.advance(secs(step)).await;
        let read = async || {
            let jobs = queue.jobs(JobFilter::new()).await.unwrap();
            (jobs, queue.stats().await.unwrap(), cx.store.queues().await.unwrap())
        };
        let before = read().await;
        cx.store.maintain().await.unwrap();
        assert_eq!(read().await, before, "after {step} more seconds");
    }
}

pub(crate) async fn q53_maintenance_goes_through_all_pages(cx: Cx) {
    let queue = cx.store.queue_with("q", retained(secs(60))).unwrap();
    let many = 2 * MANY + 1;
    add_many(&queue, many, EnqueueOpts::new().expires(secs(1))).await;
    cx.advance(secs(1)).await;
    assert_did(cx.store.maintain().await.unwrap(), many, 0, 0);
    cx.advance(secs(60)).await;
    assert_did(cx.store.maintain().await.unwrap(), 0, 0, many);
}

pub(crate) async fn q53_a_page_of_lasting_jobs_hides_nothing(cx: Cx) {
    let (lasting, passing) = (queue(&cx), cx.store.queue_with("p", retained(secs(5))).unwrap());
    add_many(&lasting, MANY, EnqueueOpts::new().expires(secs(1))).await;
    cx.advance(secs(1)).await;
    assert_did(cx.store.maintain().await.unwrap(), MANY, 0, 0);
    add_many(&lasting, MANY, EnqueueOpts::new()).await;
    add_dead(&passing, EnqueueOpts::new()).await;
    add(&passing, EnqueueOpts::new().expires(secs(5))).await;
    cx.advance(secs(5)).await;
    assert_did(cx.store.maintain().await.unwrap(), 1, 0, 1);
}

pub(crate) async fn q53_a_job_that_a_transaction_holds_doesn_t_block_maintenance(cx: Cx) {
    let store = impatient(&cx).await;
    let queue = store.queue_with("q", brief().max_attempts(1)).unwrap();
    add_many(&queue, 3, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 3).await.unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    jobs[1].ack_tx(&mut tx).await.unwrap();
    cx.advance(secs(10)).await;
    match cx.advancing(millis(10), store.maintain()).await {
        Ok(done) => assert_did(done, 0, 2, 0),
        Err(error) => {
            let has_to_wait = cx.capabilities().one_writer || cx.capabilities().one_connection;
            assert!(has_to_wait, "{error}");
            assert_unavailable::<()>(Err(error));
        }
    }
    tx.rollback().await.unwrap();
    store.maintain().await.unwrap();
    assert_eq!(queue.stats().await.unwrap().dead, 3);
    assert_none(&queue).await;
}

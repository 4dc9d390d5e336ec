//! Settlements: what each does, and that it holds for its own claim only.

use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Job, JobState, MAX_LEASE, Queue, QueueOpts, Result, Store, StoreExt,
};

use super::{
    add, add_many, assert_invalid, assert_lost, assert_none, assert_unavailable, brief,
    brief_queue, ids, impatient, millis, now, queue, record, secs, state, take, take_id,
};
use crate::cx::Cx;

/// Every way to settle a claim or to extend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settle {
    Ack,
    Retry,
    Fail,
    Release,
    Heartbeat,
    AckTx,
    RetryTx,
    FailTx,
    AckBatch,
}

impl Settle {
    pub(super) const ALL: [Self; 9] = [
        Self::Ack,
        Self::Retry,
        Self::Fail,
        Self::Release,
        Self::Heartbeat,
        Self::AckTx,
        Self::RetryTx,
        Self::FailTx,
        Self::AckBatch,
    ];

    pub(super) async fn run(self, store: &dyn Store, queue: &Queue, job: &mut Job) -> Result<()> {
        let now = Some(Duration::ZERO);
        match self {
            Self::Ack => job.ack().await,
            Self::Retry => job.retry("error", now).await.map(drop),
            Self::Fail => job.fail("error").await,
            Self::Release => job.release(Duration::ZERO).await,
            Self::Heartbeat => job.heartbeat(secs(10)).await.map(drop),
            Self::AckBatch => queue.ack_batch(std::slice::from_mut(job)).await?.remove(0),
            Self::AckTx | Self::RetryTx | Self::FailTx => {
                let mut tx = store.begin_tx().await?;
                let settled = match self {
                    Self::AckTx => job.ack_tx(&mut tx).await,
                    Self::RetryTx => job.retry_tx(&mut tx, "error", now).await.map(drop),
                    _ => job.fail_tx(&mut tx, "error").await,
                };
                // It stays usable after a lost claim.
                tx.commit().await?;
                settled
            }
        }
    }
}

pub(crate) async fn q34_an_acked_job_is_gone(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    take(&queue).await.ack().await.unwrap();
    assert_eq!(state(&queue, id).await, None);
    assert!(cx.store.queues().await.unwrap().is_empty());
}

pub(crate) async fn q39_a_failed_job_is_dead_whatever_attempts_are_left(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(5)).await;
    take(&queue).await.fail("no good").await.unwrap();
    let dead = record(&queue, id).await;
    assert_eq!((dead.state, dead.attempt), (JobState::Dead, 1));
    assert_eq!(dead.last_error.as_deref(), Some("no good"));
    assert_eq!(dead.died_at, Some(now(&cx).await));
    assert_eq!((dead.worker_id, dead.deadline), (None, None));
    assert_none(&queue).await;
}

pub(crate) async fn q40_a_released_job_has_its_attempt_back(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().max_attempts(1)).unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    for _ in 0..5 {
        let mut job = take(&queue).await;
        assert_eq!(job.attempt(), 1);
        job.release(Duration::ZERO).await.unwrap();
        let record = record(&queue, id).await;
        assert_eq!((record.state, record.attempt), (JobState::Pending, 0));
        assert_eq!((record.last_error, record.worker_id, record.deadline), (None, None, None));
    }
}

pub(crate) async fn q40_a_release_may_be_for_later(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let due = now(&cx).await + secs(60);
    take(&queue).await.release(secs(60) - Duration::from_nanos(1)).await.unwrap();
    assert_eq!(record(&queue, id).await.ready_at, due, "rounded up to the millisecond");
    cx.advance(secs(60) - millis(1)).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    assert_eq!(take_id(&queue).await, id);
}

pub(crate) async fn q41_a_heartbeat_counts_from_now(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    for (after, extend, held) in [
        (secs(9), secs(60), secs(60)),
        (secs(59), secs(2), secs(2)),
        (secs(1), Duration::from_micros(3_001), millis(4)),
        (millis(3), MAX_LEASE, MAX_LEASE),
        (secs(1), secs(1), secs(1)),
    ] {
        cx.advance(after).await;
        let deadline = job.heartbeat(extend).await.unwrap();
        assert_eq!(deadline, now(&cx).await + held);
        assert_eq!(job.deadline(), deadline);
        assert_eq!(record(&queue, id).await.deadline, Some(deadline));
    }
    assert_eq!(job.visibility_timeout(), secs(10));
    cx.advance(secs(1) - millis(1)).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    let next = take(&queue).await;
    assert_eq!((next.attempt(), next.deadline()), (2, now(&cx).await + secs(10)));
}

pub(crate) async fn q41_a_heartbeat_out_of_bounds_changes_nothing(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    cx.advance(secs(5)).await;
    let before = record(&queue, id).await;
    let beyond = MAX_LEASE + Duration::from_nanos(1);
    for bad in [Duration::ZERO, Duration::from_nanos(1), beyond, Duration::MAX] {
        assert_invalid(job.heartbeat(bad).await);
    }
    assert_eq!(record(&queue, id).await, before);
    assert_eq!(Some(job.deadline()), before.deadline);
}

pub(crate) async fn q42_a_settlement_holds_for_its_own_claim_only(cx: Cx) {
    for settle in Settle::ALL {
        let queue = cx.store.queue_with(&format!("{settle:?}"), brief()).unwrap();
        let id = add(&queue, EnqueueOpts::new()).await;
        let mut stale = take(&queue).await;
        cx.advance(secs(10)).await;
        let mut fresh = take(&queue).await;
        let before = record(&queue, id).await;
        assert_lost(settle.run(&*cx.store, &queue, &mut stale).await);
        assert_eq!(record(&queue, id).await, before, "a stale {settle:?} changed the job");
        fresh.ack().await.unwrap();
    }
}

pub(crate) async fn q42_a_lapsed_claim_settles_nothing(cx: Cx) {
    for settle in Settle::ALL {
        let queue = cx.store.queue_with(&format!("{settle:?}"), brief()).unwrap();
        let id = add(&queue, EnqueueOpts::new()).await;
        let mut stale = take(&queue).await;
        cx.advance(secs(11)).await;
        let before = record(&queue, id).await;
        assert_eq!(before.state, JobState::Pending);
        assert_lost(settle.run(&*cx.store, &queue, &mut stale).await);
        assert_eq!(record(&queue, id).await, before, "a late {settle:?} changed the job");
        assert_eq!(take(&queue).await.attempt(), 2);
    }
}

/// A later claim with the same attempt number, by the same worker: only the token tells.
pub(crate) async fn q42_an_equal_attempt_is_another_claim(cx: Cx) {
    for settle in Settle::ALL {
        let queue = cx.store.queue_with(&format!("{settle:?}"), brief()).unwrap();
        let id = add(&queue, EnqueueOpts::new()).await;
        let mut released = take(&queue).await;
        released.release(Duration::ZERO).await.unwrap();
        let mut failed = take(&queue).await;
        failed.fail("no").await.unwrap();
        queue.requeue_dead(id).await.unwrap();
        let mut fresh = take(&queue).await;
        assert_eq!((released.attempt(), failed.attempt(), fresh.attempt()), (1, 1, 1));
        let before = record(&queue, id).await;
        for stale in [&mut released, &mut failed] {
            assert_lost(settle.run(&*cx.store, &queue, stale).await);
        }
        assert_eq!(record(&queue, id).await, before, "a stale {settle:?} changed the job");
        fresh.ack().await.unwrap();
    }
}

pub(crate) async fn q43_a_claim_holds_until_just_before_its_deadline(cx: Cx) {
    for settle in Settle::ALL {
        let queue = cx.store.queue_with(&format!("{settle:?}"), brief()).unwrap();
        add_many(&queue, 2, EnqueueOpts::new()).await;
        let mut jobs = queue.claim_batch("w", 2).await.unwrap();
        cx.advance(secs(10) - millis(1)).await;
        settle.run(&*cx.store, &queue, &mut jobs[0]).await.unwrap();
        cx.advance(millis(1)).await;
        assert_lost(settle.run(&*cx.store, &queue, &mut jobs[1]).await);
    }
}

pub(crate) async fn q44_after_a_settlement_every_further_one_is_lost(cx: Cx) {
    for first in Settle::ALL.into_iter().filter(|settle| *settle != Settle::Heartbeat) {
        for further in Settle::ALL {
            let queue = cx.store.queue_with(&format!("{first:?}{further:?}"), brief()).unwrap();
            let id = add(&queue, EnqueueOpts::new()).await;
            let mut job = take(&queue).await;
            first.run(&*cx.store, &queue, &mut job).await.unwrap();
            let before = queue.get_job(id).await.unwrap();
            assert_lost(further.run(&*cx.store, &queue, &mut job).await);
            let after = queue.get_job(id).await.unwrap();
            assert_eq!(after, before, "{further:?} after {first:?} changed the job");
        }
    }
}

pub(crate) async fn q45_a_batch_of_acks_answers_for_each_in_order(cx: Cx) {
    let queue = brief_queue(&cx);
    let added = add_many(&queue, 5, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 5).await.unwrap();
    jobs[0].heartbeat(secs(60)).await.unwrap();
    jobs[2].heartbeat(secs(60)).await.unwrap();
    jobs[4].heartbeat(secs(60)).await.unwrap();
    assert!(queue.cancel(added[4]).await.unwrap());
    cx.advance(secs(10)).await;
    jobs.reverse();
    let results = queue.ack_batch(&mut jobs).await.unwrap();
    let settled: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(settled, [false, false, true, false, true], "{results:?}");
    results.into_iter().filter(Result::is_err).for_each(assert_lost);
    assert_eq!(ids(&queue.claim_batch("w", 5).await.unwrap()), [added[1], added[3]]);
    assert!(queue.ack_batch(&mut []).await.unwrap().is_empty());
}

pub(crate) async fn q45_a_batch_with_a_job_from_elsewhere_settles_nothing(cx: Cx) {
    let (queue, other) = (queue(&cx), cx.store.queue("other").unwrap());
    let second = cx.second().await.queue("q").unwrap();
    add_many(&queue, 2, EnqueueOpts::new()).await;
    add(&other, EnqueueOpts::new()).await;
    let (own, of_other_queue) = (take(&queue).await, take(&other).await);
    let of_other_store = take(&second).await;
    let mut jobs = [own, of_other_queue];
    assert_invalid(queue.ack_batch(&mut jobs).await);
    let [own, _held] = jobs;
    let mut jobs = [own, of_other_store];
    assert_invalid(queue.ack_batch(&mut jobs).await);
    let [mut own, mut of_other_store] = jobs;
    assert_eq!(queue.stats().await.unwrap().claimed, 2);
    own.ack().await.unwrap();
    of_other_store.ack().await.unwrap();
}

pub(crate) async fn q46_the_locked_jobs_of_a_batch_wait_together(cx: Cx) {
    let store = impatient(&cx).await;
    let queue = store.queue("q").unwrap();
    add_many(&queue, 200, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 200).await.unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    for job in &mut jobs {
        job.ack_tx(&mut tx).await.unwrap();
    }
    let began = cx.now().await;
    // However time is measured, one lock timeout takes a few steps, 200 take 600 at least.
    let results = cx.advancing(millis(10), queue.ack_batch(&mut jobs)).await;
    let steps = cx.now().await.since(began).as_millis() / 10;
    assert!(steps < 300, "they waited one after the other: {steps} steps");
    match results {
        Ok(results) => results.into_iter().for_each(assert_unavailable),
        Err(error) => assert_unavailable::<()>(Err(error)),
    }
    tx.rollback().await.unwrap();
    let results = queue.ack_batch(&mut jobs).await.unwrap();
    results.into_iter().for_each(Result::unwrap);
}

pub(crate) async fn q46_a_locked_job_doesn_t_hold_up_a_batch(cx: Cx) {
    let store = impatient(&cx).await;
    let queue = store.queue("q").unwrap();
    let added = add_many(&queue, 3, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 3).await.unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    jobs[1].ack_tx(&mut tx).await.unwrap();
    let results = cx.advancing(millis(10), queue.ack_batch(&mut jobs)).await;
    if cx.capabilities().one_writer || cx.capabilities().one_connection {
        match results {
            Ok(results) => results.into_iter().for_each(assert_unavailable),
            Err(error) => assert_unavailable::<()>(Err(error)),
        }
        tx.rollback().await.unwrap();
        let results = queue.ack_batch(&mut jobs).await.unwrap();
        results.into_iter().for_each(Result::unwrap);
        return;
    }
    let mut results = results.unwrap();
    assert_unavailable(results.remove(1));
    results.into_iter().for_each(Result::unwrap);
    for settled in [added[0], added[2]] {
        assert_eq!(state(&queue, settled).await, None);
    }
    tx.rollback().await.unwrap();
    jobs[1].ack().await.unwrap();
}

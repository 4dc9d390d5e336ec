//! Settlements inside a transaction: they pin the claim, and a rollback gives it back.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, Job, JobState, QueueOpts, Retried, Store, StoreExt, Tx};

use super::{beside, claimed, impatient, jobs, state};
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

/// A job whose claim holds a minute.
async fn claimed_for_a_minute(store: &Arc<dyn Store>) -> Job {
    let queue = store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    queue.enqueue(&1).await.unwrap();
    queue.claim("w").await.unwrap().expect("the job that was just enqueued")
}

#[derive(Debug, Clone, Copy)]
enum How {
    Ack,
    Retry,
    Fail,
}

const WAYS: [How; 3] = [How::Ack, How::Retry, How::Fail];

async fn settle(how: How, job: &mut Job, tx: &mut Tx<'_>) -> Result<(), Error> {
    match how {
        How::Ack => job.ack_tx(tx).await,
        How::Retry => job.retry_tx(tx, "busy", Some(MINUTE)).await.map(drop),
        How::Fail => job.fail_tx(tx, "broken").await,
    }
}

fn is_lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::ClaimLost { .. }))
}

pub(crate) async fn x15_a_staged_settlement_pins_the_claim_beyond_its_deadline(cx: Cx) {
    let hasty = impatient(&cx).await;
    let thief = hasty.queue("q").unwrap();
    for how in WAYS {
        let mut job = claimed_for_a_minute(&cx.store).await;
        let mut tx = cx.store.begin_tx().await.unwrap();
        settle(how, &mut job, &mut tx).await.unwrap();
        cx.advance(2 * MINUTE).await;
        let stolen = beside(&cx, thief.claim("thief")).await.flatten();
        assert!(stolen.is_none(), "{how:?}: {stolen:?}");
        // Neither does maintenance touch it.
        beside(&cx, hasty.maintain()).await;
        tx.commit().await.unwrap_or_else(|error| panic!("{how:?}: {error}"));
        let expected = match how {
            How::Ack => None,
            How::Retry => Some(JobState::Pending),
            How::Fail => Some(JobState::Dead),
        };
        assert_eq!(state(&hasty, "q", job.id()).await, expected, "{how:?}");
        thief.cancel(job.id()).await.unwrap();
    }
}

pub(crate) async fn x15_claims_pass_a_pinned_job_by(cx: Cx) {
    let hasty = impatient(&cx).await;
    let mut job = claimed_for_a_minute(&cx.store).await;
    let other = cx.store.queue("q").unwrap().enqueue(&2).await.unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    cx.advance(2 * MINUTE).await;
    let queue = hasty.queue("q").unwrap();
    if let Some(found) = beside(&cx, queue.claim_batch("w", 10)).await {
        let found: Vec<_> = found.iter().map(Job::id).collect();
        assert_eq!(found, [other]);
    }
    tx.commit().await.unwrap();
}

pub(crate) async fn x16_after_a_rollback_the_handle_settles_as_before(cx: Cx) {
    for how in WAYS {
        for drop_it in [false, true] {
            let mut job = claimed_for_a_minute(&cx.store).await;
            let mut tx = cx.store.begin_tx().await.unwrap();
            settle(how, &mut job, &mut tx).await.unwrap();
            if drop_it {
                drop(tx);
            } else {
                tx.rollback().await.unwrap();
            }
            assert_eq!(state(&cx.store, "q", job.id()).await, Some(JobState::Claimed), "{how:?}");
            job.heartbeat(MINUTE).await.unwrap_or_else(|error| panic!("{how:?}: {error}"));
            let mut tx = cx.store.begin_tx().await.unwrap();
            settle(how, &mut job, &mut tx).await.unwrap();
            tx.rollback().await.unwrap();
            job.ack().await.unwrap_or_else(|error| panic!("{how:?}: {error}"));
            assert_eq!(state(&cx.store, "q", job.id()).await, None, "{how:?}");
        }
    }
}

pub(crate) async fn x16_a_rollback_after_the_deadline_leaves_the_job_claimable(cx: Cx) {
    let second = cx.second().await;
    let mut job = claimed_for_a_minute(&cx.store).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    cx.advance(MINUTE).await;
    tx.rollback().await.unwrap();
    assert!(is_lost(job.ack().await), "the deadline has passed meanwhile");
    let again = second.queue("q").unwrap().claim("w").await.unwrap().expect("it is claimable");
    assert_eq!((again.id(), again.attempt()), (job.id(), 2));
}

pub(crate) async fn x17_a_settlement_that_is_staged_or_took_effect_is_the_last(cx: Cx) {
    for how in WAYS {
        let mut job = claimed_for_a_minute(&cx.store).await;
        let mut tx = cx.store.begin_tx().await.unwrap();
        settle(how, &mut job, &mut tx).await.unwrap();
        for again in WAYS {
            let result = settle(again, &mut job, &mut tx).await;
            assert!(is_lost(result), "{how:?}, then {again:?} in the same transaction");
        }
        tx.commit().await.unwrap();
        let settled = state(&cx.store, "q", job.id()).await;
        assert!(is_lost(job.ack().await), "{how:?}, then ack");
        assert!(is_lost(job.heartbeat(MINUTE).await), "{how:?}, then heartbeat");
        assert_eq!(state(&cx.store, "q", job.id()).await, settled, "{how:?}");
    }
}

pub(crate) async fn x18_a_settlement_at_the_deadline_is_lost_when_it_is_staged(cx: Cx) {
    for how in WAYS {
        let mut job = claimed_for_a_minute(&cx.store).await;
        let mut tx = cx.store.begin_tx().await.unwrap();
        cx.advance(MINUTE).await;
        assert!(is_lost(settle(how, &mut job, &mut tx).await), "{how:?}");
        tx.commit().await.unwrap();
        assert_eq!(state(&cx.store, "q", job.id()).await, Some(JobState::Pending), "{how:?}");
        cx.store.queue("q").unwrap().cancel(job.id()).await.unwrap();
    }
}

pub(crate) async fn x18_a_stale_claim_is_lost_inside_a_transaction_too(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    let mut stale = claimed_for_a_minute(&cx.store).await;
    cx.advance(MINUTE).await;
    let mut fresh = queue.claim("w").await.unwrap().expect("the lapsed claim is claimable");
    let mut tx = cx.store.begin_tx().await.unwrap();
    for how in WAYS {
        assert!(is_lost(settle(how, &mut stale, &mut tx).await), "{how:?}");
    }
    fresh.ack_tx(&mut tx).await.expect("the newer claim of the same worker holds");
    tx.commit().await.unwrap();
    assert_eq!(jobs(&cx.store, "q").await, 0);
}

pub(crate) async fn x19_effects_and_ack_commit_together(cx: Cx) {
    let second = cx.second().await;
    for commit in [false, true] {
        let mut job = claimed(&cx.store, "orders").await;
        let mails = cx.store.queue("mails").unwrap();
        let mut tx = cx.store.begin_tx().await.unwrap();
        mails.enqueue_tx(&mut tx, &"paid", EnqueueOpts::new()).await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        if commit {
            tx.commit().await.unwrap();
            assert_eq!(jobs(&second, "mails").await, 1);
            assert_eq!(state(&second, "orders", job.id()).await, None);
        } else {
            tx.rollback().await.unwrap();
            assert_eq!(jobs(&second, "mails").await, 0);
            assert_eq!(state(&second, "orders", job.id()).await, Some(JobState::Claimed));
        }
    }
}

pub(crate) async fn x20_retry_and_fail_do_inside_what_they_do_outside(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().max_attempts(2)).unwrap();
    let id = queue.enqueue(&1).await.unwrap();

    let mut job = queue.claim("w").await.unwrap().unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let first = job.retry_tx(&mut tx, "busy\0", None).await.unwrap();
    let Retried::Again { at } = first else { panic!("{first:?} on the first of two attempts") };
    let now: std::time::SystemTime = cx.now().await.into();
    let delay = at.duration_since(now).expect("not in the past");
    assert!((2_500..=5_000).contains(&delay.as_millis()), "{delay:?} is no equal jitter of 5 s");
    tx.commit().await.unwrap();
    let record = queue.get_job(id).await.unwrap().unwrap();
    assert_eq!((record.state, record.ready_at), (JobState::Pending, at));
    assert_eq!(record.last_error.as_deref(), Some("busy\u{fffd}"));

    cx.advance(delay).await;
    let mut job = queue.claim("w").await.unwrap().expect("its delay has passed");
    let mut tx = cx.store.begin_tx().await.unwrap();
    let last = job.retry_tx(&mut tx, "still busy", None).await.unwrap();
    assert_eq!(last, Retried::Dead, "on the last attempt");
    tx.commit().await.unwrap();
    let record = queue.get_job(id).await.unwrap().unwrap();
    assert_eq!((record.state, record.attempt), (JobState::Dead, 2));
    assert_eq!(record.last_error.as_deref(), Some("still busy"));
}

pub(crate) async fn x21_what_must_wait_for_a_pinned_job_waits(cx: Cx) {
    let hasty = impatient(&cx).await;
    for commit in [false, true] {
        let mut job = claimed(&cx.store, "q").await;
        let id = job.id();
        let mut tx = cx.store.begin_tx().await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();

        let queue = hasty.queue("q").unwrap();
        let error = cx.advancing(super::STEP, queue.cancel(id)).await.expect_err("it is pinned");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");

        let queue = cx.second().await.queue("q").unwrap();
        let cancelling = cx.spawn(async move { queue.cancel(id).await });
        cx.settle().await;
        assert!(!cancelling.is_done(), "it didn't wait for the transaction");
        if commit {
            tx.commit().await.unwrap();
            assert!(!cancelling.join().await.unwrap(), "the job is gone");
        } else {
            tx.rollback().await.unwrap();
            assert!(cancelling.join().await.unwrap(), "the job is claimed as before");
            assert!(is_lost(job.ack().await));
        }
    }
}

pub(crate) async fn x21_a_settlement_outside_waits_for_the_pin_of_a_transaction(cx: Cx) {
    let hasty = impatient(&cx).await;
    let queue = hasty.queue("q").unwrap();
    queue.enqueue(&1).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    let mut tx = hasty.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    let error = cx.advancing(super::STEP, job.ack()).await.expect_err("it is pinned");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    tx.rollback().await.unwrap();
    job.ack().await.unwrap();
}

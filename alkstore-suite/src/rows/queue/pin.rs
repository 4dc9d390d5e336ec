//! Claims that are settled inside a transaction.

use std::sync::Arc;

use alkstore_core::{
    EnqueueOpts, Job, JobId, JobState, Queue, Result, Retried, Store, StoreExt, Tx,
};

use super::{
    add, add_many, assert_lost, assert_unavailable, brief, ids, impatient, millis, now, record,
    secs, state, take, take_id,
};
use crate::cx::Cx;

async fn settle_tx(kind: usize, tx: &mut Tx<'_>, job: &mut Job) -> Result<()> {
    match kind {
        0 => job.ack_tx(tx).await,
        1 => job.retry_tx(tx, "error", Some(secs(3_600))).await.map(drop),
        _ => job.fail_tx(tx, "error").await,
    }
}

const KINDS: [(usize, Option<JobState>); 3] =
    [(0, None), (1, Some(JobState::Pending)), (2, Some(JobState::Dead))];

/// A claim beside an open transaction: what it found, nothing where the engine keeps it waiting.
async fn claim_beside(cx: &Cx, queue: &Queue) -> Vec<JobId> {
    match cx.advancing(millis(10), queue.claim_batch("beside", 10)).await {
        Ok(jobs) => ids(&jobs),
        Err(error) => {
            assert!(cx.capabilities().one_writer, "a claim waited for a transaction: {error}");
            assert_unavailable::<()>(Err(error));
            Vec::new()
        }
    }
}

pub(crate) async fn q69_a_staged_settlement_keeps_everybody_else_away(cx: Cx) {
    let other = impatient(&cx).await;
    for (kind, after) in KINDS {
        let name = format!("q{kind}");
        let queue = cx.store.queue_with(&name, brief()).unwrap();
        let beside = other.queue(&name).unwrap();
        let id = add(&queue, EnqueueOpts::new()).await;
        let mut job = take(&queue).await;
        let mut tx = cx.store.begin_tx().await.unwrap();
        settle_tx(kind, &mut tx, &mut job).await.unwrap();
        assert_eq!(claim_beside(&cx, &beside).await, []);
        cx.advance(secs(60)).await;
        assert_eq!(claim_beside(&cx, &beside).await, [], "its deadline is over, its pin isn't");
        tx.commit().await.unwrap();
        assert_eq!(state(&queue, id).await, after);
        assert_lost(job.ack().await);
    }
}

pub(crate) async fn q69_a_pinned_job_doesn_t_stand_in_the_way_of_others(cx: Cx) {
    let store = cx.store.clone();
    let queue = store.queue_with("q", brief()).unwrap();
    let beside = impatient(&cx).await.queue("q").unwrap();
    let pinned = add(&queue, EnqueueOpts::new().priority(9)).await;
    let mut job = take(&queue).await;
    let rest = add_many(&queue, 2, EnqueueOpts::new()).await;
    let mut tx = store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    cx.advance(secs(10)).await;
    let found = claim_beside(&cx, &beside).await;
    if !cx.capabilities().one_writer {
        assert_eq!(found, rest);
    }
    tx.rollback().await.unwrap();
    assert_eq!(take_id(&queue).await, pinned);
}

pub(crate) async fn q69_a_settlement_that_is_lost_holds_nothing(cx: Cx) {
    let other = impatient(&cx).await;
    for (kind, _) in KINDS {
        let name = format!("q{kind}");
        let queue = cx.store.queue_with(&name, brief()).unwrap();
        let beside = other.queue(&name).unwrap();
        let id = add(&queue, EnqueueOpts::new()).await;
        let mut lapsed = take(&queue).await;
        cx.advance(secs(10)).await;
        let mut tx = cx.store.begin_tx().await.unwrap();
        assert_lost(settle_tx(kind, &mut tx, &mut lapsed).await);
        let found = claim_beside(&cx, &beside).await;
        if !cx.capabilities().one_writer {
            assert_eq!(found, [id], "a lost settlement keeps others from the job");
        }
        // Nor does the one of a job that somebody else holds by now.
        assert_lost(settle_tx(kind, &mut tx, &mut lapsed).await);
        tx.commit().await.unwrap();
        assert_lost(lapsed.ack().await);
        assert!(state(&queue, id).await.is_some());
    }
}

pub(crate) async fn q69_instants_are_those_of_the_staging_call(cx: Cx) {
    let queue = cx.store.queue_with("q", brief()).unwrap();
    let id = add_many(&queue, 2, EnqueueOpts::new()).await;
    let mut jobs = queue.claim_batch("w", 2).await.unwrap();
    let staged_at = now(&cx).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    let again = jobs[0].retry_tx(&mut tx, "again", Some(secs(60))).await.unwrap();
    assert_eq!(again, Retried::Again { at: staged_at + secs(60) });
    jobs[1].fail_tx(&mut tx, "no").await.unwrap();
    cx.advance(secs(30)).await;
    tx.commit().await.unwrap();
    let retried = record(&queue, id[0]).await;
    assert_eq!((retried.state, retried.ready_at), (JobState::Pending, staged_at + secs(60)));
    assert_eq!(retried.last_error.as_deref(), Some("again"));
    assert_eq!(record(&queue, id[1]).await.died_at, Some(staged_at));
}

/// Stages an ack of one job and the enqueue of another.
async fn work(store: &Arc<dyn Store>, job: &mut Job) -> (Tx<'static>, JobId) {
    let mut tx = store.begin_tx().await.unwrap();
    let next = store.queue("next").unwrap();
    let id = next.enqueue_tx(&mut tx, &"effect", EnqueueOpts::new()).await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    (tx, id)
}

pub(crate) async fn q69_effects_and_ack_commit_together(cx: Cx) {
    let queue = cx.store.queue_with("q", brief()).unwrap();
    let second = cx.second().await;
    let (seen, next) = (second.queue("q").unwrap(), second.queue("next").unwrap());
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;

    let (tx, effect) = work(&cx.store, &mut job).await;
    assert_eq!(state(&seen, id).await, Some(JobState::Claimed));
    assert_eq!(state(&next, effect).await, None);
    tx.rollback().await.unwrap();
    assert_eq!(state(&seen, id).await, Some(JobState::Claimed));
    assert_eq!(state(&next, effect).await, None);

    let (tx, effect) = work(&cx.store, &mut job).await;
    tx.commit().await.unwrap();
    assert_eq!(state(&seen, id).await, None);
    assert_eq!(state(&next, effect).await, Some(JobState::Pending));
}

pub(crate) async fn q70_after_a_rollback_a_job_settles_as_before(cx: Cx) {
    for (kind, _) in KINDS {
        for dropped in [false, true] {
            let name = format!("q{kind}{dropped}");
            let queue = cx.store.queue_with(&name, brief()).unwrap();
            let id = add(&queue, EnqueueOpts::new()).await;
            let mut job = take(&queue).await;
            let before = record(&queue, id).await;
            let mut tx = cx.store.begin_tx().await.unwrap();
            settle_tx(kind, &mut tx, &mut job).await.unwrap();
            if dropped {
                drop(tx);
            } else {
                tx.rollback().await.unwrap();
            }
            assert_eq!(record(&queue, id).await, before);
            cx.advance(secs(10) - millis(1)).await;
            job.ack().await.unwrap();
            assert_eq!(state(&queue, id).await, None);
        }
    }
}

pub(crate) async fn q70_a_rollback_extends_no_claim(cx: Cx) {
    let queue = cx.store.queue_with("q", brief()).unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    cx.advance(secs(10)).await;
    tx.rollback().await.unwrap();
    assert_lost(job.ack().await);
    let again = take(&queue).await;
    assert_eq!((again.id(), again.attempt()), (id, 2));
}

pub(crate) async fn q71_a_cancel_waits_for_a_pinned_job_no_longer_than_the_lock_timeout(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let other = impatient(&cx).await.queue("q").unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    assert_unavailable(cx.advancing(millis(10), other.cancel(id)).await);
    tx.rollback().await.unwrap();
    assert_eq!(state(&queue, id).await, Some(JobState::Claimed), "nothing was written");
    assert!(other.cancel(id).await.unwrap());
    assert_lost(job.ack().await);
}

pub(crate) async fn q71_a_cancel_sees_how_the_transaction_ended(cx: Cx) {
    for commit in [false, true] {
        let queue = cx.store.queue(&format!("q{commit}")).unwrap();
        let other = cx.second().await.queue(queue.name()).unwrap();
        let id = add(&queue, EnqueueOpts::new()).await;
        let mut job = take(&queue).await;
        let mut tx = cx.store.begin_tx().await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        let cancelling = cx.spawn(async move { other.cancel(id).await.unwrap() });
        cx.settle().await;
        assert!(!cancelling.is_done(), "nobody can know yet whether there is a job to cancel");
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(cancelling.join().await, !commit);
        assert_eq!(state(&queue, id).await, None);
    }
}

//! Unique keys that a transaction stages or frees.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, JobFilter, JobState, NewJob, QueueOpts, Store, StoreExt};

use super::{STEP, impatient, jobs};
use crate::cx::Cx;

fn keyed() -> EnqueueOpts {
    EnqueueOpts::new().unique_key("k")
}

async fn sole_job(store: &Arc<dyn Store>) -> i64 {
    let jobs = store.queue("q").unwrap().jobs(JobFilter::new()).await.unwrap();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs[0].id.get()
}

pub(crate) async fn x22_a_key_that_a_transaction_staged_waits_for_its_commit(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let staged = queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
    let other = cx.second().await.queue("q").unwrap();
    let waiting = cx.spawn(async move { other.enqueue_with(&2, keyed()).await });
    cx.settle().await;
    assert!(!waiting.is_done(), "nobody knows yet whether the key is taken");
    tx.commit().await.unwrap();
    assert_eq!(waiting.join().await.unwrap(), staged);
    assert_eq!(sole_job(&cx.store).await, staged.get());
}

pub(crate) async fn x22_a_key_that_was_staged_and_rolled_back_is_free(cx: Cx) {
    for drop_it in [false, true] {
        let queue = cx.store.queue("q").unwrap();
        let mut tx = cx.store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
        let other = cx.second().await.queue("q").unwrap();
        let waiting = cx.spawn(async move { other.enqueue_with(&2, keyed()).await });
        cx.settle().await;
        assert!(!waiting.is_done(), "nobody knows yet whether the key is taken");
        if drop_it {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        let added = waiting.join().await.unwrap();
        assert_eq!(sole_job(&cx.store).await, added.get(), "success without a job");
        queue.cancel(added).await.unwrap();
    }
}

pub(crate) async fn x22_two_transactions_with_one_key_add_one_job(cx: Cx) {
    let (queue, second) = (cx.store.queue("q").unwrap(), cx.second().await);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let staged = queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
    let waiting = cx.spawn(async move {
        let queue = second.queue("q")?;
        let mut tx = second.begin_tx().await?;
        let id = queue.enqueue_tx(&mut tx, &2, keyed()).await?;
        tx.commit().await?;
        Ok::<_, Error>(id)
    });
    cx.settle().await;
    assert!(!waiting.is_done());
    tx.commit().await.unwrap();
    assert_eq!(waiting.join().await.unwrap(), staged);
    assert_eq!(sole_job(&cx.store).await, staged.get());
}

pub(crate) async fn x23_who_waits_too_long_for_a_staged_key_is_unavailable(cx: Cx) {
    let (queue, hasty) = (cx.store.queue("q").unwrap(), impatient(&cx).await);
    let mut tx = cx.store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
    let other = hasty.queue("q").unwrap();
    let error =
        cx.advancing(STEP, other.enqueue_with(&2, keyed())).await.expect_err("it is staged");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    tx.rollback().await.unwrap();
    assert_eq!(jobs(&cx.store, "q").await, 0, "Unavailable means that nothing was written");
    other.enqueue_with(&2, keyed()).await.expect("it can be repeated");
}

pub(crate) async fn x23_no_cycle_of_transactions_hangs(cx: Cx) {
    let stores = [impatient(&cx).await, impatient(&cx).await];
    let cycle = [["a", "b"], ["b", "a"]];
    let attempts = stores.clone().into_iter().zip(cycle).map(|(store, keys)| {
        let attempt = async move {
            let queue = store.queue("q")?;
            let mut tx = store.begin_tx().await?;
            for key in keys {
                queue.enqueue_tx(&mut tx, &key, EnqueueOpts::new().unique_key(key)).await?;
            }
            tx.commit().await
        };
        Box::pin(attempt) as alkstore_core::BoxFuture<'static, Result<(), Error>>
    });
    let results = cx.advancing(STEP, cx.together(attempts)).await;
    for result in &results {
        let ended = matches!(result, Ok(()) | Err(Error::Unavailable { .. }));
        assert!(ended, "{result:?}");
    }
    let keys = jobs(&cx.store, "q").await;
    let expected = if results.iter().any(Result::is_ok) { 2 } else { 0 };
    assert_eq!(keys, expected, "{results:?}");
}

pub(crate) async fn x23_a_call_that_waited_in_vain_holds_no_key(cx: Cx) {
    let store = impatient(&cx).await;
    let queue = store.queue_with("q", QueueOpts::new().dead_retention(Duration::ZERO)).unwrap();
    let other_store = impatient(&cx).await;
    let other_queue = other_store.queue("q").unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    let mut other = other_store.begin_tx().await.unwrap();
    let second = Duration::from_secs(1);
    queue.enqueue_tx(&mut tx, &1, keyed().expires(second)).await.unwrap();
    // Unavailable where there is one writer.
    let taken = EnqueueOpts::new().unique_key("taken");
    let _ = cx.advancing(STEP, other_queue.enqueue_tx(&mut other, &2, taken.clone())).await;
    // What it has staged is gone by now.
    cx.advance(second).await;
    let jobs = [keyed(), taken].map(|opts| NewJob::new(&3).unwrap().opts(opts));
    let _ = cx.advancing(STEP, queue.enqueue_many_tx(&mut tx, jobs.into())).await;
    tx.rollback().await.unwrap();
    other.rollback().await.unwrap();
    let added = cx.advancing(STEP, queue.enqueue_with(&4, keyed())).await.expect("it is free");
    assert_eq!(sole_job(&cx.store).await, added.get());
}

pub(crate) async fn x24_keys_hold_inside_the_transaction(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let first = queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
    assert_eq!(queue.enqueue_tx(&mut tx, &2, keyed()).await.unwrap(), first);
    let other = cx.store.queue("other").unwrap();
    let elsewhere = other.enqueue_tx(&mut tx, &3, keyed()).await.unwrap();
    assert_ne!(elsewhere, first, "a key is one queue's");
    tx.commit().await.unwrap();
    assert_eq!(sole_job(&cx.store).await, first.get());

    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_eq!(queue.enqueue_tx(&mut tx, &4, keyed()).await.unwrap(), first, "it is committed");
    tx.commit().await.unwrap();
    let job = queue.get_job(first).await.unwrap().unwrap();
    assert_eq!(job.payload.as_str(), "1", "the enqueue that found the key changed nothing");
}

pub(crate) async fn x24_a_settlement_frees_its_key_inside_the_transaction(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let first = queue.enqueue_with(&1, keyed()).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    for commit in [false, true] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        let next = queue.enqueue_tx(&mut tx, &2, keyed()).await.unwrap();
        assert_ne!(next, first, "the job that held the key is gone inside");
        if commit {
            tx.commit().await.unwrap();
            assert_eq!(sole_job(&cx.store).await, next.get());
        } else {
            tx.rollback().await.unwrap();
            assert_eq!(sole_job(&cx.store).await, first.get());
            assert_eq!(queue.enqueue_with(&3, keyed()).await.unwrap(), first);
        }
    }
}

pub(crate) async fn x24_only_what_ends_a_job_frees_its_key(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let first = queue.enqueue_with(&1, keyed()).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.retry_tx(&mut tx, "busy", None).await.unwrap();
    let found = queue.enqueue_tx(&mut tx, &2, keyed()).await.unwrap();
    assert_eq!(found, first, "a job that comes back keeps its key");
    tx.rollback().await.unwrap();

    let mut tx = cx.store.begin_tx().await.unwrap();
    job.fail_tx(&mut tx, "broken").await.unwrap();
    let next = queue.enqueue_tx(&mut tx, &2, keyed()).await.unwrap();
    assert_ne!(next, first, "a dead letter has no key");
    tx.commit().await.unwrap();
    assert_eq!(queue.enqueue_with(&3, keyed()).await.unwrap(), next);
    assert_eq!(queue.requeue_dead(first).await.unwrap(), 0, "its key is taken");
    assert_eq!(jobs(&cx.store, "q").await, 2);
}

pub(crate) async fn x24_a_staged_job_that_expired_frees_its_key(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let second = Duration::from_secs(1);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let first = queue.enqueue_tx(&mut tx, &1, keyed().expires(second)).await.unwrap();
    cx.advance(second).await;
    let next = queue.enqueue_tx(&mut tx, &2, keyed()).await.unwrap();
    assert_ne!(next, first, "the clock has made the job dead that held the key");
    tx.commit().await.unwrap();
    let dead = queue.get_job(first).await.unwrap().unwrap();
    assert_eq!(dead.state, JobState::Dead);
    assert_eq!(queue.enqueue_with(&3, keyed()).await.unwrap(), next);
}

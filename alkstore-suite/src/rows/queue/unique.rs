//! Unique keys.

use std::time::Duration;

use alkstore_core::{
    EXPIRED_ERROR, EnqueueOpts, JobId, JobState, LAPSED_ERROR, NewJob, Queue, StoreExt, Tx,
};

use super::{
    add, assert_invalid_name, assert_none, assert_unavailable, brief_queue, count, impatient,
    keyed, millis, queue, record, secs, state, take,
};
use crate::cx::Cx;

pub(crate) async fn q15_a_live_job_keeps_its_key(cx: Cx) {
    let queue = queue(&cx);
    let id = queue.enqueue_with(&"first", keyed("k").delay(secs(10))).await.unwrap();
    assert_eq!(record(&queue, id).await.unique_key.as_deref(), Some("k"));
    let again = || queue.enqueue_with(&"second", keyed("k").priority(9));
    assert_eq!(again().await.unwrap(), id, "held while delayed");
    cx.advance(secs(10)).await;
    assert_eq!(again().await.unwrap(), id, "held while ready");
    let mut job = take(&queue).await;
    assert_eq!(again().await.unwrap(), id, "held while claimed");
    job.retry("again", Some(secs(1))).await.unwrap();
    assert_eq!(again().await.unwrap(), id, "held while it waits for its retry");
    let record = record(&queue, id).await;
    assert_eq!((record.payload.as_str(), record.priority), ("\"first\"", 0));
    assert_eq!(count(&queue).await, 1, "an enqueue added a job");
}

pub(crate) async fn q15_a_key_is_free_once_its_job_is_gone_or_dead(cx: Cx) {
    let queue = queue(&cx);
    let acked = add(&queue, keyed("k")).await;
    take(&queue).await.ack().await.unwrap();
    let cancelled = add(&queue, keyed("k")).await;
    assert_ne!(cancelled, acked);
    assert!(queue.cancel(cancelled).await.unwrap());
    let failed = add(&queue, keyed("k")).await;
    assert_ne!(failed, cancelled);
    take(&queue).await.fail("no").await.unwrap();
    let last = add(&queue, keyed("k")).await;
    assert_ne!(last, failed);
    assert_eq!(state(&queue, failed).await, Some(JobState::Dead));
    assert_eq!(state(&queue, last).await, Some(JobState::Pending));
}

pub(crate) async fn q16_a_key_counts_within_its_queue(cx: Cx) {
    let here = add(&queue(&cx), keyed("k")).await;
    let elsewhere = cx.store.queue("other").unwrap();
    assert_ne!(add(&elsewhere, keyed("k")).await, here);
    assert_eq!(count(&elsewhere).await, 1);
}

pub(crate) async fn q16_keys_are_compared_byte_for_byte(cx: Cx) {
    let queue = queue(&cx);
    let keys = ["k", "K", "\u{e9}", "e\u{301}", "k k", "k  k"];
    for key in keys {
        add(&queue, keyed(key)).await;
    }
    assert_eq!(count(&queue).await, keys.len());
}

pub(crate) async fn q17_jobs_of_one_call_share_a_key(cx: Cx) {
    let queue = queue(&cx);
    let held = add(&queue, keyed("held")).await;
    let job = |n: u8, key: Option<&str>| {
        let opts = key.map_or_else(EnqueueOpts::new, keyed);
        NewJob::new(&n).unwrap().opts(opts)
    };
    let jobs = vec![
        job(0, Some("new")),
        job(1, Some("held")),
        job(2, None),
        job(3, Some("new")),
        job(4, Some("newer")),
    ];
    let ids = queue.enqueue_many(jobs).await.unwrap();
    assert_eq!((ids[1], ids[3]), (held, ids[0]));
    assert!(ids[0] < ids[2] && ids[2] < ids[4], "{ids:?}");
    assert_eq!(count(&queue).await, 4);
    assert_eq!(record(&queue, ids[0]).await.payload.as_str(), "0");
}

pub(crate) async fn q17_a_transaction_keeps_to_keys_as_well(cx: Cx) {
    let queue = queue(&cx);
    let held = add(&queue, keyed("held")).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    let enqueue =
        async |tx: &mut Tx<'_>, key: &str| queue.enqueue_tx(tx, &1, keyed(key)).await.unwrap();
    assert_eq!(enqueue(&mut tx, "held").await, held);
    let staged = enqueue(&mut tx, "staged").await;
    assert_ne!(staged, held);
    assert_eq!(enqueue(&mut tx, "staged").await, staged);
    let many = vec![NewJob::new(&1).unwrap().opts(keyed("staged"))];
    assert_eq!(queue.enqueue_many_tx(&mut tx, many).await.unwrap(), [staged]);
    tx.commit().await.unwrap();
    assert_eq!(count(&queue).await, 2);
    assert_eq!(add(&queue, keyed("staged")).await, staged);
}

pub(crate) async fn q19_the_key_of_a_job_that_time_has_ended_is_free(cx: Cx) {
    let queue = brief_queue(&cx);
    let lapsed = add(&queue, keyed("lapsed").max_attempts(1)).await;
    let _ = take(&queue).await;
    let expired = add(&queue, keyed("expired").expires(secs(10))).await;
    let lapsed_too = add(&queue, keyed("lapses").max_attempts(2)).await;
    let expires = add(&queue, keyed("expires").expires(secs(11))).await;
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(add(&queue, keyed("lapsed")).await, lapsed, "a millisecond early");
    assert_eq!(add(&queue, keyed("expired")).await, expired, "a millisecond early");
    cx.advance(millis(1)).await;
    for (key, id, error) in [("lapsed", lapsed, LAPSED_ERROR), ("expired", expired, EXPIRED_ERROR)]
    {
        let new = add(&queue, keyed(key)).await;
        assert_ne!(new, id);
        let dead = record(&queue, id).await;
        assert_eq!((dead.state, dead.last_error.as_deref()), (JobState::Dead, Some(error)));
        assert_eq!(add(&queue, keyed(key)).await, new);
    }
    assert_eq!(add(&queue, keyed("lapses")).await, lapsed_too, "it was never claimed");
    assert_eq!(add(&queue, keyed("expires")).await, expires);
}

pub(crate) async fn q19_a_lapsed_claim_with_attempts_left_keeps_its_key(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, keyed("k")).await;
    let _ = take(&queue).await;
    cx.advance(secs(10)).await;
    assert_eq!(add(&queue, keyed("k")).await, id);
}

pub(crate) async fn q19_a_transaction_takes_the_key_of_a_job_that_time_has_ended(cx: Cx) {
    let queue = brief_queue(&cx);
    let expired = add(&queue, keyed("k").expires(secs(10))).await;
    cx.advance(secs(10)).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    let staged = queue.enqueue_tx(&mut tx, &1, keyed("k")).await.unwrap();
    assert_ne!(staged, expired);
    tx.commit().await.unwrap();
    assert_eq!(state(&queue, expired).await, Some(JobState::Dead));
    assert_eq!(state(&queue, staged).await, Some(JobState::Pending));
}

/// Stages a key, lets another handle enqueue it, ends the transaction, and gives the staged id
/// and the other handle's.
async fn enqueue_against_a_transaction(cx: &Cx, commit: bool) -> (JobId, JobId) {
    let queue = queue(cx);
    let other = cx.second().await.queue("q").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let staged = queue.enqueue_tx(&mut tx, &"staged", keyed("k")).await.unwrap();
    let beside = other.clone();
    let task = cx.spawn(async move { beside.enqueue_with(&"beside", keyed("k")).await });
    cx.settle().await;
    assert!(!task.is_done(), "nobody can know yet whose the key is");
    if commit {
        tx.commit().await.unwrap();
    } else {
        tx.rollback().await.unwrap();
    }
    (staged, task.join().await.unwrap())
}

pub(crate) async fn q20_an_enqueue_answers_with_the_job_that_a_transaction_committed(cx: Cx) {
    let (staged, id) = enqueue_against_a_transaction(&cx, true).await;
    assert_eq!(id, staged);
    assert_eq!(count(&queue(&cx)).await, 1);
}

pub(crate) async fn q20_an_enqueue_never_answers_with_a_job_that_was_rolled_back(cx: Cx) {
    let (_, id) = enqueue_against_a_transaction(&cx, false).await;
    assert_eq!(record(&queue(&cx), id).await.payload.as_str(), "\"beside\"");
    assert_eq!(count(&queue(&cx)).await, 1);
}

pub(crate) async fn q20_an_enqueue_waits_for_a_staged_key_no_longer_than_the_lock_timeout(cx: Cx) {
    let queue = queue(&cx);
    let other: Queue = impatient(&cx).await.queue("q").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &"staged", keyed("k")).await.unwrap();
    assert_unavailable(cx.advancing(millis(10), other.enqueue_with(&"beside", keyed("k"))).await);
    tx.rollback().await.unwrap();
    assert_eq!(count(&queue).await, 0, "nothing was written");
    add(&other, keyed("k")).await;
    assert_eq!(count(&queue).await, 1);
}

pub(crate) async fn q21_unique_keys_and_worker_ids_are_local_names(cx: Cx) {
    let queue = queue(&cx);
    let long = "x".repeat(256);
    for bad in ["", " k", "k\t", "a\nb", long.as_str()] {
        assert_invalid_name(queue.enqueue_with(&1, keyed(bad)).await);
        assert_invalid_name(queue.claim(bad).await);
        assert_invalid_name(queue.claim_batch(bad, 1).await);
        assert_invalid_name(queue.next(bad).await);
    }
    assert_eq!(count(&queue).await, 0);
    for good in ["__alkstore_k", &long[..255], "k k", "\u{1f680}"] {
        let id = add(&queue, keyed(good)).await;
        let mut job = queue.claim(good).await.unwrap().expect("a job is ready");
        assert_eq!(job.id(), id);
        let record = record(&queue, id).await;
        assert_eq!(record.worker_id.as_deref(), Some(good));
        assert_eq!(record.unique_key.as_deref(), Some(good));
        job.release(Duration::ZERO).await.unwrap();
        assert!(queue.cancel(id).await.unwrap());
    }
    assert_none(&queue).await;
}

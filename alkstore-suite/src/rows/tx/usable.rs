//! What leaves a transaction usable, what ends it, and what goes on beside it.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, JobId, NewJob, OutboxOpts, Payload, PublishOpts, Result, Store, StoreExt,
    Tx,
};

use super::{STEP, beside, claimed, impatient, jobs, log, offset};
use crate::cx::Cx;

pub(crate) async fn x30_an_error_that_leaves_the_data_alone_leaves_it_usable(cx: Cx) {
    let mut lost = claimed(&cx.store, "lost").await;
    lost.ack().await.unwrap();
    let queue = cx.store.queue("q").unwrap();
    let stream = cx.store.stream("log").unwrap();
    let consumer = stream.consumer("reader").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let tx = &mut tx;
    queue.enqueue_tx(tx, &"before", EnqueueOpts::new()).await.unwrap();

    let errors = [
        lost.ack_tx(tx).await.err(),
        lost.retry_tx(tx, "late", None).await.err(),
        lost.fail_tx(tx, "late").await.err(),
        consumer.save_offset_tx(tx, offset(1)).await.err(),
        tx.notify_tx("", &1).await.err(),
        tx.notify_tx("__alkstore_bell", &1).await.err(),
        tx.get_job_tx(" ", lost.id()).await.err(),
        tx.get_offset_tx("log", "").await.err(),
        queue.enqueue_tx(tx, &1, EnqueueOpts::new().unique_key("")).await.err(),
        queue.enqueue_tx(tx, &1, EnqueueOpts::new().max_attempts(0)).await.err(),
        stream.publish_tx(tx, &1, PublishOpts::new().key("\n")).await.err(),
        stream.publish_tx(tx, &"x".repeat(1024 * 1024), PublishOpts::new()).await.err(),
    ];
    for (call, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {call} is no error"));
        let ends =
            matches!(error, Error::Unavailable { .. } | Error::Engine { .. } | Error::Closed);
        assert!(!ends, "call {call}: {error:?}");
    }
    queue.enqueue_tx(tx, &"after", EnqueueOpts::new()).await.unwrap();
    assert_eq!(tx.get_job_tx("lost", lost.id()).await.unwrap(), None);
}

pub(crate) async fn x30_it_commits_after_a_lost_claim(cx: Cx) {
    let mut lost = claimed(&cx.store, "lost").await;
    lost.ack().await.unwrap();
    let queue = cx.store.queue("q").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &"before", EnqueueOpts::new()).await.unwrap();
    let error = lost.ack_tx(&mut tx).await.expect_err("the claim was settled");
    assert!(matches!(error, Error::ClaimLost { .. }), "{error:?}");
    queue.enqueue_tx(&mut tx, &"after", EnqueueOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(jobs(&cx.second().await, "q").await, 2);
}

pub(crate) async fn x30_a_batch_that_is_refused_stages_nothing(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let good = || NewJob::new(&1).unwrap();
    let bad = good().opts(EnqueueOpts::new().max_attempts(0));
    let mut tx = cx.store.begin_tx().await.unwrap();
    let error = queue.enqueue_many_tx(&mut tx, vec![good(), bad, good()]).await.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    assert_eq!(queue.enqueue_many_tx(&mut tx, vec![]).await.unwrap(), []);
    tx.commit().await.unwrap();
    assert_eq!(jobs(&cx.store, "q").await, 0);
}

/// A transaction that met `Unavailable` after it had written; `None` where the engine can't give
/// two transactions at a time that far.
async fn ended(cx: &Cx, store: &Arc<dyn Store>, blocker: &mut Tx<'_>) -> Option<Tx<'static>> {
    let key = || EnqueueOpts::new().unique_key("k");
    let queue = store.queue("q").unwrap();
    cx.store.queue("q").unwrap().enqueue_tx(blocker, &1, key()).await.unwrap();
    let mut tx = beside(cx, store.begin_tx()).await?;
    beside(cx, queue.enqueue_tx(&mut tx, &"written", EnqueueOpts::new())).await;
    let error = cx.advancing(STEP, queue.enqueue_tx(&mut tx, &2, key())).await.unwrap_err();
    let ends = matches!(error, Error::Unavailable { .. })
        || cx.capabilities().one_writer && matches!(error, Error::Engine { .. });
    assert!(ends, "{error:?}");
    Some(tx)
}

fn engine_error<T: std::fmt::Debug>(what: &str, result: Result<T>) {
    assert!(matches!(result, Err(Error::Engine { .. })), "{what}: {result:?}");
}

pub(crate) async fn x31_after_unavailable_only_rollback_is_left(cx: Cx) {
    let hasty = impatient(&cx).await;
    let mut job = claimed(&hasty, "done").await;
    for commit in [true, false] {
        let mut blocker = cx.store.begin_tx().await.unwrap();
        let ended = ended(&cx, &hasty, &mut blocker).await;
        if let Some(mut tx) = ended {
            let tx_ref = &mut tx;
            let (queue, stream) = (hasty.queue("q").unwrap(), hasty.stream("log").unwrap());
            let mails = hasty.outbox("mails").unwrap();
            let consumer = stream.consumer("reader").unwrap();
            let id = JobId::try_from(1).unwrap();
            engine_error("enqueue", queue.enqueue_tx(tx_ref, &1, EnqueueOpts::new()).await);
            engine_error("outbox", mails.enqueue_tx(tx_ref, &1, OutboxOpts::new()).await);
            engine_error("ack", job.ack_tx(tx_ref).await);
            engine_error("retry", job.retry_tx(tx_ref, "busy", None).await);
            engine_error("fail", job.fail_tx(tx_ref, "broken").await);
            engine_error("publish", stream.publish_tx(tx_ref, &1, PublishOpts::new()).await);
            engine_error("save_offset", consumer.save_offset_tx(tx_ref, offset(0)).await);
            engine_error("read", stream.read_tx(tx_ref, offset(0), 1).await);
            engine_error("notify", tx_ref.notify_tx("bell", &1).await);
            engine_error("get_job", tx_ref.get_job_tx("q", id).await);
            engine_error("get_offset", tx_ref.get_offset_tx("log", "reader").await);
            if commit {
                engine_error("commit", tx.commit().await);
            } else {
                tx.rollback().await.unwrap();
            }
        }
        blocker.rollback().await.unwrap();
        assert_eq!(jobs(&cx.store, "q").await, 0, "nothing was written");
    }
    job.ack().await.expect("nothing of it was settled");
}

pub(crate) async fn x32_other_work_goes_on_beside_an_open_transaction(cx: Cx) {
    let hasty = impatient(&cx).await;
    let mut job = claimed(&hasty, "held").await;
    hasty.stream("log").unwrap().publish(&"committed").await.unwrap();
    let mut tx = hasty.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    let staged = hasty.queue("staged").unwrap();
    staged.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    let stream = hasty.stream("log").unwrap();
    stream.publish_tx(&mut tx, &"staged", PublishOpts::new()).await.unwrap();

    // Another store of its kind, so that no connection is missing.
    let beside_it = impatient(&cx).await;
    // Reads don't wait for it, on any engine.
    assert_eq!(jobs(&beside_it, "staged").await, 0);
    assert_eq!(log(&beside_it, "log").await, ["committed"]);
    assert_eq!(beside_it.queues().await.unwrap().len(), 1);
    // Writes of other names don't either, unless there is one writer.
    let queue = beside_it.queue("other").unwrap();
    let enqueued = beside(&cx, queue.enqueue(&1)).await;
    if enqueued.is_some() {
        let mut other = beside(&cx, queue.claim("w")).await.unwrap().expect("its only job");
        beside(&cx, other.ack()).await.unwrap();
    }
    let stream = beside_it.stream("other").unwrap();
    let published = beside(&cx, stream.publish(&"published")).await;
    let minute = Duration::from_secs(60);
    let lock = beside(&cx, beside_it.try_lock("other", "me", minute)).await;
    assert!(lock.is_none_or(|lock| lock.is_some()), "nobody holds it");
    beside(&cx, beside_it.notify("other", &1)).await;
    let schedule =
        beside_it.schedule("other", "@every 1h", "other", &1, alkstore_core::ScheduleOpts::new());
    beside(&cx, schedule).await;
    tx.commit().await.unwrap();

    assert_eq!(jobs(&hasty, "staged").await, 1);
    assert_eq!(jobs(&hasty, "other").await, 0);
    assert_eq!(log(&hasty, "other").await.len(), usize::from(published.is_some()));
}

pub(crate) async fn x32_calls_inside_the_closure_of_with_tx_dont_deadlock(cx: Cx) {
    let hasty = impatient(&cx).await;
    let (queue, other) = (hasty.queue("q").unwrap(), hasty.queue("other").unwrap());
    let (outer, inner, context) = (&queue, &other, &cx);
    let nested = hasty.with_tx(|tx| {
        Box::pin(async move {
            outer.enqueue_tx(tx, &1, EnqueueOpts::new()).await?;
            let seen = inner.stats().await;
            if context.capabilities().one_connection {
                assert!(matches!(seen, Err(Error::Unavailable { .. })), "{seen:?}");
                outer.enqueue_tx(tx, &3, EnqueueOpts::new()).await?;
                return Ok(false);
            }
            assert_eq!(seen?.ready, 0);
            let added = beside(context, inner.enqueue(&2)).await;
            outer.enqueue_tx(tx, &3, EnqueueOpts::new()).await?;
            Ok::<_, Error>(added.is_some())
        })
    });
    let added = cx.within(nested).await.unwrap();
    assert_eq!(jobs(&cx.store, "q").await, 2);
    assert_eq!(jobs(&cx.store, "other").await, usize::from(added));
}

pub(crate) async fn x33_a_transaction_without_writes_leaves_nothing_behind(cx: Cx) {
    for _ in 0..50 {
        let tx = cx.store.begin_tx().await.unwrap();
        tx.commit().await.unwrap();
        let tx = cx.store.begin_tx().await.unwrap();
        tx.rollback().await.unwrap();
        drop(cx.store.begin_tx().await.unwrap());
    }
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_eq!(tx.get_offset_tx("log", "nobody").await.unwrap(), offset(0));
    assert_eq!(tx.get_job_tx("q", JobId::try_from(i64::MAX).unwrap()).await.unwrap(), None);
    let large = Payload::from_json_text(format!("\"{}\"", "x".repeat(100_000))).unwrap();
    cx.store.queue("q").unwrap().enqueue_tx(&mut tx, large, EnqueueOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(jobs(&cx.store, "q").await, 1);
}

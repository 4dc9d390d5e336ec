//! Handles of one store, transactions of another.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, NewEvent, NewJob, Offset, OutboxOpts, PublishOpts, Store, StoreExt, Tx,
};

use super::{Everything, claimed, jobs, log, offset};
use crate::cx::Cx;

/// Uses every handle of a store with a transaction that isn't its own.
async fn refused(all: &mut Everything, store: &Arc<dyn Store>, tx: &mut Tx<'_>) {
    let is_refused = |what: &str, error: Option<Error>| {
        assert!(matches!(error, Some(Error::InvalidArgument { .. })), "{what}: {error:?}");
    };
    let (queue, outbox) = (store.queue("new").unwrap(), store.outbox("mails").unwrap());
    let stream = store.stream("log").unwrap();
    let consumer = stream.consumer("reader").unwrap();
    is_refused("enqueue_tx", queue.enqueue_tx(tx, &1, EnqueueOpts::new()).await.err());
    let job = NewJob::new(&1).unwrap();
    is_refused("enqueue_many_tx", queue.enqueue_many_tx(tx, vec![job]).await.err());
    is_refused("outbox", outbox.enqueue_tx(tx, &1, OutboxOpts::new()).await.err());
    is_refused("ack_tx", all.acked.ack_tx(tx).await.err());
    let delay = Some(Duration::ZERO);
    is_refused("retry_tx", all.retried.retry_tx(tx, "busy", delay).await.err());
    is_refused("fail_tx", all.failed.fail_tx(tx, "broken").await.err());
    is_refused("publish_tx", stream.publish_tx(tx, &1, PublishOpts::new()).await.err());
    let event = NewEvent::new(&1).unwrap();
    is_refused("publish_many_tx", stream.publish_many_tx(tx, vec![event]).await.err());
    is_refused("save_offset_tx", consumer.save_offset_tx(tx, offset(1)).await.err());
    is_refused("read_tx", stream.read_tx(tx, Offset::START, 1).await.err());
}

pub(crate) async fn x14_a_transaction_of_another_store_is_refused_and_stays_usable(cx: Cx) {
    let second = cx.second().await;
    let mut all = Everything::new(&cx.store).await;
    let mut tx = second.begin_tx().await.unwrap();
    refused(&mut all, &cx.store, &mut tx).await;
    let queue = second.queue("q").unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(all.seen_by(&second).await, Everything::nothing(), "nothing was staged");
    assert_eq!(jobs(&cx.store, "q").await, 1);
    all.acked.ack().await.expect("the refused settlement left the handle as it was");
}

pub(crate) async fn x14_a_transaction_on_other_data_is_refused(cx: Cx) {
    let elsewhere = cx.isolated().await;
    let mut all = Everything::new(&cx.store).await;
    // The same names and ids are there too.
    let there = Everything::new(&elsewhere.store).await;
    let mut tx = elsewhere.store.begin_tx().await.unwrap();
    refused(&mut all, &cx.store, &mut tx).await;
    tx.commit().await.unwrap();
    assert_eq!(all.seen_by(&cx.store).await, Everything::nothing());
    assert_eq!(there.seen_by(&elsewhere.store).await, Everything::nothing());
}

pub(crate) async fn x14_a_clone_of_the_store_is_the_same_store(cx: Cx) {
    let clone = cx.store.shared();
    let mut job = claimed(&clone, "done").await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    let queue = clone.queue("q").unwrap().clone();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    clone.stream("log").unwrap().publish_tx(&mut tx, &"e", PublishOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(jobs(&cx.store, "done").await, 0);
    assert_eq!(jobs(&cx.store, "q").await, 1);
    assert_eq!(log(&cx.store, "log").await, ["e"]);
}

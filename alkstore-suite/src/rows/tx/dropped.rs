//! Futures of a transaction that are dropped on their way.

use std::sync::Mutex;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, NewJob, PublishOpts, QueueOpts, StoreExt};

use super::{claimed, jobs, log, state};
use crate::cx::{Cx, drop_at_every_await};

fn three() -> Vec<NewJob> {
    (0..3).map(|number| NewJob::new(&number).unwrap()).collect()
}

pub(crate) async fn x34_a_dropped_begin_leaves_nothing_open(cx: Cx) {
    let second = cx.second().await;
    let (here, there) = (cx.store.queue("q").unwrap(), second.queue("q").unwrap());
    let usable = async || {
        here.enqueue(&1).await.expect("the store whose begin was dropped");
        there.enqueue(&1).await.expect("another store");
        assert_eq!(jobs(&second, "q").await % 2, 0, "what was acknowledged vanished");
    };
    let tx = drop_at_every_await(|| cx.store.begin_tx(), &usable).await.unwrap();
    drop(tx);
    for _ in 0..20 {
        usable().await;
    }
    assert!(jobs(&second, "q").await >= 40, "acknowledged enqueues vanished");
}

pub(crate) async fn x35_a_dropped_staging_call_staged_all_of_it_or_nothing(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let stream = cx.store.stream("log").unwrap();
    let tx = futures_util::lock::Mutex::new(cx.store.begin_tx().await.unwrap());
    let stage = async || queue.enqueue_many_tx(&mut *tx.lock().await, three()).await;
    let ids = drop_at_every_await(&stage, async || {}).await.unwrap();
    assert_eq!(ids.len(), 3);
    let publish =
        async || stream.publish_tx(&mut *tx.lock().await, &"event", PublishOpts::new()).await;
    drop_at_every_await(&publish, async || {}).await.unwrap();
    let mut tx = tx.into_inner();
    for id in ids {
        assert!(tx.get_job_tx("q", id).await.unwrap().is_some(), "it is staged");
    }
    tx.commit().await.unwrap();
    let staged = jobs(&cx.store, "q").await;
    assert!(staged >= 3 && staged % 3 == 0, "{staged} jobs of batches of 3");
    assert!(!log(&cx.store, "log").await.is_empty());
}

pub(crate) async fn x36_a_transaction_dropped_anywhere_is_all_or_nothing(cx: Cx) {
    let second = cx.second().await;
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    let transact = async || -> Result<(), Error> {
        let mut tx = cx.store.begin_tx().await?;
        queue.enqueue_many_tx(&mut tx, three()).await?;
        stream.publish_tx(&mut tx, &"event", PublishOpts::new()).await?;
        tx.commit().await
    };
    let check = async || {
        // The commit of a dropped call may still be under way, so that the two reads may differ
        // by it: the later one can only have more.
        let events = log(&second, "log").await.len();
        let added = jobs(&second, "q").await;
        assert!(added % 3 == 0 && added / 3 >= events, "{added} jobs, {events} events");
        second.queue("other").unwrap().enqueue(&1).await.expect("it stays usable");
    };
    drop_at_every_await(&transact, &check).await.unwrap();
    cx.settle().await;
    let added = jobs(&second, "q").await;
    assert!(added >= 3);
    assert_eq!(log(&second, "log").await.len() * 3, added);
}

pub(crate) async fn x36_with_tx_dropped_anywhere_is_all_or_nothing(cx: Cx) {
    let second = cx.second().await;
    let (queue, context) = (&cx.store.queue("q").unwrap(), &cx);
    let transact = || {
        cx.store.with_tx(move |tx| {
            Box::pin(async move {
                queue.enqueue_tx(tx, &1, EnqueueOpts::new()).await?;
                context.settle().await;
                queue.enqueue_many_tx(tx, three()).await?;
                Ok::<_, Error>(())
            })
        })
    };
    let check = async || assert_eq!(jobs(&second, "q").await % 4, 0);
    drop_at_every_await(transact, &check).await.unwrap();
    cx.settle().await;
    let added = jobs(&second, "q").await;
    assert!(added >= 4 && added % 4 == 0, "{added} jobs of transactions of 4");
}

pub(crate) async fn x37_a_dropped_rollback_has_rolled_back(cx: Cx) {
    let second = cx.second().await;
    let minute = Duration::from_secs(60);
    let held = cx.store.queue_with("held", QueueOpts::new().visibility_timeout(minute)).unwrap();
    held.enqueue(&1).await.unwrap();
    let job = Mutex::new(Some(held.claim("w").await.unwrap().unwrap()));
    let id = job.lock().unwrap().as_ref().unwrap().id();
    let queue = cx.store.queue("q").unwrap();
    let roll_back = async || -> Result<(), Error> {
        let mut tx = cx.store.begin_tx().await?;
        queue.enqueue_many_tx(&mut tx, three()).await?;
        let claim = job.lock().unwrap().take();
        if let Some(mut claim) = claim {
            let staged = claim.ack_tx(&mut tx).await;
            *job.lock().unwrap() = Some(claim);
            staged?;
        }
        tx.rollback().await
    };
    let check = async || {
        assert_eq!(jobs(&second, "q").await, 0, "a dropped transaction left something behind");
        assert!(state(&second, "held", id).await.is_some());
    };
    drop_at_every_await(&roll_back, &check).await.unwrap();
    check().await;
    cx.advance(minute).await;
    let again = second.queue("held").unwrap().claim("w").await.unwrap();
    assert_eq!(again.map(|job| job.id()), Some(id), "a dropped transaction still pins the job");
    drop(claimed(&second, "q").await);
}

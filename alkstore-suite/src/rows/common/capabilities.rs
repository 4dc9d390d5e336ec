//! What an engine declares is so, and what it doesn't declare isn't.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, Listener, Offset, ScheduleOpts, StopToken, StoreExt};
use alkstore_core::{Subscription, Tx};
use futures_util::{FutureExt, StreamExt};

use super::super::tx::{STEP, claimed, impatient, jobs, log, offset};
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

/// Fills a store, closes it, drops every handle on the data, and opens them anew.
async fn close_and_reopen(mut cx: Cx) -> Cx {
    let store = &cx.store;
    store.queue("q").unwrap().enqueue(&"kept").await.unwrap();
    claimed(store, "dead").await.fail("broken").await.unwrap();
    let stream = store.stream("log").unwrap();
    stream.publish(&"kept").await.unwrap();
    stream.consumer("c").unwrap().save_offset(offset(1)).await.unwrap();
    store.schedule("s", "@every 1h", "q", &1, ScheduleOpts::new()).await.unwrap();
    store.queue("paused").unwrap().pause().await.unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    store.queue("q").unwrap().enqueue_tx(&mut tx, &"too", EnqueueOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    let mut staged = store.begin_tx().await.unwrap();
    let queue = store.queue("q").unwrap();
    queue.enqueue_tx(&mut staged, &"staged", EnqueueOpts::new()).await.unwrap();
    drop((staged, queue, stream));
    store.close().await.unwrap();
    cx.store = cx.isolated().await.store.shared();
    cx.store = cx.second().await;
    cx
}

pub(crate) async fn c35_what_returned_ok_outlives_the_last_handle(cx: Cx) {
    let cx = close_and_reopen(cx).await;
    let queue = cx.store.queue("q").unwrap();
    let kept = queue.claim_batch("w", 10).await.unwrap();
    let kept: Vec<String> = kept.iter().map(|job| job.decode().unwrap()).collect();
    assert_eq!(kept, ["kept", "too"]);
    assert_eq!(cx.store.queue("dead").unwrap().stats().await.unwrap().dead, 1);
    let stream = cx.store.stream("log").unwrap();
    assert_eq!(stream.read(Offset::START, 10).await.unwrap().len(), 1);
    assert_eq!(stream.consumer("c").unwrap().offset().await.unwrap(), offset(1));
    assert_eq!(cx.store.schedules().await.unwrap().len(), 1);
    assert!(cx.store.queue("paused").unwrap().stats().await.unwrap().paused);
}

pub(crate) async fn c35_where_it_isnt_durable_it_is_gone_with_the_last_handle(cx: Cx) {
    if cx.capabilities().durable {
        return;
    }
    let cx = close_and_reopen(cx).await;
    assert_eq!(cx.store.queues().await.unwrap(), []);
    assert_eq!(cx.store.streams().await.unwrap(), []);
    assert_eq!(cx.store.schedules().await.unwrap(), []);
}

pub(crate) async fn c36_data_have_a_location_where_other_processes_can_open_them(cx: Cx) {
    let location = cx.data().location();
    assert_eq!(location.is_some(), cx.capabilities().multi_process, "{location:?}");
}

pub(crate) async fn c37_a_panic_unwinds_where_that_is_declared(cx: Cx) {
    let unwinds = cx.capabilities().unwinds;
    assert_eq!(unwinds, cfg!(panic = "unwind"));
    if unwinds {
        let caught = AssertUnwindSafe(async { panic!("to be caught") }).catch_unwind().await;
        assert!(caught.is_err());
    }
}

pub(crate) async fn c38_an_open_transaction_holds_up_other_writers_where_that_is_declared(cx: Cx) {
    let hasty = impatient(&cx).await;
    let (queue, other) = (cx.store.queue("q").unwrap(), hasty.queue("other").unwrap());
    let mut tx = cx.store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    let beside = cx.advancing(STEP, other.enqueue(&1)).await;
    match &beside {
        Ok(_) => assert!(!cx.capabilities().one_writer, "it declares one writer, yet two write"),
        Err(Error::Unavailable { .. }) => {
            assert!(cx.capabilities().one_writer, "it doesn't declare one writer: {beside:?}");
        }
        Err(error) => panic!("{error}"),
    }
    // Reading goes on anywhere.
    assert_eq!(jobs(&hasty, "q").await, 0);
    tx.commit().await.unwrap();
    assert_eq!(jobs(&hasty, "other").await, usize::from(beside.is_ok()), "nothing was written");
    other.enqueue(&1).await.expect("it can be repeated");
    let own = hasty.begin_tx().await.unwrap();
    let waited = matches!(other.stats().await, Err(Error::Unavailable { .. }));
    assert_eq!(waited, cx.capabilities().one_connection, "a call of the transaction's own store");
    own.rollback().await.unwrap();
}

pub(crate) async fn c47_handles_are_send_and_addresses_clone(cx: Cx) {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    fn is_address<T: Send + Sync + Clone + 'static>(value: &T) -> T {
        value.clone()
    }
    let store = is_address(&cx.store);
    let queue = is_address(&store.queue("q").unwrap());
    let stream = is_address(&store.stream("log").unwrap());
    let consumer = is_address(&stream.consumer("c").unwrap());
    let outbox = is_address(&store.outbox("mails").unwrap());
    assert_eq!((queue.name(), stream.name()), ("q", "log"));
    assert_eq!((consumer.name(), outbox.name()), ("c", "mails"));
    let id = is_send(queue.enqueue(&1)).await.unwrap();
    is_send(stream.publish(&"one")).await.unwrap();
    assert_eq!(is_send(consumer.read(10)).await.unwrap().len(), 1);
    let mut job = is_send(is_send(queue.next("w")).await.unwrap());
    assert_eq!((job.id(), job.queue(), job.attempt(), job.max_attempts()), (id, "q", 1, 3));
    let mut tx: Tx<'static> = is_send(is_send(store.begin_tx()).await.unwrap());
    is_send(job.ack_tx(&mut tx)).await.unwrap();
    is_send(tx.commit()).await.unwrap();
    let lock = is_send(is_send(store.lock("lock", "me", MINUTE)).await.unwrap());
    assert_eq!((lock.name(), lock.owner()), ("lock", "me"));
    is_send(lock.release()).await.unwrap();
    assert_eq!(log(&store, "log").await, ["one"]);
}

pub(crate) async fn c47_listeners_and_subscriptions_are_streams_of_futures(cx: Cx) {
    let mut bell: Listener = cx.store.listen("bell").await.unwrap();
    let log = cx.store.stream("log").unwrap();
    let mut tail: Subscription = log.subscribe(Offset::START).await.unwrap();
    cx.store.notify("bell", &"rung").await.unwrap();
    log.publish(&"said").await.unwrap();
    let message = cx.within(StreamExt::next(&mut bell)).await.unwrap().unwrap();
    assert_eq!((message.channel.as_str(), message.payload.as_str()), ("bell", "\"rung\""));
    let event = cx.within(StreamExt::next(&mut tail)).await.unwrap().unwrap();
    assert_eq!((event.offset.get(), event.payload.as_str()), (1, "\"said\""));
    cx.store.close().await.unwrap();
    assert!(cx.within(StreamExt::next(&mut bell)).await.is_none());
    assert!(cx.within(StreamExt::next(&mut tail)).await.is_none());
}

pub(crate) async fn c57_a_stop_token_has_two_signals_that_clones_share(cx: Cx) {
    let (stop, abort) = (StopToken::new(), StopToken::default());
    let (stopping, aborting) = (stop.clone(), abort.clone());
    let stopped = cx.spawn(async move { stopping.stopped().await });
    let aborted = cx.spawn(async move { aborting.aborted().await });
    cx.settle().await;
    assert!(!stopped.is_done() && !aborted.is_done());
    assert!(!stop.is_stopped() && !stop.is_aborted());
    stop.stop();
    stopped.join().await;
    assert!(stop.is_stopped() && !stop.is_aborted(), "one signal isn't the other");
    abort.abort();
    aborted.join().await;
    assert!(abort.is_stopped() && abort.is_aborted(), "the second implies the first");
    abort.stopped().await;
    stop.stop();
    assert!(!stop.is_aborted(), "stopping twice is no abort");
}

//! Subscriptions: live tails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use alkstore_core::{
    Error, Event, NewEvent, Offset, PublishOpts, Result, Store, StoreExt, StreamName, async_trait,
};
use futures_util::StreamExt;
use futures_util::lock::Mutex;

use super::super::tools::{Witness, refused};
use super::{assert_quiet, at, next};
use crate::cx::{Cx, drop_at_every_await};
use crate::fault::{Layer, layered};

pub(crate) async fn s32_a_subscription_yields_what_was_and_then_what_comes(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let events = (1..=600).map(|n| NewEvent::new(&n).unwrap()).collect();
    stream.publish_many(events).await.unwrap();
    let consumer = stream.consumer("c").unwrap();
    consumer.save_offset(at(2)).await.unwrap();
    let mut tail = stream.subscribe(at(1)).await.unwrap();
    let mut consumed = consumer.subscribe().await.unwrap();
    for (subscription, first) in [(&mut tail, 2), (&mut consumed, 3)] {
        for n in first..=600 {
            let event = next(&cx, subscription).await;
            assert_eq!((event.offset, event.payload.as_str()), (at(n), &*n.to_string()));
        }
        assert_quiet(&cx, subscription).await;
    }
    stream.publish_with(&"live", PublishOpts::new().key("k")).await.unwrap();
    for subscription in [&mut tail, &mut consumed] {
        let event = next(&cx, subscription).await;
        assert_eq!((event.offset, event.payload.as_str()), (at(601), "\"live\""));
        assert_eq!(event.key.as_ref().map(|key| key.as_str()), Some("k"));
        assert_quiet(&cx, subscription).await;
    }
}

pub(crate) async fn s33_a_live_tail_saves_nothing(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    stream.publish(&1).await.unwrap();
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    next(&cx, &mut tail).await;
    assert_eq!(stream.info().await.unwrap().consumers, []);
}

pub(crate) async fn s33_a_live_tail_begins_at_most_at_the_head(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    refused!(stream.subscribe(at(1)).await, Error::InvalidArgument { .. });
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    stream.publish(&1).await.unwrap();
    for beyond in [2, i64::MAX] {
        refused!(stream.subscribe(at(beyond)).await, Error::InvalidArgument { .. });
    }
    let mut at_head = stream.subscribe(at(1)).await.unwrap();
    stream.publish(&2).await.unwrap();
    assert_eq!(next(&cx, &mut tail).await.offset, at(1));
    assert_eq!(next(&cx, &mut at_head).await.offset, at(2));
}

pub(crate) async fn s34_two_subscriptions_of_one_consumer_both_get_every_event(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    stream.publish(&1).await.unwrap();
    let consumer = stream.consumer("c").unwrap();
    let elsewhere = cx.second().await.stream("s").unwrap().consumer("c").unwrap();
    let mut subscriptions = [
        consumer.subscribe().await.unwrap(),
        consumer.subscribe().await.unwrap(),
        elsewhere.subscribe().await.unwrap(),
    ];
    for n in 1..=5 {
        for subscription in &mut subscriptions {
            assert_eq!(next(&cx, subscription).await.offset, at(n));
        }
        consumer.save_offset(at(n)).await.unwrap();
        stream.publish(&n).await.unwrap();
    }
}

pub(crate) async fn s35_an_event_between_subscribe_and_the_first_wait_is_seen(cx: Cx) {
    let (stream, second) = (cx.store.stream("s").unwrap(), cx.second().await.stream("s").unwrap());
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    let mut consumed = stream.consumer("c").unwrap().subscribe().await.unwrap();
    second.publish(&1).await.unwrap();
    cx.settle().await;
    assert_eq!(next(&cx, &mut tail).await.offset, at(1));
    assert_eq!(next(&cx, &mut consumed).await.offset, at(1));
}

pub(crate) async fn s36_a_waiting_subscription_is_woken_by_every_handle(cx: Cx) {
    let (stream, second) = (cx.store.stream("s").unwrap(), cx.second().await);
    let there = second.stream("s").unwrap();
    let other = second.stream("other").unwrap();
    let mut subscriptions = [
        stream.subscribe(Offset::START).await.unwrap(),
        there.subscribe(Offset::START).await.unwrap(),
    ];
    for n in [1, 2, 3, 4] {
        let waiting = subscriptions.map(|mut subscription| {
            cx.spawn(async move {
                let event = subscription.recv().await.expect("the store is open").unwrap();
                (subscription, event.offset)
            })
        });
        cx.settle().await;
        assert!(!waiting.iter().any(crate::Task::is_done), "there is no event {n} yet");
        match n {
            1 => drop(stream.publish(&n).await.unwrap()),
            2 => drop(there.publish(&n).await.unwrap()),
            _ => {
                let (store, stream) = if n == 3 { (&cx.store, &stream) } else { (&second, &there) };
                let mut tx = store.begin_tx().await.unwrap();
                stream.publish_tx(&mut tx, &n, PublishOpts::new()).await.unwrap();
                cx.settle().await;
                assert!(!waiting.iter().any(crate::Task::is_done), "it isn't committed yet");
                tx.commit().await.unwrap();
            }
        }
        let [one, two] = waiting;
        let ((one, first), (two, second)) = (one.join().await, two.join().await);
        assert_eq!((first, second), (at(n), at(n)));
        subscriptions = [one, two];
        other.publish(&n).await.unwrap();
    }
}

pub(crate) async fn s36_a_rolled_back_event_is_never_seen(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    for drop_it in [false, true] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        stream.publish_tx(&mut tx, &"undone", PublishOpts::new()).await.unwrap();
        if drop_it {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        assert_quiet(&cx, &mut tail).await;
    }
    stream.publish(&"kept").await.unwrap();
    let event = next(&cx, &mut tail).await;
    assert_eq!((event.offset, event.payload.as_str()), (at(1), "\"kept\""));
}

pub(crate) async fn s37_a_dropped_recv_loses_nothing(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let second = cx.second().await.stream("s").unwrap();
    let subscription = Arc::new(Mutex::new(stream.subscribe(Offset::START).await.unwrap()));
    for n in 1..=5 {
        {
            let mut subscription = subscription.lock().await;
            let mut waiting = Box::pin(subscription.recv());
            assert!(cx.briefly(&mut waiting).await.is_none());
            // Woken, but dropped before it looks.
            second.publish(&n).await.unwrap();
        }
        let recv = || {
            let subscription = subscription.clone();
            async move { subscription.lock().await.recv().await }
        };
        let item = cx.within(drop_at_every_await(recv, async || {})).await;
        assert_eq!(item.expect("the store is open").unwrap().offset, at(n));
    }
}

pub(crate) async fn s37_a_dropped_recv_leaves_the_store_usable(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    stream.publish(&0).await.unwrap();
    let subscription = Arc::new(Mutex::new(stream.subscribe(Offset::START).await.unwrap()));
    let recv = || {
        let subscription = subscription.clone();
        async move { subscription.lock().await.recv().await }
    };
    let publish = || async {
        cx.within(stream.publish(&1)).await.unwrap();
    };
    let item = drop_at_every_await(recv, publish).await;
    assert_eq!(item.expect("the store is open").unwrap().offset, at(1));
}

/// Reads that never end while they are told to hang.
#[derive(Default)]
struct Hanging {
    hangs: AtomicBool,
    under_way: Arc<()>,
}

#[async_trait]
impl Layer for Hanging {
    async fn read_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let _under_way = self.under_way.clone();
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        inner.read_events(stream, after, limit).await
    }
}

pub(crate) async fn s37_a_dropped_recv_gives_up_its_read(cx: Cx) {
    let hanging = Arc::new(Hanging::default());
    let stream = layered(cx.store.clone(), hanging.clone()).stream("s").unwrap();
    let reads = || Arc::strong_count(&hanging.under_way) - 1;
    let mut subscription = stream.subscribe(Offset::START).await.unwrap();
    stream.publish(&1).await.unwrap();
    hanging.hangs.store(true, Ordering::SeqCst);
    let mut waiting = Box::pin(subscription.recv());
    assert!(cx.briefly(&mut waiting).await.is_none());
    assert_eq!(reads(), 1);
    drop(waiting);
    assert_eq!(reads(), 0, "the read is under way, with nobody to poll it");
    hanging.hangs.store(false, Ordering::SeqCst);
    assert_eq!(next(&cx, &mut subscription).await.offset, at(1));
}

pub(crate) async fn s38_a_subscription_is_a_stream_of_futures(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let subscription = stream.subscribe(Offset::START).await.unwrap();
    let all = cx.spawn(subscription.take(4).map(|item| item.unwrap().offset).collect::<Vec<_>>());
    for n in 1..=3 {
        assert_eq!(stream.publish(&n).await.unwrap(), at(n));
    }
    let mut mixed = stream.subscribe(Offset::START).await.unwrap();
    assert_eq!(cx.within(mixed.next()).await.unwrap().unwrap().offset, at(1));
    assert_eq!(next(&cx, &mut mixed).await.offset, at(2));
    assert_eq!(cx.within(mixed.next()).await.unwrap().unwrap().offset, at(3));
    // A poll that waits is taken over by a recv, and the other way round.
    assert!(cx.briefly(&mut mixed.next()).await.is_none());
    assert_quiet(&cx, &mut mixed).await;
    assert!(cx.briefly(&mut mixed.next()).await.is_none());
    stream.publish(&4).await.unwrap();
    assert_eq!(next(&cx, &mut mixed).await.offset, at(4));
    assert_eq!(all.join().await, (1..=4).map(at).collect::<Vec<_>>());
    cx.store.close().await.unwrap();
    assert!(cx.within(mixed.next()).await.is_none());
}

pub(crate) async fn s39_a_subscription_ends_when_its_store_is_closed(cx: Cx) {
    let second = cx.second().await;
    let (stream, there) = (cx.store.stream("s").unwrap(), second.stream("s").unwrap());
    let mut idle = there.subscribe(Offset::START).await.unwrap();
    let mut waiting = there.consumer("c").unwrap().subscribe().await.unwrap();
    let mut unaffected = stream.subscribe(Offset::START).await.unwrap();
    let waiting = cx.spawn(async move { (waiting.recv().await, waiting.recv().await) });
    cx.settle().await;
    second.clone().close().await.unwrap();
    assert!(matches!(waiting.join().await, (None, None)));
    assert!(cx.within(idle.recv()).await.is_none());
    stream.publish(&1).await.unwrap();
    assert_eq!(next(&cx, &mut unaffected).await.offset, at(1));
    assert!(cx.within(idle.recv()).await.is_none(), "it came back to life");
}

pub(crate) async fn s39_a_subscription_ends_with_the_last_handle(cx: Cx) {
    let second = cx.second().await;
    let stream = second.stream("s").unwrap();
    let mut idle = stream.subscribe(Offset::START).await.unwrap();
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    drop(second);
    stream.publish(&1).await.unwrap();
    assert_eq!(next(&cx, &mut tail).await.offset, at(1));
    let consumer = stream.consumer("c").unwrap();
    drop(stream);
    let waiting = cx.spawn(async move { tail.recv().await });
    cx.settle().await;
    assert!(!waiting.is_done(), "the consumer keeps the store open");
    consumer.save_offset(at(1)).await.unwrap();
    drop(consumer);
    assert!(waiting.join().await.is_none());
    cx.within(async { while idle.recv().await.is_some() {} }).await;
}

pub(crate) async fn s40_a_closed_store_refuses_streams(cx: Cx) {
    let (store, second) = (cx.store.clone(), cx.second().await);
    let stream = store.stream("s").unwrap();
    let consumer = stream.consumer("c").unwrap();
    stream.publish(&1).await.unwrap();
    store.close().await.unwrap();
    refused!(stream.publish(&1).await, Error::Closed);
    refused!(stream.publish_many(vec![NewEvent::new(&1).unwrap()]).await, Error::Closed);
    refused!(stream.read(Offset::START, 1).await, Error::Closed);
    refused!(stream.trim_to(at(1)).await, Error::Closed);
    refused!(stream.info().await, Error::Closed);
    refused!(stream.forget_consumer("c").await, Error::Closed);
    refused!(stream.subscribe(Offset::START).await, Error::Closed);
    refused!(consumer.offset().await, Error::Closed);
    refused!(consumer.read(1).await, Error::Closed);
    refused!(consumer.save_offset(at(1)).await, Error::Closed);
    refused!(consumer.rewind(at(1)).await, Error::Closed);
    refused!(consumer.subscribe().await, Error::Closed);
    refused!(store.streams().await, Error::Closed);
    let info = second.stream("s").unwrap().info().await.unwrap();
    assert_eq!((info.count, info.consumers.len()), (1, 0), "a closed store wrote");
}

pub(crate) async fn s41_ten_thousand_subscriptions_leave_nothing(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let consumer = stream.consumer("c").unwrap();
    let mut kept = stream.subscribe(Offset::START).await.unwrap();
    let witness = Arc::new(Witness::default());
    for round in 0..10_000 {
        let mut subscription = if round % 2 == 0 {
            stream.subscribe(Offset::START).await.unwrap()
        } else {
            consumer.subscribe().await.unwrap()
        };
        if round % 1_000 < 2 {
            let waiting = witness.clone().watch(subscription.recv());
            assert!(cx.briefly(&mut Box::pin(waiting)).await.is_none());
        }
    }
    cx.until(async || witness.is_alone()).await;
    stream.publish(&1).await.unwrap();
    assert_eq!(next(&cx, &mut kept).await.offset, at(1));
    assert_eq!(stream.info().await.unwrap().consumers, []);
}

/// Reads that fail with these errors first.
#[derive(Default)]
struct Failing(Mutex<VecDeque<Error>>);

#[async_trait]
impl Layer for Failing {
    async fn read_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        match self.0.lock().await.pop_front() {
            Some(error) => Err(error),
            None => inner.read_events(stream, after, limit).await,
        }
    }
}

pub(crate) async fn s42_after_an_error_a_subscription_goes_on(cx: Cx) {
    let failing = Arc::new(Failing::default());
    let stream = layered(cx.store.clone(), failing.clone()).stream("s").unwrap();
    let mut subscription = stream.subscribe(Offset::START).await.unwrap();
    for n in (1..=5).step_by(2) {
        for offset in [n, n + 1] {
            assert_eq!(stream.publish(&n).await.unwrap(), at(offset));
        }
        let errors = [Error::unavailable("busy"), Error::engine("broken")];
        failing.0.lock().await.extend(errors);
        let error = cx.within(subscription.recv()).await.unwrap();
        assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
        let error = cx.within(subscription.recv()).await.unwrap();
        assert!(matches!(error, Err(Error::Engine { .. })), "{error:?}");
        for offset in [n, n + 1] {
            assert_eq!(next(&cx, &mut subscription).await.offset, at(offset));
        }
        assert_quiet(&cx, &mut subscription).await;
    }
}

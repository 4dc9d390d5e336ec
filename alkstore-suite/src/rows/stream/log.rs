//! The log: publishing and reading.

use std::sync::Arc;
use std::time::SystemTime;

use alkstore_core::{
    BoxFuture, DEFAULT_PAYLOAD_LIMIT, Error, Headers, MAX_HEADERS, NewEvent, Offset, Payload,
    PublishOpts, Store, StoreExt,
};
use futures_util::FutureExt;

use super::super::tools::{bad_names, give_way, names_alike, payload_of, refused};
use super::{at, places, texts};
use crate::cx::Cx;
use crate::factory::OpenOptions;

pub(crate) async fn s1_offsets_count_from_one_in_each_stream(cx: Cx) {
    let (orders, returns) =
        (cx.store.stream("orders").unwrap(), cx.second().await.stream("returns").unwrap());
    for n in 1..=3 {
        assert_eq!(orders.publish(&n).await.unwrap(), at(n));
    }
    assert_eq!(returns.publish(&"first").await.unwrap(), at(1));
    assert_eq!(orders.publish(&4).await.unwrap(), at(4));
    assert_eq!(places(&orders.read(Offset::START, 10).await.unwrap()), [1, 2, 3, 4]);
    assert_eq!(texts(&returns.read(Offset::START, 10).await.unwrap()), ["first"]);
}

pub(crate) async fn s2_an_event_comes_back_as_it_was_published(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let text = "{ \"b\":1.0,  \"a\" : [1e2, \"\\u0000 \u{e9}\\/\"] ,\"a\":null}\n";
    let headers = Headers::new([("traceparent", "00-4bf9-00f0-01"), ("empty", "")]).unwrap();
    let opts = PublishOpts::new().key("order-7").headers(headers.clone());
    let payload = Payload::from_json_text(text).unwrap();
    let before: SystemTime = cx.now().await.into();
    stream.publish_with(payload, opts).await.unwrap();
    cx.advance(std::time::Duration::from_secs(60)).await;
    stream.publish(&"plain").await.unwrap();

    let other = cx.second().await.stream("s").unwrap();
    let events = other.read(Offset::START, 10).await.unwrap();
    let [event, plain] = &events[..] else { panic!("two events, not {events:?}") };
    assert_eq!(event.payload.as_str(), text);
    assert_eq!(event.key.as_ref().map(|key| key.as_str()), Some("order-7"));
    assert_eq!(event.headers, headers);
    assert_eq!(event.published_at, before);
    assert_eq!((&plain.key, plain.headers.len()), (&None, 0));
    assert_eq!(plain.published_at, SystemTime::from(cx.now().await));
}

pub(crate) async fn s2_headers_up_to_their_limits_travel_with_an_event(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    // 64 entries of 3 + 125 bytes are 8 KiB.
    let many: Vec<_> = (0..MAX_HEADERS).map(|n| (format!("h{n:02}"), "v".repeat(125))).collect();
    for entries in [many, vec![("h".to_owned(), "\u{0}\u{e9}\n\"".to_owned())]] {
        let headers = Headers::new(entries).unwrap();
        let event = NewEvent::new(&1).unwrap().opts(PublishOpts::new().headers(headers.clone()));
        let offset = stream.publish_many(vec![event]).await.unwrap()[0];
        let events = stream.read(at(offset.get() - 1), 1).await.unwrap();
        assert_eq!(events[0].headers, headers);
    }
}

pub(crate) async fn s3_events_published_together_stand_together(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    stream.publish(&"a").await.unwrap();
    let events = ["b", "c", "d"].map(|text| NewEvent::new(text).unwrap()).to_vec();
    assert_eq!(stream.publish_many(events).await.unwrap(), [at(2), at(3), at(4)]);
    assert_eq!(texts(&stream.read(Offset::START, 10).await.unwrap()), ["a", "b", "c", "d"]);
}

pub(crate) async fn s3_one_bad_event_keeps_out_all_it_came_with(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let good = || NewEvent::new(&1).unwrap();
    let too_large = NewEvent::new(payload_of(DEFAULT_PAYLOAD_LIMIT + 1)).unwrap();
    let bad_key = good().opts(PublishOpts::new().key(" k"));
    refused!(
        stream.publish_many(vec![good(), too_large, good()]).await,
        Error::PayloadTooLarge { .. }
    );
    refused!(stream.publish_many(vec![good(), bad_key]).await, Error::InvalidName { .. });
    assert_eq!(stream.info().await.unwrap().last, Offset::START);
    assert_eq!(stream.publish(&1).await.unwrap(), at(1));
}

pub(crate) async fn s3_publishing_no_event_is_nothing(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    assert_eq!(stream.publish_many(Vec::new()).await.unwrap(), []);
    let mut tx = cx.store.begin_tx().await.unwrap();
    stream.publish_many_tx(&mut tx, Vec::new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(cx.store.streams().await.unwrap(), []);
}

pub(crate) async fn s4_publishers_at_once_leave_no_gap(cx: Cx) {
    let streams = [cx.store.stream("s").unwrap(), cx.second().await.stream("s").unwrap()];
    let mut head = 0;
    for round in 0..100 {
        let publishers = streams.iter().enumerate().map(|(n, stream)| {
            let stream = stream.clone();
            let events = (0..=(round + n) % 3).map(|n| NewEvent::new(&n).unwrap()).collect();
            async move { stream.publish_many(events).await.unwrap() }.boxed()
        });
        let mut taken = cx.together(publishers).await;
        taken.sort();
        let taken: Vec<_> = taken.concat().into_iter().map(Offset::get).collect();
        let next = head + i64::try_from(taken.len()).unwrap();
        let expected: Vec<_> = (head + 1..=next).collect();
        assert_eq!(taken, expected, "round {round}");
        head = next;
    }
    let events = streams[0].read(Offset::START, usize::MAX).await.unwrap();
    assert_eq!(places(&events), (1..=head).collect::<Vec<_>>());
}

pub(crate) async fn s8_no_reader_skips_an_event_while_several_publish(cx: Cx) {
    const EACH: usize = 25;
    const ALL: usize = 2 * EACH + 2 * 2 * EACH;
    let stores = [cx.store.clone(), cx.second().await];
    let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
    for store in &stores {
        tasks.push(publisher(store.clone(), EACH).boxed());
        tasks.push(publisher_in_transactions(store.clone(), EACH).boxed());
        tasks.push(reader(store.clone(), ALL).boxed());
        tasks.push(subscriber(store.clone(), ALL).boxed());
    }
    cx.together(tasks).await;
}

async fn publisher(store: Arc<dyn Store>, count: usize) {
    let stream = store.stream("s").unwrap();
    for n in 0..count {
        stream.publish(&n).await.unwrap();
        give_way().await;
    }
}

async fn publisher_in_transactions(store: Arc<dyn Store>, count: usize) {
    let stream = store.stream("s").unwrap();
    for n in 0..count {
        let mut tx = store.begin_tx().await.unwrap();
        stream.publish_tx(&mut tx, &n, PublishOpts::new()).await.unwrap();
        give_way().await;
        stream.publish_tx(&mut tx, &n, PublishOpts::new()).await.unwrap();
        give_way().await;
        tx.commit().await.unwrap();
    }
}

async fn reader(store: Arc<dyn Store>, count: usize) {
    let stream = store.stream("s").unwrap();
    let mut seen = 0;
    while seen < i64::try_from(count).unwrap() {
        for event in stream.read(at(seen), 7).await.unwrap() {
            assert_eq!(event.offset, at(seen + 1), "a reader skipped an event");
            seen += 1;
        }
        give_way().await;
    }
}

async fn subscriber(store: Arc<dyn Store>, count: usize) {
    let mut subscription = store.stream("s").unwrap().subscribe(Offset::START).await.unwrap();
    for seen in 1..=i64::try_from(count).unwrap() {
        let event = subscription.recv().await.expect("the store is open").unwrap();
        assert_eq!(event.offset, at(seen), "a subscription skipped an event");
    }
}

pub(crate) async fn s12_a_read_begins_after_its_offset_and_ends_at_its_limit(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let events = (1..=700).map(|n| NewEvent::new(&n).unwrap()).collect();
    stream.publish_many(events).await.unwrap();
    assert_eq!(places(&stream.read(at(2), 3).await.unwrap()), [3, 4, 5]);
    assert_eq!(places(&stream.read(at(698), 5).await.unwrap()), [699, 700]);
    for after in [700, 701, i64::MAX] {
        assert_eq!(stream.read(at(after), 5).await.unwrap(), [], "after {after}");
    }
    let all: Vec<_> = (1..=700).collect();
    for limit in [700, usize::MAX] {
        assert_eq!(places(&stream.read(Offset::START, limit).await.unwrap()), all);
    }
    assert_eq!(cx.store.stream("unknown").unwrap().read(Offset::START, 5).await.unwrap(), []);
}

pub(crate) async fn s12_a_limit_of_zero_gives_nothing(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    stream.publish(&1).await.unwrap();
    assert_eq!(stream.read(Offset::START, 0).await.unwrap(), []);
    assert_eq!(stream.consumer("c").unwrap().read(0).await.unwrap(), []);
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_eq!(stream.read_tx(&mut tx, Offset::START, 0).await.unwrap(), []);
}

pub(crate) async fn s13_a_key_neither_orders_nor_deduplicates(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let keys = ["b", "a", "b", "__alkstore_k", "a"];
    for key in keys {
        stream.publish_with(&"same", PublishOpts::new().key(key)).await.unwrap();
    }
    let events = stream.read(Offset::START, 10).await.unwrap();
    let kept: Vec<_> = events.iter().map(|event| event.key.as_ref().unwrap().as_str()).collect();
    assert_eq!(kept, keys);
    for key in bad_names() {
        let opts = PublishOpts::new().key(key.as_str());
        refused!(stream.publish_with(&1, opts).await, Error::InvalidName { .. });
    }
}

pub(crate) async fn s14_the_payload_limit_holds_for_every_way_in(cx: Cx) {
    const RAISED: usize = 3 * 1024 * 1024;
    let raised = OpenOptions { payload_limit: Some(RAISED), ..OpenOptions::default() };
    for (store, most) in
        [(cx.store.clone(), DEFAULT_PAYLOAD_LIMIT), (cx.open(raised).await, RAISED)]
    {
        let stream = store.stream("s").unwrap();
        let head = stream.info().await.unwrap().last;
        let largest = payload_of(most);
        let offset = stream.publish(largest.clone()).await.unwrap();
        let more = payload_of(most + 1);
        match stream.publish(more.clone()).await {
            Err(Error::PayloadTooLarge { size, limit }) => {
                assert_eq!((size, limit), (most + 1, most));
            }
            other => panic!("too large, yet {other:?}"),
        }
        let mut tx = store.begin_tx().await.unwrap();
        refused!(
            stream.publish_tx(&mut tx, more.clone(), PublishOpts::new()).await,
            Error::PayloadTooLarge { .. }
        );
        refused!(
            stream.publish_many_tx(&mut tx, vec![NewEvent::new(more).unwrap()]).await,
            Error::PayloadTooLarge { .. }
        );
        tx.commit().await.unwrap();
        let events = stream.read(head, 10).await.unwrap();
        assert_eq!(places(&events), [offset.get()]);
        assert!(events[0].payload == largest, "the largest payload came back changed");
    }
}

pub(crate) async fn s15_names_of_streams_are_shared_names(cx: Cx) {
    for name in bad_names() {
        refused!(cx.store.stream(&name), Error::InvalidName { .. });
    }
    refused!(cx.store.stream("__alkstore_s"), Error::ReservedName { .. });
    let names = names_alike();
    for name in &names {
        cx.store.stream(name).unwrap().publish(name).await.unwrap();
    }
    for name in &names {
        let events = cx.store.stream(name).unwrap().read(Offset::START, 10).await.unwrap();
        assert_eq!(texts(&events), [name.as_str()]);
    }
}

pub(crate) async fn s15_names_of_consumers_are_local_names(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    for name in bad_names() {
        refused!(stream.consumer(&name), Error::InvalidName { .. });
        refused!(stream.forget_consumer(&name).await, Error::InvalidName { .. });
    }
    let mut names = names_alike();
    names.push("__alkstore_c".to_owned());
    for name in &names {
        let head = stream.publish(&1).await.unwrap();
        stream.consumer(name).unwrap().save_offset(head).await.unwrap();
    }
    for (name, offset) in names.iter().zip(1..) {
        assert_eq!(stream.consumer(name).unwrap().offset().await.unwrap(), at(offset), "{name:?}");
    }
}

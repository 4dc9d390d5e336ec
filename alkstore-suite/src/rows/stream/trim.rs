//! Trimming, and what is told of a stream.

use alkstore_core::{NewEvent, Offset, StoreExt};

use super::{assert_quiet, at, next, places, texts};
use crate::cx::Cx;

async fn filled(cx: &Cx, name: &str, events: i64) -> alkstore_core::Stream {
    let stream = cx.store.stream(name).unwrap();
    let events = (1..=events).map(|n| NewEvent::new(&n.to_string()).unwrap()).collect();
    stream.publish_many(events).await.unwrap();
    stream
}

pub(crate) async fn s7_offsets_are_not_reused_after_a_trim_of_everything(cx: Cx) {
    let stream = filled(&cx, "s", 3).await;
    assert_eq!(stream.trim_to(at(3)).await.unwrap(), 3);
    assert_eq!(cx.second().await.stream("s").unwrap().publish(&"d").await.unwrap(), at(4));
    assert_eq!(texts(&stream.read(Offset::START, 10).await.unwrap()), ["d"]);
}

pub(crate) async fn s7_offsets_are_not_reused_after_a_restart(cx: Cx) {
    let stream = filled(&cx, "s", 3).await;
    let consumer = stream.consumer("c").unwrap();
    consumer.save_offset(at(2)).await.unwrap();
    stream.trim_to(at(3)).await.unwrap();
    cx.store.close().await.unwrap();
    let stream = cx.second().await.stream("s").unwrap();
    assert_eq!(stream.consumer("c").unwrap().offset().await.unwrap(), at(2));
    assert_eq!(stream.publish(&"d").await.unwrap(), at(4));
    let info = stream.info().await.unwrap();
    assert_eq!((info.first, info.last, info.count), (at(4), at(4), 1));
}

pub(crate) async fn s25_a_trim_keeps_the_offsets_of_what_remains(cx: Cx) {
    let stream = filled(&cx, "s", 5).await;
    let other = filled(&cx, "other", 5).await;
    for (horizon, deleted, left) in [(0, 0, 5), (2, 2, 3), (2, 0, 3), (1, 0, 3), (4, 2, 1)] {
        assert_eq!(stream.trim_to(at(horizon)).await.unwrap(), deleted, "up to {horizon}");
        let events = stream.read(Offset::START, 10).await.unwrap();
        assert_eq!(places(&events), (6 - left..=5).collect::<Vec<_>>());
    }
    assert_eq!(texts(&stream.read(Offset::START, 10).await.unwrap()), ["5"]);
    assert_eq!(other.info().await.unwrap().count, 5);
}

pub(crate) async fn s26_a_trim_beyond_the_head_trims_everything_there_is(cx: Cx) {
    for (name, horizon) in [("near", 4), ("far", 1_000), ("farthest", i64::MAX)] {
        let stream = filled(&cx, name, 3).await;
        assert_eq!(stream.trim_to(at(horizon)).await.unwrap(), 3);
        let info = stream.info().await.unwrap();
        assert_eq!((info.first, info.last, info.count), (at(4), at(3), 0));
        assert_eq!(stream.publish(&"d").await.unwrap(), at(4));
        assert_eq!(places(&stream.read(Offset::START, 10).await.unwrap()), [4]);
        assert_eq!(stream.info().await.unwrap().first, at(4));
    }
    let unknown = cx.store.stream("unknown").unwrap();
    assert_eq!(unknown.trim_to(at(9)).await.unwrap(), 0);
    assert_eq!(unknown.publish(&"a").await.unwrap(), at(1));
    assert_eq!(places(&unknown.read(Offset::START, 10).await.unwrap()), [1]);
}

pub(crate) async fn s27_a_reader_in_the_trimmed_part_goes_on_at_the_first_that_remains(cx: Cx) {
    let stream = filled(&cx, "s", 3).await;
    let consumer = stream.consumer("c").unwrap();
    consumer.save_offset(at(1)).await.unwrap();
    let mut early = consumer.subscribe().await.unwrap();
    for offset in 2..=3 {
        assert_eq!(next(&cx, &mut early).await.offset, at(offset));
    }
    assert_quiet(&cx, &mut early).await;
    stream
        .publish_many(vec![NewEvent::new("4").unwrap(), NewEvent::new("5").unwrap()])
        .await
        .unwrap();
    let second = cx.second().await;
    second.stream("s").unwrap().trim_to(at(4)).await.unwrap();
    assert_eq!(next(&cx, &mut early).await.offset, at(5));

    assert_eq!(places(&stream.read(at(2), 10).await.unwrap()), [5]);
    assert_eq!(places(&consumer.read(10).await.unwrap()), [5]);
    let mut late = consumer.subscribe().await.unwrap();
    assert_eq!(next(&cx, &mut late).await.offset, at(5));
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    assert_eq!(next(&cx, &mut tail).await.offset, at(5));
    stream.trim_to(at(5)).await.unwrap();
    stream.publish(&"6").await.unwrap();
    assert_eq!(next(&cx, &mut late).await.offset, at(6));
    assert_eq!(next(&cx, &mut tail).await.offset, at(6));
}

pub(crate) async fn s28_the_first_offset_shows_the_gap(cx: Cx) {
    let stream = filled(&cx, "s", 5).await;
    let info = stream.info().await.unwrap();
    assert_eq!((info.name.as_str(), info.first, info.last, info.count), ("s", at(1), at(5), 5));
    stream.trim_to(at(2)).await.unwrap();
    let info = cx.second().await.stream("s").unwrap().info().await.unwrap();
    assert_eq!((info.first, info.last, info.count), (at(3), at(5), 3));
}

pub(crate) async fn s29_a_stream_without_events_has_nothing_before_its_first(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let info = stream.info().await.unwrap();
    assert_eq!((info.name.as_str(), info.first, info.last, info.count), ("s", at(1), at(0), 0));
    assert_eq!(info.consumers, []);
    stream.consumer("c").unwrap().save_offset(Offset::START).await.unwrap();
    let info = stream.info().await.unwrap();
    assert_eq!((info.first, info.last, info.count), (at(1), at(0), 0));
    assert_eq!((info.consumers[0].offset, info.consumers[0].lag), (at(0), 0));
}

pub(crate) async fn s30_lag_counts_the_retained_events_after_a_place(cx: Cx) {
    let stream = filled(&cx, "s", 6).await;
    for (name, offset) in [("b", 4), ("a", 0), ("C", 6), ("\u{e9}", 3)] {
        stream.consumer(name).unwrap().save_offset(at(offset)).await.unwrap();
    }
    let lags = async || {
        let info = stream.info().await.unwrap();
        let lag = |c: &alkstore_core::ConsumerInfo| (c.name.clone(), c.offset.get(), c.lag);
        info.consumers.iter().map(lag).collect::<Vec<_>>()
    };
    let expected = |rows: [(&str, i64, u64); 4]| {
        rows.map(|(name, offset, lag)| (name.to_owned(), offset, lag)).to_vec()
    };
    let before = expected([("C", 6, 0), ("a", 0, 6), ("b", 4, 2), ("\u{e9}", 3, 3)]);
    assert_eq!(lags().await, before);
    stream.trim_to(at(3)).await.unwrap();
    let after = expected([("C", 6, 0), ("a", 0, 3), ("b", 4, 2), ("\u{e9}", 3, 3)]);
    assert_eq!(lags().await, after);
    stream.trim_to(at(5)).await.unwrap();
    let late = expected([("C", 6, 0), ("a", 0, 1), ("b", 4, 1), ("\u{e9}", 3, 1)]);
    assert_eq!(lags().await, late);
}

pub(crate) async fn s31_the_list_has_every_stream_published_to_or_consumed(cx: Cx) {
    for name in ["b", "a", "Z", "\u{e9}"] {
        filled(&cx, name, 2).await;
    }
    cx.store.stream("a").unwrap().trim_to(at(2)).await.unwrap();
    let consumed = cx.store.stream("consumed").unwrap();
    consumed.consumer("c").unwrap().save_offset(Offset::START).await.unwrap();
    let looked_at = cx.store.stream("looked at").unwrap();
    looked_at.info().await.unwrap();
    looked_at.read(Offset::START, 1).await.unwrap();
    looked_at.trim_to(at(5)).await.unwrap();
    assert_eq!(looked_at.consumer("c").unwrap().offset().await.unwrap(), Offset::START);
    drop(looked_at.subscribe(Offset::START).await.unwrap());

    let second = cx.second().await;
    let names = async || {
        let streams = second.streams().await.unwrap();
        streams.into_iter().map(|info| info.name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["Z", "a", "b", "consumed", "\u{e9}"]);
    for info in second.streams().await.unwrap() {
        let own = second.stream(&info.name).unwrap().info().await.unwrap();
        assert_eq!(info, own);
    }
    consumed.forget_consumer("c").await.unwrap();
    assert_eq!(names().await, ["Z", "a", "b", "\u{e9}"]);
}

//! Consumers: saving, going back, forgetting.

use alkstore_core::{Error, Offset, PublishOpts, StoreExt};
use futures_util::FutureExt;

use super::super::tools::refused;
use super::{assert_quiet, at, next, places};
use crate::cx::Cx;

/// Publishes so many events.
async fn filled(cx: &Cx, events: i64) -> alkstore_core::Stream {
    let stream = cx.store.stream("s").unwrap();
    for n in 1..=events {
        stream.publish(&n).await.unwrap();
    }
    stream
}

pub(crate) async fn s17_each_consumer_of_each_stream_has_its_own_place(cx: Cx) {
    let stream = filled(&cx, 3).await;
    let other = cx.store.stream("other").unwrap();
    other.publish(&1).await.unwrap();
    let (one, two) = (stream.consumer("one").unwrap(), stream.consumer("two").unwrap());
    assert_eq!(one.offset().await.unwrap(), Offset::START);
    one.save_offset(at(2)).await.unwrap();
    two.save_offset(at(3)).await.unwrap();
    let second = cx.second().await.stream("s").unwrap();
    assert_eq!(second.consumer("one").unwrap().offset().await.unwrap(), at(2));
    assert_eq!(second.consumer("two").unwrap().offset().await.unwrap(), at(3));
    assert_eq!(other.consumer("one").unwrap().offset().await.unwrap(), Offset::START);
}

pub(crate) async fn s18_saving_never_goes_backward(cx: Cx) {
    let consumer = filled(&cx, 5).await.consumer("c").unwrap();
    for (saved, outcome) in [(3, 3), (2, 3), (0, 3), (3, 3), (5, 5), (4, 5)] {
        consumer.save_offset(at(saved)).await.unwrap();
        assert_eq!(consumer.offset().await.unwrap(), at(outcome), "after saving {saved}");
    }
}

pub(crate) async fn s18_of_two_saved_at_once_the_larger_holds(cx: Cx) {
    let stream = filled(&cx, 200).await;
    let consumers = [
        stream.consumer("c").unwrap(),
        cx.second().await.stream("s").unwrap().consumer("c").unwrap(),
    ];
    for round in 0..100 {
        let offsets = if round % 2 == 0 { [1, 2] } else { [2, 1] };
        let savers = consumers.iter().zip(offsets).map(|(consumer, offset)| {
            let consumer = consumer.clone();
            async move { consumer.save_offset(at(2 * round + offset)).await.unwrap() }.boxed()
        });
        cx.together(savers).await;
        assert_eq!(consumers[0].offset().await.unwrap(), at(2 * round + 2), "round {round}");
    }
}

pub(crate) async fn s19_no_place_beyond_the_head_is_saved(cx: Cx) {
    let stream = filled(&cx, 2).await;
    let consumer = stream.consumer("c").unwrap();
    for beyond in [3, i64::MAX] {
        refused!(consumer.save_offset(at(beyond)).await, Error::InvalidArgument { .. });
        refused!(consumer.rewind(at(beyond)).await, Error::InvalidArgument { .. });
    }
    let unknown = cx.store.stream("unknown").unwrap().consumer("c").unwrap();
    refused!(unknown.save_offset(at(1)).await, Error::InvalidArgument { .. });
    refused!(unknown.rewind(at(1)).await, Error::InvalidArgument { .. });
    assert_eq!(stream.info().await.unwrap().consumers, []);
    assert_eq!(cx.store.streams().await.unwrap().len(), 1);
}

pub(crate) async fn s19_a_staged_event_is_no_place_to_save(cx: Cx) {
    let stream = filled(&cx, 1).await;
    let consumer = stream.consumer("c").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    stream.publish_tx(&mut tx, &2, PublishOpts::new()).await.unwrap();
    refused!(consumer.save_offset_tx(&mut tx, at(2)).await, Error::InvalidArgument { .. });
    consumer.save_offset_tx(&mut tx, at(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(consumer.offset().await.unwrap(), at(1));
    assert_eq!(stream.info().await.unwrap().last, at(2));
}

pub(crate) async fn s21_rewind_is_the_way_back(cx: Cx) {
    let stream = filled(&cx, 5).await;
    let consumer = stream.consumer("c").unwrap();
    for place in [5, 2, 0, 3, 1] {
        consumer.rewind(at(place)).await.unwrap();
        assert_eq!(consumer.offset().await.unwrap(), at(place));
    }
    consumer.save_offset(at(2)).await.unwrap();
    assert_eq!(consumer.offset().await.unwrap(), at(2), "saving goes on from there");
}

pub(crate) async fn s21_a_rewind_touches_no_open_subscription(cx: Cx) {
    let stream = filled(&cx, 2).await;
    let consumer = stream.consumer("c").unwrap();
    consumer.save_offset(at(2)).await.unwrap();
    let mut open = consumer.subscribe().await.unwrap();
    consumer.rewind(Offset::START).await.unwrap();
    assert_quiet(&cx, &mut open).await;
    let mut later = consumer.subscribe().await.unwrap();
    stream.publish(&3).await.unwrap();
    assert_eq!(next(&cx, &mut open).await.offset, at(3));
    for offset in 1..=3 {
        assert_eq!(next(&cx, &mut later).await.offset, at(offset));
    }
}

pub(crate) async fn s22_a_consumer_reads_what_lies_after_its_place(cx: Cx) {
    let stream = filled(&cx, 5).await;
    let consumer = stream.consumer("c").unwrap();
    assert_eq!(places(&consumer.read(2).await.unwrap()), [1, 2]);
    assert_eq!(places(&consumer.read(2).await.unwrap()), [1, 2], "reading saves nothing");
    consumer.save_offset(at(2)).await.unwrap();
    assert_eq!(places(&consumer.read(2).await.unwrap()), [3, 4]);
    assert_eq!(places(&consumer.read(usize::MAX).await.unwrap()), [3, 4, 5]);
    consumer.save_offset(at(5)).await.unwrap();
    assert_eq!(consumer.read(2).await.unwrap(), []);
}

pub(crate) async fn s23_nothing_is_saved_unless_it_is_said(cx: Cx) {
    let stream = filled(&cx, 3).await;
    let consumer = stream.consumer("c").unwrap();
    let mut subscription = consumer.subscribe().await.unwrap();
    for _ in 0..3 {
        next(&cx, &mut subscription).await;
    }
    assert_quiet(&cx, &mut subscription).await;
    drop((subscription, consumer));
    cx.settle().await;
    assert_eq!(stream.info().await.unwrap().consumers, []);
    let mut again = stream.consumer("c").unwrap().subscribe().await.unwrap();
    assert_eq!(next(&cx, &mut again).await.offset, at(1));
}

pub(crate) async fn s24_a_forgotten_consumer_starts_anew(cx: Cx) {
    let stream = filled(&cx, 3).await;
    let (one, two) = (stream.consumer("one").unwrap(), stream.consumer("two").unwrap());
    one.save_offset(at(3)).await.unwrap();
    two.save_offset(at(2)).await.unwrap();
    assert!(stream.forget_consumer("one").await.unwrap());
    assert!(!stream.forget_consumer("one").await.unwrap());
    assert!(!stream.forget_consumer("unknown").await.unwrap());
    assert_eq!(one.offset().await.unwrap(), Offset::START);
    assert_eq!(two.offset().await.unwrap(), at(2));
    assert_eq!(stream.info().await.unwrap().consumers.len(), 1);
    one.save_offset(at(1)).await.unwrap();
    assert_eq!(one.offset().await.unwrap(), at(1));
}

//! Events, offsets and messages that a transaction stages.

use std::sync::Arc;

use alkstore_core::{BoxFuture, Error, Offset, PublishOpts, Result, Store, StoreExt};

use super::{beside, impatient, log, offset};
use crate::cx::Cx;

pub(crate) async fn x25_a_staged_event_has_no_place_before_the_commit(cx: Cx) {
    let stream = cx.store.stream("log").unwrap();
    stream.publish(&"before").await.unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    stream.publish_tx(&mut tx, &"staged", PublishOpts::new()).await.unwrap();
    let events = stream.read_tx(&mut tx, Offset::START, 10).await.unwrap();
    assert_eq!(events.len(), 1, "read_tx shows the committed log: {events:?}");
    assert_eq!(events[0].payload.as_str(), r#""before""#);
    assert_eq!(stream.read_tx(&mut tx, events[0].offset, 10).await.unwrap(), []);
    assert_eq!(stream.read_tx(&mut tx, Offset::START, 0).await.unwrap(), []);
    let elsewhere = cx.second().await.stream("log").unwrap();
    assert_eq!(elsewhere.info().await.unwrap().last.get(), 1);
    tx.commit().await.unwrap();
    assert_eq!(log(&cx.store, "log").await, ["before", "staged"]);
}

pub(crate) async fn x26_events_take_their_places_at_commit(cx: Cx) {
    let (early, late) = (impatient(&cx).await, impatient(&cx).await);
    let mut first = early.begin_tx().await.unwrap();
    let staging = early.stream("log").unwrap();
    staging.publish_tx(&mut first, &"staged first", PublishOpts::new()).await.unwrap();
    let overtaking = late.stream("log").unwrap();
    if let Some(place) = beside(&cx, overtaking.publish(&"published meanwhile")).await {
        assert_eq!(place, offset(1), "a staged event takes no place");
        staging.publish_tx(&mut first, &"staged last", PublishOpts::new()).await.unwrap();
        first.commit().await.unwrap();
        let expected = ["published meanwhile", "staged first", "staged last"];
        assert_eq!(log(&cx.store, "log").await, expected);
    } else {
        first.commit().await.unwrap();
        overtaking.publish(&"published afterwards").await.unwrap();
        let expected = ["staged first", "published afterwards"];
        assert_eq!(log(&cx.store, "log").await, expected);
    }
}

pub(crate) async fn x26_a_rollback_leaves_no_gap_in_the_places(cx: Cx) {
    let stream = cx.store.stream("log").unwrap();
    for round in 0..3 {
        let mut tx = cx.store.begin_tx().await.unwrap();
        stream.publish_tx(&mut tx, &"lost", PublishOpts::new()).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(stream.publish(&"kept").await.unwrap().get(), round + 1);
    }
}

pub(crate) async fn x26_the_events_of_a_transaction_stay_in_order_and_together(cx: Cx) {
    let stores = [cx.second().await, cx.second().await];
    let writers = stores.into_iter().enumerate().map(|(writer, store)| {
        let write = async move {
            for round in 0..20 {
                let mut tx = store.begin_tx().await.unwrap();
                for event in 0..3 {
                    let payload = format!("{writer} {round} {event}");
                    let stream = store.stream("log").unwrap();
                    stream.publish_tx(&mut tx, &payload, PublishOpts::new()).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
        };
        Box::pin(write) as BoxFuture<'static, ()>
    });
    cx.together(writers).await;
    let log = log(&cx.store, "log").await;
    assert_eq!(log.len(), 120);
    for events in log.chunks(3) {
        let of = events[0].strip_suffix(" 0").expect("the first event of a transaction");
        assert_eq!(events[1], format!("{of} 1"));
        assert_eq!(events[2], format!("{of} 2"));
    }
}

/// Publishes to two streams in one transaction.
async fn publish_to_both(store: Arc<dyn Store>, streams: [&str; 2], payload: &str) -> Result<()> {
    let mut tx = store.begin_tx().await?;
    for stream in streams {
        let stream = store.stream(stream)?;
        stream.publish_tx(&mut tx, payload, PublishOpts::new()).await?;
    }
    tx.commit().await
}

pub(crate) async fn x27_publishing_in_opposite_orders_both_commit(cx: Cx) {
    let stores = [cx.second().await, cx.second().await];
    for round in 0..100 {
        let payload = round.to_string();
        let orders = [["a", "b"], ["b", "a"]];
        let both = stores.clone().into_iter().zip(orders).map(|(store, order)| {
            let payload = payload.clone();
            let publish = async move { publish_to_both(store, order, &payload).await };
            Box::pin(publish) as BoxFuture<'static, Result<()>>
        });
        for result in cx.together(both).await {
            result.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    for stream in ["a", "b"] {
        let log = log(&cx.store, stream).await;
        assert_eq!(log.len(), 200);
        for (round, pair) in log.chunks(2).enumerate() {
            assert_eq!(pair, [round.to_string(), round.to_string()], "stream {stream}");
        }
    }
}

pub(crate) async fn x27_interleaved_publishing_in_opposite_orders_both_commit(cx: Cx) {
    if cx.capabilities().one_writer {
        // There the second transaction waits for the first, whatever it publishes to.
        return publish_one_after_the_other(cx).await;
    }
    let second = cx.second().await;
    let (mut one, mut two) = (cx.store.begin_tx().await.unwrap(), second.begin_tx().await.unwrap());
    let streams = ["a", "b"].map(|name| cx.store.stream(name).unwrap());
    let others = ["a", "b"].map(|name| second.stream(name).unwrap());
    streams[0].publish_tx(&mut one, &"one", PublishOpts::new()).await.unwrap();
    others[1].publish_tx(&mut two, &"two", PublishOpts::new()).await.unwrap();
    let crossing = async {
        streams[1].publish_tx(&mut one, &"one", PublishOpts::new()).await?;
        others[0].publish_tx(&mut two, &"two", PublishOpts::new()).await?;
        two.commit().await?;
        one.commit().await
    };
    cx.within(crossing).await.unwrap();
    assert_eq!(log(&cx.store, "a").await, ["two", "one"]);
    assert_eq!(log(&cx.store, "b").await, ["two", "one"]);
}

async fn publish_one_after_the_other(cx: Cx) {
    let second = cx.second().await;
    let mut one = cx.store.begin_tx().await.unwrap();
    let (a, b) = (cx.store.stream("a").unwrap(), cx.store.stream("b").unwrap());
    a.publish_tx(&mut one, &"one", PublishOpts::new()).await.unwrap();
    let two = cx.spawn(publish_to_both(second, ["b", "a"], "two"));
    cx.settle().await;
    b.publish_tx(&mut one, &"one", PublishOpts::new()).await.unwrap();
    one.commit().await.unwrap();
    two.join().await.unwrap();
    assert_eq!(log(&cx.store, "a").await, ["one", "two"]);
    assert_eq!(log(&cx.store, "b").await, ["one", "two"]);
}

pub(crate) async fn x28_a_staged_offset_is_monotone_too(cx: Cx) {
    let stream = cx.store.stream("log").unwrap();
    for event in 0..5 {
        stream.publish(&event).await.unwrap();
    }
    let reader = stream.consumer("reader").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    reader.save_offset_tx(&mut tx, offset(4)).await.unwrap();
    reader.save_offset_tx(&mut tx, offset(2)).await.unwrap();
    assert_eq!(tx.get_offset_tx("log", "reader").await.unwrap(), offset(4));
    tx.commit().await.unwrap();
    assert_eq!(reader.offset().await.unwrap(), offset(4));

    let mut tx = cx.store.begin_tx().await.unwrap();
    reader.save_offset_tx(&mut tx, offset(3)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(reader.offset().await.unwrap(), offset(4), "never backward");

    let mut tx = cx.store.begin_tx().await.unwrap();
    let error = reader.save_offset_tx(&mut tx, offset(6)).await.expect_err("beyond the head");
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    reader.save_offset_tx(&mut tx, offset(5)).await.expect("it stays usable");
    tx.commit().await.unwrap();
    assert_eq!(reader.offset().await.unwrap(), offset(5));
}

pub(crate) async fn x28_a_staged_offset_overtaken_by_a_larger_one_changes_nothing(cx: Cx) {
    let stream = cx.store.stream("log").unwrap();
    for event in 0..5 {
        stream.publish(&event).await.unwrap();
    }
    let hasty = impatient(&cx).await;
    let faster = hasty.stream("log").unwrap().consumer("reader").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let reader = stream.consumer("reader").unwrap();
    reader.save_offset_tx(&mut tx, offset(2)).await.unwrap();
    // An engine may let it wait for the transaction.
    let saved = cx.advancing(super::STEP, faster.save_offset(offset(5))).await;
    tx.commit().await.unwrap();
    match saved {
        Ok(()) => {}
        Err(Error::Unavailable { .. }) => faster.save_offset(offset(5)).await.unwrap(),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(reader.offset().await.unwrap(), offset(5));
}

pub(crate) async fn x29_staged_messages_arrive_each_in_order_at_commit(cx: Cx) {
    let second = cx.second().await;
    let mut bell = second.listen("bell").await.unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    let sent = ["1", "1", "2", "1", "3"];
    for text in sent {
        tx.notify_tx("bell", text).await.unwrap();
    }
    tx.commit().await.unwrap();
    for text in sent {
        let message = cx.within(bell.recv()).await.unwrap().unwrap();
        assert_eq!(message.payload.decode::<String>().unwrap(), text);
    }
    let more = cx.briefly(&mut Box::pin(bell.recv())).await;
    assert!(more.is_none(), "{more:?}");
}

//! Publishing and saving in transactions.

use std::time::{Duration, SystemTime};

use alkstore_core::{Error, NewEvent, Offset, PublishOpts, StoreExt};
use futures_util::FutureExt;

use super::super::tools::{give_way, refused};
use super::{at, places, texts};
use crate::cx::Cx;
use crate::factory::OpenOptions;

const NO_OPTS: fn() -> PublishOpts = PublishOpts::new;

pub(crate) async fn s5_events_stand_in_the_order_of_their_commits(cx: Cx) {
    let early = cx.store.stream("s").unwrap();
    let opts =
        OpenOptions { lock_timeout: Some(Duration::from_millis(30)), ..OpenOptions::default() };
    let late = cx.open(opts).await.stream("s").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    early.publish_tx(&mut tx, &"staged first", NO_OPTS()).await.unwrap();

    let expected = match cx.advancing(Duration::from_millis(30), late.publish(&"direct")).await {
        Ok(offset) => {
            assert_eq!(offset, at(1), "nothing was committed before it");
            assert_eq!(texts(&late.read(Offset::START, 10).await.unwrap()), ["direct"]);
            tx.commit().await.unwrap();
            ["direct", "staged first"]
        }
        Err(error) => {
            assert!(cx.capabilities().one_writer && error.is_retryable(), "{error}");
            tx.commit().await.unwrap();
            assert_eq!(late.publish(&"direct").await.unwrap(), at(2));
            ["staged first", "direct"]
        }
    };
    let events = late.read(Offset::START, 10).await.unwrap();
    assert_eq!(
        (texts(&events), places(&events)),
        (expected.map(String::from).to_vec(), vec![1, 2])
    );
}

pub(crate) async fn s6_a_rollback_leaves_no_gap(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    stream.publish(&"a").await.unwrap();
    for drop_it in [false, true] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        stream.publish_tx(&mut tx, &"undone", NO_OPTS()).await.unwrap();
        if drop_it {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        stream.publish(&"kept").await.unwrap();
    }
    let events = stream.read(Offset::START, 10).await.unwrap();
    assert_eq!(
        (texts(&events), places(&events)),
        (["a", "kept", "kept"].map(String::from).to_vec(), vec![1, 2, 3],)
    );
}

pub(crate) async fn s9_transactions_in_opposite_orders_both_commit(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    for round in 0..100 {
        let publishers = [["x", "y"], ["y", "x"]].into_iter().zip(&stores).map(|(names, store)| {
            let store = store.clone();
            async move {
                let mut tx = store.begin_tx().await?;
                for name in names {
                    let stream = store.stream(name)?;
                    stream.publish_tx(&mut tx, &round, NO_OPTS()).await?;
                    give_way().await;
                }
                tx.commit().await
            }
            .boxed()
        });
        for result in cx.together(publishers).await {
            assert!(result.is_ok(), "round {round}: {result:?}");
        }
    }
    for name in ["x", "y"] {
        assert_eq!(cx.store.stream(name).unwrap().info().await.unwrap().last, at(200));
    }
}

pub(crate) async fn s9_transactions_that_hold_each_others_streams_both_commit(cx: Cx) {
    if cx.capabilities().one_writer {
        return s9_transactions_in_opposite_orders_both_commit(cx).await;
    }
    let (one, two) = (cx.store.clone(), cx.second().await);
    let (mut first, mut second) = (one.begin_tx().await.unwrap(), two.begin_tx().await.unwrap());
    one.stream("x").unwrap().publish_tx(&mut first, &1, NO_OPTS()).await.unwrap();
    two.stream("y").unwrap().publish_tx(&mut second, &2, NO_OPTS()).await.unwrap();
    one.stream("y").unwrap().publish_tx(&mut first, &1, NO_OPTS()).await.unwrap();
    two.stream("x").unwrap().publish_tx(&mut second, &2, NO_OPTS()).await.unwrap();
    let results = cx.together([first.commit().boxed(), second.commit().boxed()]).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for name in ["x", "y"] {
        let events = one.stream(name).unwrap().read(Offset::START, 10).await.unwrap();
        assert_eq!(places(&events), [1, 2]);
    }
}

pub(crate) async fn s10_staged_events_appear_at_commit_in_their_order(cx: Cx) {
    let (stream, other) = (cx.store.stream("s").unwrap(), cx.second().await.stream("s").unwrap());
    stream.publish(&"a").await.unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    stream.publish_tx(&mut tx, &"b", PublishOpts::new().key("k")).await.unwrap();
    let events = ["c", "d"].map(|text| NewEvent::new(text).unwrap()).to_vec();
    stream.publish_many_tx(&mut tx, events).await.unwrap();
    stream.publish_tx(&mut tx, &"e", NO_OPTS()).await.unwrap();
    let readers = if cx.capabilities().one_connection { &[&other][..] } else { &[&stream, &other] };
    for reader in readers {
        assert_eq!(texts(&reader.read(Offset::START, 10).await.unwrap()), ["a"]);
        assert_eq!(reader.info().await.unwrap().last, at(1));
    }
    tx.commit().await.unwrap();
    let events = other.read(Offset::START, 10).await.unwrap();
    assert_eq!(texts(&events), ["a", "b", "c", "d", "e"]);
    assert_eq!(places(&events), [1, 2, 3, 4, 5]);
    assert_eq!(events[1].key.as_ref().map(|key| key.as_str()), Some("k"));
}

pub(crate) async fn s10_a_transaction_reads_the_committed_log(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    for text in ["a", "b", "c"] {
        stream.publish(text).await.unwrap();
    }
    let mut tx = cx.store.begin_tx().await.unwrap();
    stream.publish_tx(&mut tx, &"staged", NO_OPTS()).await.unwrap();
    assert_eq!(texts(&stream.read_tx(&mut tx, at(1), 10).await.unwrap()), ["b", "c"]);
    assert_eq!(texts(&stream.read_tx(&mut tx, Offset::START, 2).await.unwrap()), ["a", "b"]);
    assert_eq!(stream.read_tx(&mut tx, at(3), 10).await.unwrap(), []);
    tx.commit().await.unwrap();
    assert_eq!(texts(&stream.read(at(3), 10).await.unwrap()), ["staged"]);
}

pub(crate) async fn s11_an_event_is_of_the_instant_it_was_staged_at(cx: Cx) {
    let stream = cx.store.stream("s").unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    cx.advance(Duration::from_secs(7)).await;
    let staged = SystemTime::from(cx.now().await);
    stream.publish_tx(&mut tx, &1, NO_OPTS()).await.unwrap();
    cx.advance(Duration::from_secs(60)).await;
    tx.commit().await.unwrap();
    assert_eq!(stream.read(Offset::START, 1).await.unwrap()[0].published_at, staged);
}

pub(crate) async fn s16_a_transaction_of_another_store_is_refused(cx: Cx) {
    let (stream, second) = (cx.store.stream("s").unwrap(), cx.second().await);
    stream.publish(&1).await.unwrap();
    let consumer = stream.consumer("c").unwrap();
    let mut tx = second.begin_tx().await.unwrap();
    refused!(stream.publish_tx(&mut tx, &2, NO_OPTS()).await, Error::InvalidArgument { .. });
    let events = vec![NewEvent::new(&2).unwrap()];
    refused!(stream.publish_many_tx(&mut tx, events).await, Error::InvalidArgument { .. });
    refused!(stream.read_tx(&mut tx, Offset::START, 1).await, Error::InvalidArgument { .. });
    refused!(consumer.save_offset_tx(&mut tx, at(1)).await, Error::InvalidArgument { .. });
    tx.commit().await.unwrap();
    assert_eq!(stream.info().await.unwrap().last, at(1));
    assert_eq!(consumer.offset().await.unwrap(), Offset::START);
}

pub(crate) async fn s20_an_offset_saved_in_a_transaction_shares_its_fate(cx: Cx) {
    let (stream, second) = (cx.store.stream("s").unwrap(), cx.second().await);
    for n in 1..=5 {
        stream.publish(&n).await.unwrap();
    }
    let consumer = stream.consumer("c").unwrap();
    let seen_elsewhere = second.stream("s").unwrap().consumer("c").unwrap();
    consumer.save_offset(at(1)).await.unwrap();
    for (commit, outcome) in [(false, 1), (true, 3)] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        assert_eq!(tx.get_offset_tx("s", "c").await.unwrap(), at(1));
        consumer.save_offset_tx(&mut tx, at(3)).await.unwrap();
        assert_eq!(tx.get_offset_tx("s", "c").await.unwrap(), at(3), "its own write");
        assert_eq!(seen_elsewhere.offset().await.unwrap(), at(1));
        consumer.save_offset_tx(&mut tx, at(2)).await.unwrap();
        assert_eq!(tx.get_offset_tx("s", "c").await.unwrap(), at(3), "it went backward");
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(seen_elsewhere.offset().await.unwrap(), at(outcome));
    }
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_eq!(tx.get_offset_tx("s", "unknown").await.unwrap(), Offset::START);
    assert_eq!(tx.get_offset_tx("unknown", "c").await.unwrap(), Offset::START);
}

pub(crate) async fn s20_an_effect_and_its_offset_commit_together(cx: Cx) {
    let (orders, bills) = (cx.store.stream("orders").unwrap(), cx.store.stream("bills").unwrap());
    for text in ["a", "b"] {
        orders.publish(text).await.unwrap();
    }
    let consumer = orders.consumer("billing").unwrap();
    for event in consumer.read(10).await.unwrap() {
        let mut tx = cx.store.begin_tx().await.unwrap();
        bills.publish_tx(&mut tx, event.payload, NO_OPTS()).await.unwrap();
        consumer.save_offset_tx(&mut tx, event.offset).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(consumer.read(10).await.unwrap(), []);
    assert_eq!(texts(&bills.read(Offset::START, 10).await.unwrap()), ["a", "b"]);
}

//! One delivery, from its claim to its settlement.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alkstore_core::{
    Delivery, Error, Headers, JobState, OutboxOpts, Payload, StopToken, Timestamp,
};
use futures_util::FutureExt;

use super::{Held, Outcome, assert_untouched, deliver, gone, outbox, put, record, secs};
use crate::cx::Cx;

const ROUNDS: usize = 100;

async fn fail(cx: &Cx, error: &'static str) -> bool {
    outbox(&cx.store).run_once("w", async |_| Err(error)).await.unwrap()
}

pub(crate) async fn o4_a_delivery_that_ends_well_is_acked(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let mut seen = Vec::new();
    let delivery = |delivery: Delivery| {
        seen.push((delivery.id(), delivery.decode::<String>().unwrap()));
        async { Ok::<_, String>(()) }
    };
    assert!(outbox(&cx.store).run_once("w", delivery).await.unwrap());
    assert_eq!(seen, [(id, "hello".to_owned())]);
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o4_one_call_makes_one_delivery(cx: Cx) {
    let (first, second) = (put(&cx.store, "a").await, put(&cx.store, "b").await);
    assert!(deliver(&cx.store).await.unwrap());
    assert!(gone(&cx.store, first).await);
    assert_untouched(&record(&cx.store, second).await);
}

pub(crate) async fn o4_a_payload_arrives_byte_for_byte(cx: Cx) {
    let text = "{ \"b\" : 1.50,\"a\":\"\\u0000\", \"b\":2 }";
    let mails = outbox(&cx.store);
    mails.enqueue(Payload::from_json_text(text).unwrap(), OutboxOpts::new()).await.unwrap();
    let held = Held::begin(&cx, &cx.store).await;
    assert_eq!(held.delivery.payload().as_str(), text);
    assert!(held.end(Ok(())).await.unwrap());
}

pub(crate) async fn o5_a_delivery_that_fails_is_tried_again(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    assert!(fail(&cx, "503").await, "one was processed");
    let (now, record) = (cx.now().await, record(&cx.store, id).await);
    assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
    assert_eq!(record.last_error.as_deref(), Some("503"));
    let wait = Timestamp::from(record.ready_at).since(now);
    assert!((Duration::from_millis(2_500)..=secs(5)).contains(&wait), "{wait:?}");
    assert!(!deliver(&cx.store).await.unwrap(), "not before");
    cx.advance(wait).await;
    assert!(deliver(&cx.store).await.unwrap());
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o5_the_backoff_doubles_and_the_last_failure_kills(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    for attempt in 1..=4_u32 {
        assert!(fail(&cx, "503").await, "attempt {attempt}");
        let (now, record) = (cx.now().await, record(&cx.store, id).await);
        assert_eq!((record.state, record.attempt), (JobState::Pending, attempt));
        let (wait, most) = (Timestamp::from(record.ready_at).since(now), secs(5 << (attempt - 1)));
        assert!((most / 2..=most).contains(&wait), "attempt {attempt}: {wait:?}");
        cx.advance(wait).await;
    }
    assert!(fail(&cx, "410").await);
    let record = record(&cx.store, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Dead, 5));
    assert_eq!(record.last_error.as_deref(), Some("410"));
    assert_eq!(record.died_at.map(Timestamp::from), Some(cx.now().await));
    cx.advance(secs(86_400)).await;
    assert!(!deliver(&cx.store).await.unwrap());
}

pub(crate) async fn o5_a_failure_may_be_of_any_type_that_is_displayed(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let mails = outbox(&cx.store);
    let refused = || std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer\0");
    assert!(mails.run_once("w", async |_| Err(refused())).await.unwrap());
    let record = record(&cx.store, id).await;
    assert_eq!(record.last_error.as_deref(), Some("no answer\u{fffd}"));
}

pub(crate) async fn o6_without_a_delivery_nothing_is_called(cx: Cx) {
    let calls = AtomicUsize::new(0);
    let attempt = || async {
        let delivery = async |_| {
            calls.fetch_add(1, Ordering::SeqCst);
            Ok::<_, String>(())
        };
        outbox(&cx.store).run_once("w", delivery).await.unwrap()
    };
    assert!(!attempt().await, "empty");
    let mails = outbox(&cx.store);
    mails.enqueue(&1, OutboxOpts::new().delay(secs(10))).await.unwrap();
    assert!(!attempt().await, "delayed");
    put(&cx.store, "held").await;
    let held = Held::begin(&cx, &cx.second().await).await;
    assert!(!attempt().await, "under way elsewhere");
    assert!(held.end(Ok(())).await.unwrap());
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

pub(crate) async fn o7_a_panicking_delivery_counts_as_failed(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let mails = outbox(&cx.store);
    let delivery = async |delivery: Delivery| -> Outcome {
        assert!(delivery.attempt() > 1, "the courier fell");
        Ok(())
    };
    assert!(mails.run_once("w", delivery).await.unwrap());
    let record = record(&cx.store, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
    let error = record.last_error.expect("it says why");
    assert!(error.contains("the courier fell"), "{error}");
    cx.advance(secs(5)).await;
    assert!(mails.run_once("w", delivery).await.unwrap());
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o7_a_closure_that_panics_counts_as_failed(cx: Cx) {
    let mails = outbox(&cx.store);
    let id = mails.enqueue(&1, OutboxOpts::new().max_attempts(1)).await.unwrap();
    let delivery = |delivery: Delivery| {
        if delivery.attempt() == 1 {
            std::panic::panic_any(7);
        }
        async { Ok::<_, String>(()) }
    };
    assert!(mails.run_once("w", delivery).await.unwrap());
    let record = record(&cx.store, id).await;
    assert_eq!(record.state, JobState::Dead, "it was the last attempt");
    assert!(record.last_error.is_some_and(|error| !error.is_empty()));
}

pub(crate) async fn o9_a_delivery_shows_what_was_claimed(cx: Cx) {
    let mails = outbox(&cx.store);
    let enqueued = cx.now().await;
    let headers = Headers::new([("k", "v")]).unwrap();
    let opts = OutboxOpts::new().max_attempts(7).headers(headers.clone());
    let id = mails.enqueue(&[1, 2], opts).await.unwrap();
    cx.advance(secs(3)).await;
    assert!(fail(&cx, "503").await);
    cx.advance(secs(5)).await;
    let held = Held::begin(&cx, &cx.store).await;
    let delivery = &held.delivery;
    assert_eq!((delivery.id(), delivery.payload().as_str()), (id, "[1,2]"));
    assert_eq!(delivery.decode::<Vec<u8>>().unwrap(), [1, 2]);
    let wrong = delivery.decode::<String>();
    assert!(matches!(wrong, Err(Error::Codec { .. })), "{wrong:?}");
    assert_eq!(delivery.headers(), &headers);
    assert_eq!((delivery.attempt(), delivery.max_attempts()), (2, 7));
    assert_eq!(Timestamp::from(delivery.enqueued_at()), enqueued);
    assert_eq!(Timestamp::from(delivery.deadline()), cx.now().await.plus(secs(60)));
    let remaining = delivery.remaining();
    assert!(!remaining.is_zero() && remaining <= secs(60), "{remaining:?}");
    assert!(held.end(Ok(())).await.unwrap());
}

pub(crate) async fn o9_a_delivery_is_owned_and_outlives_its_run(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    let kept = held.delivery.clone();
    let beside = cx.spawn(async move { kept.decode::<String>().map(|text| (text, kept)) });
    let (text, kept) = beside.join().await.unwrap();
    assert!(held.end(Ok(())).await.unwrap());
    assert_eq!((kept.id(), text.as_str()), (id, "hello"));
    let late = kept.heartbeat(secs(60)).await;
    assert!(matches!(late, Err(Error::ClaimLost { .. })), "settled it holds nothing: {late:?}");
}

pub(crate) async fn o27_of_two_couriers_one_gets_a_delivery(cx: Cx) {
    let other = cx.second().await;
    for round in 0..ROUNDS {
        let id = put(&cx.store, "hello").await;
        let tries = [&cx.store, &other].map(|store| {
            let store = store.clone();
            async move { deliver(&store).await.unwrap() }.boxed()
        });
        let delivered = cx.together(tries).await.into_iter().filter(|delivered| *delivered).count();
        assert_eq!(delivered, 1, "round {round}");
        assert!(gone(&other, id).await, "round {round}");
    }
}

pub(crate) async fn o28_a_worker_id_is_a_local_name_decided_first(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let mails = outbox(&cx.store);
    let long = "w".repeat(256);
    for worker in ["", " w", "w\n", long.as_str()] {
        let once = mails.run_once(worker, async |_| Ok::<_, String>(())).await;
        assert!(matches!(once, Err(Error::InvalidName { .. })), "{worker:?}: {once:?}");
        let stop = StopToken::new();
        stop.stop();
        let run = mails.run(worker, async |_| Ok::<_, String>(()), stop).await;
        assert!(matches!(run, Err(Error::InvalidName { .. })), "{worker:?}: {run:?}");
    }
    assert_untouched(&record(&cx.store, id).await);
    let reserved = mails.run_once("__alkstore_w", async |_| Ok::<_, String>(())).await;
    assert!(reserved.unwrap(), "the prefix is allowed here");
}

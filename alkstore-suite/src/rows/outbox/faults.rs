//! Settlements that meet a fault.

use std::time::Duration;

use alkstore_core::{Error, JobId, JobState, Result};
use futures_channel::oneshot;

use super::{
    Fault, Held, Script, commit_unknown, deliver, gone, is_claim_lost, outbox, put, record, secs,
    unavailable,
};
use crate::cx::Cx;

const STEP: Duration = Duration::from_millis(50);

pub(crate) async fn o12_an_ack_is_repeated_after_passing_faults(cx: Cx) {
    let faults = [
        Fault::Before(unavailable()),
        Fault::OfItem(unavailable()),
        Fault::Before(commit_unknown()),
        Fault::OfItem(commit_unknown()),
        Fault::Before(unavailable()),
    ];
    let (script, store) = Script::of_settlements(&cx.store, faults);
    let id = put(&store, "hello").await;
    assert!(cx.advancing(STEP, deliver(&store)).await.unwrap());
    assert_eq!(script.settlements(), 6);
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o12_a_retry_is_repeated_after_passing_faults(cx: Cx) {
    let faults = [Fault::Before(unavailable()), Fault::Before(commit_unknown())];
    let (script, store) = Script::of_settlements(&cx.store, faults);
    let id = put(&store, "hello").await;
    let mails = outbox(&store);
    let failing = mails.run_once("w", async |_| Err("503"));
    assert!(cx.advancing(STEP, failing).await.unwrap());
    assert_eq!(script.settlements(), 3);
    let record = record(&cx.store, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
    assert_eq!(record.last_error.as_deref(), Some("503"));
}

pub(crate) async fn o12_a_repeated_settlement_does_not_deliver_again(cx: Cx) {
    let faults = (0..4).map(|_| Fault::Before(unavailable()));
    let (_, store) = Script::of_settlements(&cx.store, faults);
    put(&store, "hello").await;
    let mut deliveries = 0;
    let mails = outbox(&store);
    let delivering = mails.run_once("w", |_| {
        deliveries += 1;
        async { Ok::<_, String>(()) }
    });
    assert!(cx.advancing(STEP, delivering).await.unwrap());
    assert_eq!(deliveries, 1);
}

pub(crate) async fn o12_between_two_tries_it_backs_off(cx: Cx) {
    let faults = (0..3).map(|_| Fault::Before(unavailable()));
    let (script, store) = Script::of_settlements(&cx.store, faults);
    put(&store, "hello").await;
    let delivering = cx.spawn(async move { deliver(&store).await });
    for tries in 1..=3 {
        cx.until(|| async { script.settlements() == tries }).await;
        cx.settle().await;
        assert_eq!(script.settlements(), tries, "not before some time has passed");
        cx.advance(secs(5)).await;
    }
    assert!(delivering.join().await.unwrap());
}

pub(crate) async fn o13_a_claim_lost_by_a_settlement_of_unknown_outcome_is_settled(cx: Cx) {
    for faults in [
        vec![Fault::After(commit_unknown())],
        vec![Fault::Before(unavailable()), Fault::After(commit_unknown())],
        vec![Fault::After(commit_unknown()), Fault::Before(unavailable())],
        vec![Fault::After(commit_unknown()), Fault::Before(commit_unknown())],
    ] {
        let tries = faults.len() + 1;
        let (script, store) = Script::of_settlements(&cx.store, faults);
        let id = put(&store, "hello").await;
        assert!(cx.advancing(STEP, deliver(&store)).await.unwrap());
        assert_eq!(script.settlements(), tries, "it was tried until it was known");
        assert!(gone(&cx.store, id).await);
    }
}

pub(crate) async fn o13_a_retry_of_unknown_outcome_takes_effect_once(cx: Cx) {
    let (_, store) = Script::of_settlements(&cx.store, [Fault::After(commit_unknown())]);
    let id = put(&store, "hello").await;
    let mails = outbox(&store);
    let failing = mails.run_once("w", async |_| Err("503"));
    assert!(cx.advancing(STEP, failing).await.unwrap());
    let record = record(&cx.store, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
}

pub(crate) async fn o13_a_claim_lost_otherwise_is_an_error(cx: Cx) {
    // Nothing was written by what was unavailable: it is somebody else who took the job away.
    let (script, store) = Script::of_settlements(&cx.store, [Fault::Before(unavailable())]);
    let id = put(&store, "hello").await;
    let delivering = cx.spawn(async move { deliver(&store).await });
    cx.until(|| async { script.settlements() == 1 }).await;
    assert!(outbox(&cx.store).cancel(id).await.unwrap());
    let settled = cx.advancing(STEP, delivering.join()).await;
    assert!(is_claim_lost(&settled, id), "{settled:?}");
}

pub(crate) async fn o14_a_claim_that_lapses_between_two_tries_is_lost(cx: Cx) {
    let (script, store) = Script::of_settlements(&cx.store, [Fault::Before(unavailable())]);
    let id = put(&store, "hello").await;
    let delivering = cx.spawn(async move { deliver(&store).await });
    cx.until(|| async { script.settlements() == 1 }).await;
    cx.advance(secs(60)).await;
    let settled = delivering.join().await;
    assert!(is_claim_lost(&settled, id), "{settled:?}");
    assert_eq!(record(&cx.store, id).await.state, JobState::Pending);
}

/// A delivery whose claim has lapsed, by its holder's clock and by the engine's, when it ends.
async fn lapsed(cx: &Cx, fault: fn() -> Error) -> (JobId, Result<bool>) {
    let faults = (0..9).map(|_| Fault::Before(fault()));
    let (script, store) = Script::of_settlements(&cx.store, faults);
    let id = put(&store, "hello").await;
    let held = Held::begin(cx, &store).await;
    held.delivery.heartbeat(Duration::from_millis(1)).await.unwrap();
    cx.until(|| async { held.delivery.remaining().is_zero() }).await;
    cx.advance(Duration::from_millis(1)).await;
    let settled = cx.advancing(STEP, held.end(Ok(()))).await;
    assert_eq!(script.settlements(), 1, "it was tried once");
    (id, settled)
}

pub(crate) async fn o14_a_settlement_is_not_repeated_once_the_claim_lapsed(cx: Cx) {
    for fault in [unavailable, commit_unknown] {
        let text = fault().to_string();
        let (id, settled) = lapsed(&cx, fault).await;
        assert!(is_claim_lost(&settled, id), "{text}: {settled:?}");
        assert_eq!(record(&cx.store, id).await.state, JobState::Pending, "{text}");
        assert!(outbox(&cx.store).cancel(id).await.unwrap());
    }
}

pub(crate) async fn o14_after_the_deadline_a_lost_claim_is_lost_whatever_went_before(cx: Cx) {
    let (let_go, gate) = oneshot::channel();
    let faults = [Fault::Before(commit_unknown()), Fault::Gate(gate)];
    let (script, store) = Script::of_settlements(&cx.store, faults);
    let id = put(&store, "hello").await;
    let held = Held::begin(&cx, &store).await;
    let extend = Duration::from_millis(200);
    held.delivery.heartbeat(extend).await.unwrap();
    let delivery = held.delivery.clone();
    let ending = cx.spawn(held.end(Ok(())));
    cx.until(|| async { script.settlements() == 1 }).await;
    cx.advance(Duration::from_millis(50)).await;
    cx.until(|| async { script.settlements() == 2 || ending.is_done() }).await;
    // The second settlement reaches the engine after the deadline.
    cx.until(|| async { delivery.remaining().is_zero() }).await;
    cx.advance(extend).await;
    let _ = let_go.send(());
    let settled = ending.join().await;
    assert!(is_claim_lost(&settled, id), "{settled:?}");
}

pub(crate) async fn o15_another_error_of_a_settlement_is_returned_at_once(cx: Cx) {
    let broken = || Error::engine("broken");
    for fault in [Fault::Before(broken()), Fault::OfItem(broken())] {
        let (script, store) = Script::of_settlements(&cx.store, [fault]);
        let id = put(&store, "hello").await;
        let settled = cx.within(deliver(&store)).await;
        assert!(matches!(settled, Err(Error::Engine { .. })), "{settled:?}");
        assert_eq!(script.settlements(), 1);
        assert_eq!(record(&cx.store, id).await.state, JobState::Claimed);
        assert!(outbox(&cx.store).cancel(id).await.unwrap());
    }
}

pub(crate) async fn o15_an_error_of_the_claim_is_returned_at_once(cx: Cx) {
    let errors = [unavailable(), commit_unknown(), Error::engine("broken")];
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let (script, store) = Script::of_claims(&cx.store, errors);
    put(&store, "hello").await;
    for text in texts {
        let result = cx.within(deliver(&store)).await;
        assert_eq!(result.expect_err("the claim failed").to_string(), text);
    }
    assert_eq!(script.claims(), 3);
    assert!(deliver(&store).await.unwrap());
}

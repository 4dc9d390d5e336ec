//! How long a delivery may take.

use std::time::Duration;

use alkstore_core::{Error, JobState, MAX_LEASE, Timestamp};

use super::{Held, gone, is_claim_lost, put, record, secs};
use crate::cx::Cx;

pub(crate) async fn o8_nothing_extends_a_claim_by_itself(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let deadline = cx.now().await.plus(secs(60));
    let slow = Held::begin(&cx, &cx.store).await;
    for _ in 0..59 {
        cx.advance(secs(1)).await;
        let record = record(&cx.store, id).await;
        assert_eq!(record.deadline.map(Timestamp::from), Some(deadline));
    }
    cx.settle().await;
    assert_eq!(Timestamp::from(slow.delivery.deadline()), deadline);
    assert_eq!(record(&cx.store, id).await.state, JobState::Claimed);
    cx.advance(secs(1)).await;
    let second = Held::begin(&cx, &cx.second().await).await;
    assert_eq!((second.delivery.id(), second.delivery.attempt()), (id, 2));
    assert!(second.end(Ok(())).await.unwrap());
}

pub(crate) async fn o8_a_delivery_may_take_all_of_its_claim(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    cx.advance(Duration::from_millis(59_999)).await;
    assert!(held.end(Ok(())).await.unwrap());
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o10_a_heartbeat_counts_for_the_settlement_too(cx: Cx) {
    for outcome in [Ok(()), Err("503".to_owned())] {
        let id = put(&cx.store, "hello").await;
        let held = Held::begin(&cx, &cx.store).await;
        cx.advance(secs(59)).await;
        let until = cx.now().await.plus(secs(300));
        let deadline = held.delivery.heartbeat(secs(300)).await.unwrap();
        assert_eq!(Timestamp::from(deadline), until);
        assert_eq!(record(&cx.store, id).await.deadline.map(Timestamp::from), Some(until));
        cx.advance(secs(299)).await;
        let failed = outcome.is_err();
        assert!(held.end(outcome).await.unwrap(), "failed: {failed}");
        if failed {
            assert_eq!(record(&cx.store, id).await.state, JobState::Pending);
        } else {
            assert!(gone(&cx.store, id).await);
        }
    }
}

pub(crate) async fn o10_a_heartbeat_may_shorten_the_claim(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    held.delivery.heartbeat(secs(1)).await.unwrap();
    cx.advance(secs(1)).await;
    let settled = held.end(Ok(())).await;
    assert!(is_claim_lost(&settled, id), "{settled:?}");
}

pub(crate) async fn o10_clones_share_what_a_heartbeat_gained(cx: Cx) {
    put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    let clone = held.delivery.clone();
    let deadline = clone.heartbeat(secs(600)).await.unwrap();
    assert_eq!(held.delivery.deadline(), deadline);
    let remaining = held.delivery.remaining();
    assert!(remaining > secs(300) && remaining <= secs(600), "{remaining:?}");
    assert!(held.end(Ok(())).await.unwrap());
}

pub(crate) async fn o10_a_heartbeat_is_a_lease(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    let before = record(&cx.store, id).await.deadline;
    for extend in [Duration::ZERO, Duration::from_micros(999), MAX_LEASE + secs(1)] {
        let result = held.delivery.heartbeat(extend).await;
        assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{extend:?}: {result:?}");
    }
    assert_eq!(record(&cx.store, id).await.deadline, before, "nothing was written");
    assert!(held.end(Ok(())).await.unwrap());
}

pub(crate) async fn o10_a_late_heartbeat_does_not_revive_a_claim(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    cx.advance(secs(60)).await;
    let late = held.delivery.heartbeat(secs(60)).await;
    assert!(is_claim_lost(&late, id), "{late:?}");
    assert_eq!(record(&cx.store, id).await.state, JobState::Pending);
    let settled = held.end(Ok(())).await;
    assert!(is_claim_lost(&settled, id), "{settled:?}");
}

pub(crate) async fn o11_a_lapsed_claim_settles_nothing(cx: Cx) {
    for outcome in [Ok(()), Err("503".to_owned())] {
        let id = put(&cx.store, "hello").await;
        let slow = Held::begin(&cx, &cx.store).await;
        cx.advance(secs(60)).await;
        let settled = slow.end(outcome).await;
        assert!(is_claim_lost(&settled, id), "{settled:?}");
        let record = record(&cx.store, id).await;
        assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
        assert_eq!(record.last_error, None, "it stayed as it was");
        assert!(super::outbox(&cx.store).cancel(id).await.unwrap());
    }
}

pub(crate) async fn o11_a_late_settlement_leaves_the_newer_claim_alone(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let slow = Held::begin(&cx, &cx.store).await;
    cx.advance(secs(60)).await;
    let newer = Held::begin(&cx, &cx.second().await).await;
    let settled = slow.end(Ok(())).await;
    assert!(is_claim_lost(&settled, id), "{settled:?}");
    let record = record(&cx.store, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Claimed, 2));
    assert!(newer.end(Ok(())).await.unwrap());
    assert!(gone(&cx.store, id).await);
}

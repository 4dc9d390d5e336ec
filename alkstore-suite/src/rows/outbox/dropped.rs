//! A `run_once` that is dropped.

use std::sync::atomic::{AtomicBool, Ordering};

use alkstore_core::{JobState, Timestamp};

use super::{Held, assert_untouched, deliver, gone, outbox, put, record, secs};
use crate::cx::{Cx, drop_at_every_await};

pub(crate) async fn o16_dropped_before_the_delivery_began_the_claim_is_given_back(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let mails = outbox(&cx.store);
    let began = AtomicBool::new(false);
    let run_once = || {
        mails.run_once("w", async |_| {
            began.store(true, Ordering::SeqCst);
            Ok::<_, String>(())
        })
    };
    let given_back = || async {
        if began.load(Ordering::SeqCst) {
            return;
        }
        // A drop can't wait; no time passes all the same.
        cx.until(|| async { record(&cx.store, id).await.state == JobState::Pending }).await;
        assert_untouched(&record(&cx.store, id).await);
    };
    drop_at_every_await(run_once, given_back).await.unwrap();
    assert!(began.load(Ordering::SeqCst));
}

pub(crate) async fn o17_dropped_in_the_delivery_the_claim_lapses_at_its_deadline(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    let deadline = cx.now().await.plus(secs(60));
    held.task.cancel().await;
    cx.settle().await;
    let dropped = record(&cx.store, id).await;
    assert_eq!((dropped.state, dropped.attempt), (JobState::Claimed, 1));
    assert_eq!(dropped.deadline.map(Timestamp::from), Some(deadline));
    cx.advance(secs(59)).await;
    assert!(!deliver(&cx.store).await.unwrap());
    cx.advance(secs(1)).await;
    let again = Held::begin(&cx, &cx.store).await;
    assert_eq!(again.delivery.attempt(), 2, "its attempt is charged");
    assert!(again.end(Ok(())).await.unwrap());
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o17_a_delivery_that_outlives_its_run_still_extends_the_claim(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let held = Held::begin(&cx, &cx.store).await;
    let kept = held.delivery.clone();
    held.task.cancel().await;
    kept.heartbeat(secs(90)).await.unwrap();
    cx.advance(secs(89)).await;
    assert_eq!(record(&cx.store, id).await.state, JobState::Claimed);
    cx.advance(secs(1)).await;
    assert_eq!(record(&cx.store, id).await.state, JobState::Pending);
}

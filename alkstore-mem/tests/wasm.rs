//! The memory engine on `wasm32-unknown-unknown`: every row of the suite, and each path that waits
//! on the default clock, which the suite's own clock stands in for elsewhere.
//!
//! `scripts/test` runs it in Node, by wasm-bindgen-test-runner.
#![cfg(target_family = "wasm")]
#![allow(clippy::unwrap_used, clippy::future_not_send, reason = "a test, on a single thread")]

mod support;

use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, StopToken, StoreExt, Topic, Wait, WakeStore};
use alkstore_mem::MemStore;
use alkstore_suite::{ROWS, StoreFactory};
use futures_util::future::{Either, join, select};
use support::MemFactory;
use wasm_bindgen_test::{console_log, wasm_bindgen_test};

mod column {
    alkstore_suite::conformance! { #[wasm_bindgen_test::wasm_bindgen_test] super::MemFactory }
}

const SHORT: Duration = Duration::from_millis(20);

#[wasm_bindgen_test]
fn only_rows_that_need_what_is_lacking_are_skipped() {
    assert!(!MemFactory.capabilities().unwinds, "a panic can't be caught here");
    let skipped = alkstore_suite::skips(&MemFactory);
    console_log!("{} rows, {} skipped: {skipped:?}", ROWS.len(), skipped.len());
    for row in ROWS {
        let needs_what_is_lacking = !row.needs.is_empty();
        assert_eq!(skipped.contains(&row.name), needs_what_is_lacking, "{}", row.name);
    }
    let unwinding = ROWS.iter().filter(|row| row.needs.contains(&"unwinds")).count();
    assert!(unwinding * 10 <= ROWS.len(), "{unwinding} of {} rows need to unwind", ROWS.len());
}

#[wasm_bindgen_test]
async fn a_delayed_job_is_waited_for() {
    let queue = MemStore::new().queue("q").unwrap();
    let id = queue.enqueue_with(&1, EnqueueOpts::new().delay(SHORT)).await.unwrap();
    assert!(queue.claim("w").await.unwrap().is_none());
    let job = queue.next("w").await.unwrap();
    assert_eq!(job.id(), id);
    let due = queue.get_job(id).await.unwrap().unwrap().ready_at;
    assert!(due.duration_since(job.enqueued_at()).unwrap() >= SHORT);
    assert!(
        job.remaining() > Duration::from_secs(299) && job.remaining() <= job.visibility_timeout()
    );
}

/// A timer that forgets what it was told while a longer wait is open shows here.
#[wasm_bindgen_test]
async fn many_waits_end_while_a_longer_one_is_open() {
    let store = MemStore::new();
    let (waiting, queue) = (store.queue("never").unwrap(), store.queue("q").unwrap());
    waiting.enqueue_with(&1, EnqueueOpts::new().delay(Duration::from_secs(3_600))).await.unwrap();
    let mut longer = std::pin::pin!(waiting.next("w"));
    for n in 0..100 {
        queue.enqueue_with(&n, EnqueueOpts::new().delay(Duration::from_millis(2))).await.unwrap();
        let shorter = std::pin::pin!(queue.next("w"));
        match select(longer.as_mut(), shorter).await {
            Either::Left(_) => unreachable!("it is an hour away"),
            Either::Right((job, _)) => job.unwrap().ack().await.unwrap(),
        }
    }
}

#[wasm_bindgen_test]
async fn a_lapsed_lock_is_waited_for() {
    let store = MemStore::new();
    let first = store.try_lock("l", "a", SHORT).await.unwrap().unwrap();
    let second = store.lock("l", "b", SHORT).await.unwrap();
    assert!(second.token() > first.token());
    assert!(matches!(first.release().await, Err(Error::LockLost { .. })));
}

#[wasm_bindgen_test]
async fn a_call_waits_for_a_transaction_and_gives_up() {
    let store = MemStore::builder().lock_timeout(SHORT).build();
    let queue = store.queue("q").unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    let keyed = || EnqueueOpts::new().unique_key("k");
    queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
    let error = queue.enqueue_with(&2, keyed()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    tx.rollback().await.unwrap();
    queue.enqueue_with(&2, keyed()).await.unwrap();
}

#[wasm_bindgen_test]
async fn the_safety_poll_and_a_sleep_end() {
    let store = MemStore::builder().safety_poll(Some(SHORT)).build();
    let mut watch = store.watch(Topic::Schedules).await.unwrap();
    watch.changed(Wait::default()).await.unwrap();
    store.sleep(SHORT).await.unwrap();
}

#[wasm_bindgen_test]
async fn a_scheduler_runs_until_it_is_stopped() {
    let store = MemStore::new();
    store.schedule("s", "@every 1s", "q", &1, Default::default()).await.unwrap();
    let stop = StopToken::new();
    let stopping = async {
        store.queue("q").unwrap().next("w").await.unwrap().ack().await.unwrap();
        stop.stop();
    };
    let (ran, ()) = join(store.run_schedules(stop.clone()), stopping).await;
    ran.unwrap();
    assert!(store.locks().await.unwrap().is_empty());
}

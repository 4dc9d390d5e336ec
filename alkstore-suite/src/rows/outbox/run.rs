//! The loop that delivers.

use std::time::Duration;

use alkstore_core::{
    Claimed, Error, JobState, LocalName, OutboxOpts, QueueName, Result, StopToken, Store, StoreExt,
    Timestamp, async_trait,
};

use super::{
    Courier, Fault, NAME, Script, commit_unknown, gone, outbox, put, record, secs, unavailable,
};
use crate::cx::Cx;
use crate::fault::{Layer, layered};

const STEP: Duration = Duration::from_millis(50);

pub(crate) async fn o18_a_run_delivers_one_after_the_other(cx: Cx) {
    for payload in ["a", "b", "c"] {
        put(&cx.store, payload).await;
    }
    let mut courier = Courier::start(&cx, &cx.store);
    for payload in ["a", "b", "c"] {
        let (delivery, end) = courier.next(&cx).await;
        assert_eq!(delivery.decode::<String>().unwrap(), payload);
        assert!(courier.rests(&cx).await, "one at a time");
        end.send(Ok(())).unwrap();
    }
    let mails = outbox(&cx.store);
    cx.until(|| async { mails.stats().await.unwrap().claimed == 0 }).await;
    assert_eq!(mails.stats().await.unwrap().ready, 0);
    courier.stop().await.unwrap();
}

pub(crate) async fn o18_a_run_goes_on_after_a_failed_delivery(cx: Cx) {
    let failed = put(&cx.store, "a").await;
    put(&cx.store, "b").await;
    let mut courier = Courier::start(&cx, &cx.store);
    let (_, end) = courier.next(&cx).await;
    end.send(Err("503".to_owned())).unwrap();
    assert_eq!(courier.deliver(&cx).await, "b");
    let again: Timestamp = record(&cx.store, failed).await.ready_at.into();
    cx.advance(again.since(cx.now().await)).await;
    let (delivery, end) = courier.next(&cx).await;
    assert_eq!((delivery.id(), delivery.attempt()), (failed, 2));
    end.send(Ok(())).unwrap();
    courier.stop().await.unwrap();
    assert!(gone(&cx.store, failed).await);
}

pub(crate) async fn o19_a_waiting_run_is_woken_by_work(cx: Cx) {
    let mut courier = Courier::start(&cx, &cx.second().await);
    for round in 0..10 {
        assert!(courier.rests(&cx).await);
        // No time passes.
        let payload = round.to_string();
        put(&cx.store, &payload).await;
        assert_eq!(courier.deliver(&cx).await, payload);
    }
    courier.stop().await.unwrap();
}

pub(crate) async fn o19_a_waiting_run_sees_what_falls_due(cx: Cx) {
    let mut courier = Courier::start(&cx, &cx.second().await);
    let mails = outbox(&cx.store);
    mails.enqueue(&"late", OutboxOpts::new().delay(secs(30))).await.unwrap();
    cx.advance(Duration::from_millis(29_999)).await;
    assert!(courier.rests(&cx).await);
    cx.advance(Duration::from_millis(1)).await;
    assert_eq!(courier.deliver(&cx).await, "late");
    courier.stop().await.unwrap();
}

pub(crate) async fn o19_a_waiting_run_is_woken_by_a_resume(cx: Cx) {
    let mails = outbox(&cx.store);
    mails.pause().await.unwrap();
    put(&cx.store, "hello").await;
    let mut courier = Courier::start(&cx, &cx.second().await);
    assert!(courier.rests(&cx).await);
    mails.resume().await.unwrap();
    assert_eq!(courier.deliver(&cx).await, "hello");
    courier.stop().await.unwrap();
}

pub(crate) async fn o20_a_stopped_run_that_waits_ends_at_once(cx: Cx) {
    let courier = Courier::start(&cx, &cx.store);
    cx.settle().await;
    assert!(!courier.task.is_done());
    courier.stop().await.unwrap();
}

pub(crate) async fn o20_a_stop_lets_the_delivery_and_its_settlement_finish(cx: Cx) {
    for outcome in [Ok(()), Err("503".to_owned())] {
        let id = put(&cx.store, "a").await;
        let mut courier = Courier::start(&cx, &cx.store);
        let (_, end) = courier.next(&cx).await;
        let next = put(&cx.store, "b").await;
        courier.stop.stop();
        cx.settle().await;
        assert!(!courier.task.is_done(), "the delivery is under way");
        let failed = outcome.is_err();
        end.send(outcome).unwrap();
        courier.task.join().await.unwrap();
        if failed {
            let record = record(&cx.store, id).await;
            assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
        } else {
            assert!(gone(&cx.store, id).await);
        }
        super::assert_untouched(&record(&cx.store, next).await);
        assert!(outbox(&cx.store).cancel(next).await.unwrap());
    }
}

pub(crate) async fn o20_a_stop_lets_a_settlement_be_repeated(cx: Cx) {
    let faults = [Fault::Before(unavailable()), Fault::After(commit_unknown())];
    let (script, store) = Script::of_settlements(&cx.store, faults);
    let id = put(&store, "a").await;
    let mut courier = Courier::start(&cx, &store);
    let (_, end) = courier.next(&cx).await;
    end.send(Ok(())).unwrap();
    cx.until(|| async { script.settlements() == 1 }).await;
    courier.stop.stop();
    cx.advancing(STEP, courier.task.join()).await.unwrap();
    assert_eq!(script.settlements(), 3);
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o20_a_run_stopped_before_it_starts_delivers_nothing(cx: Cx) {
    let id = put(&cx.store, "a").await;
    let stop = StopToken::new();
    stop.stop();
    let running = outbox(&cx.store);
    cx.within(running.run("w", async |_| Ok::<_, String>(()), stop)).await.unwrap();
    super::assert_untouched(&record(&cx.store, id).await);
}

pub(crate) async fn o20_what_was_claimed_when_the_stop_came_is_given_back(cx: Cx) {
    for abort in [false, true] {
        let id = put(&cx.store, "a").await;
        let stop = StopToken::new();
        let store = layered(cx.store.clone(), StopInClaim { stop: stop.clone(), abort });
        let deliver = async |_| Ok::<_, String>(());
        cx.within(outbox(&store).run("w", deliver, stop)).await.unwrap();
        cx.until(|| async { record(&cx.store, id).await.state == JobState::Pending }).await;
        super::assert_untouched(&record(&cx.store, id).await);
        assert!(outbox(&cx.store).cancel(id).await.unwrap());
    }
}

/// Stops a run while the engine hands it a job.
struct StopInClaim {
    stop: StopToken,
    abort: bool,
}

#[async_trait]
impl Layer for StopInClaim {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let claimed = inner.claim_jobs(queue, worker, max).await;
        if self.abort {
            self.stop.abort()
        } else {
            self.stop.stop()
        }
        claimed
    }
}

pub(crate) async fn o21_an_abort_drops_the_delivery(cx: Cx) {
    let id = put(&cx.store, "a").await;
    let mut courier = Courier::start(&cx, &cx.store);
    let (_, end) = courier.next(&cx).await;
    let deadline = cx.now().await.plus(secs(60));
    courier.stop.stop();
    cx.settle().await;
    courier.stop.abort();
    courier.task.join().await.unwrap();
    assert!(end.send(Ok(())).is_err(), "the delivery was dropped");
    let record = record(&cx.store, id).await;
    assert_eq!((record.state, record.attempt), (JobState::Claimed, 1));
    assert_eq!(record.deadline.map(Timestamp::from), Some(deadline));
}

pub(crate) async fn o21_an_abort_ends_a_run_that_waits(cx: Cx) {
    let courier = Courier::start(&cx, &cx.store);
    cx.settle().await;
    courier.stop.abort();
    courier.task.join().await.unwrap();
}

pub(crate) async fn o22_a_lost_claim_does_not_end_a_run(cx: Cx) {
    let id = put(&cx.store, "slow").await;
    let mut courier = Courier::start(&cx, &cx.store);
    let (_, end) = courier.next(&cx).await;
    cx.advance(secs(60)).await;
    end.send(Ok(())).unwrap();
    let (delivery, end) = cx.advancing(STEP, courier.next(&cx)).await;
    assert_eq!((delivery.id(), delivery.attempt()), (id, 2));
    end.send(Ok(())).unwrap();
    courier.stop().await.unwrap();
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o22_passing_faults_of_the_claim_do_not_end_a_run(cx: Cx) {
    let faults = [unavailable(), commit_unknown(), unavailable(), commit_unknown()];
    let (_, store) = Script::of_claims(&cx.store, faults);
    let id = put(&store, "a").await;
    let mut courier = Courier::start(&cx, &store);
    let (delivery, end) = cx.advancing(STEP, courier.next(&cx)).await;
    assert_eq!((delivery.id(), delivery.attempt()), (id, 1));
    end.send(Ok(())).unwrap();
    courier.stop().await.unwrap();
    assert!(gone(&cx.store, id).await);
}

pub(crate) async fn o22_after_a_fault_a_run_backs_off_from_50_ms_to_5_s(cx: Cx) {
    let (script, store) = Script::of_claims(&cx.store, (0..12).map(|_| unavailable()));
    put(&store, "a").await;
    let mut courier = Courier::start(&cx, &store);
    for tries in 1..=12 {
        cx.until(|| async { script.claims() == tries }).await;
        // Its pause begins a little after its claim has failed.
        cx.settle().await;
        cx.advance(Duration::from_millis(49)).await;
        cx.settle().await;
        assert_eq!(script.claims(), tries, "it waits at least 50 ms");
        cx.advance(secs(5)).await;
    }
    assert_eq!(courier.deliver(&cx).await, "a");
    courier.stop().await.unwrap();
}

pub(crate) async fn o22_a_run_is_stopped_while_it_backs_off(cx: Cx) {
    let (script, store) = Script::of_claims(&cx.store, (0..4).map(|_| unavailable()));
    let courier = Courier::start(&cx, &store);
    cx.until(|| async { script.claims() == 1 }).await;
    courier.stop().await.unwrap();
}

pub(crate) async fn o23_other_errors_end_a_run(cx: Cx) {
    let (_, store) = Script::of_claims(&cx.store, [Error::engine("broken")]);
    put(&store, "a").await;
    let result = Courier::start(&cx, &store).task.join().await;
    assert!(matches!(result, Err(Error::Engine { .. })), "of the claim: {result:?}");
    let faults = [Fault::Before(Error::engine("broken"))];
    let (_, store) = Script::of_settlements(&cx.store, faults);
    let mut courier = Courier::start(&cx, &store);
    courier.deliver(&cx).await;
    let result = courier.task.join().await;
    assert!(matches!(result, Err(Error::Engine { .. })), "of the settlement: {result:?}");
}

pub(crate) async fn o23_closing_the_store_ends_a_run(cx: Cx) {
    let (waiting, delivering) = (cx.second().await, cx.second().await);
    let waiter = Courier::start(&cx, &waiting);
    cx.settle().await;
    waiting.close().await.unwrap();
    let result = waiter.task.join().await;
    assert!(matches!(result, Err(Error::Closed)), "while it waits: {result:?}");
    put(&cx.store, "a").await;
    let mut courier = Courier::start(&cx, &delivering);
    let (_, end) = courier.next(&cx).await;
    delivering.close().await.unwrap();
    end.send(Ok(())).unwrap();
    let result = courier.task.join().await;
    assert!(matches!(result, Err(Error::Closed)), "while it delivers: {result:?}");
    let mails = delivering.outbox(NAME).unwrap();
    let result = mails.run_once("w", async |_| Ok::<_, String>(())).await;
    assert!(matches!(result, Err(Error::Closed)), "afterwards: {result:?}");
}

//! A closed store, its clones, and those beside it.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    DeadSelection, EnqueueOpts, Error, Job, JobFilter, JobId, NewEvent, NewJob, Offset, OutboxOpts,
    PublishOpts, QueueOpts, Result, ScheduleOpts, StopToken, Store, StoreExt,
};

use super::super::tx::{claimed, jobs, log, offset, state};
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

fn is_closed<T>(call: &str, result: Result<T>) {
    match result {
        Err(Error::Closed) => {}
        Err(error) => panic!("{call} on a closed store: {error:?}"),
        Ok(_) => panic!("{call} on a closed store answers"),
    }
}

/// Every call of the store itself.
async fn store_is_closed(store: &Arc<dyn Store>) {
    is_closed("notify", store.notify("bell", &1).await);
    is_closed("listen", store.listen("bell").await);
    is_closed("try_lock", store.try_lock("other", "me", MINUTE).await);
    is_closed("lock", store.lock("other", "me", MINUTE).await);
    let schedule = store.schedule("s", "@every 1h", "q", &1, ScheduleOpts::new());
    is_closed("schedule", schedule.await);
    is_closed("unschedule", store.unschedule("s").await);
    is_closed("schedules", store.schedules().await);
    is_closed("pause_schedule", store.pause_schedule("s").await);
    is_closed("resume_schedule", store.resume_schedule("s").await);
    is_closed("run_schedules", store.run_schedules(StopToken::new()).await);
    is_closed("run_schedules_standby", store.run_schedules_standby(StopToken::new()).await);
    is_closed("begin_tx", store.begin_tx().await);
    let inside = store.with_tx(|_| Box::pin(async { Ok::<_, Error>(()) }));
    is_closed("with_tx", inside.await);
    is_closed("queues", store.queues().await);
    is_closed("streams", store.streams().await);
    is_closed("locks", store.locks().await);
    is_closed("maintain", store.maintain().await);
}

pub(crate) async fn c48_a_closed_store_refuses_every_call(cx: Cx) {
    let store = cx.second().await;
    store_is_open(&store).await;
    store.close().await.unwrap();
    store_is_closed(&store).await;
}

/// A few calls of each kind work.
async fn store_is_open(store: &Arc<dyn Store>) {
    store.queue("open").unwrap().enqueue(&1).await.unwrap();
    store.stream("open").unwrap().publish(&1).await.unwrap();
    store.notify("open", &1).await.unwrap();
    store.begin_tx().await.unwrap().commit().await.unwrap();
    store.queues().await.unwrap();
}

pub(crate) async fn c48_handles_of_a_closed_store_refuse_every_call(cx: Cx) {
    let store = cx.second().await;
    let (queue, stream) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let (consumer, outbox) = (stream.consumer("c").unwrap(), store.outbox("mails").unwrap());
    stream.publish(&1).await.unwrap();
    let mut job = claimed(&store, "q").await;
    let mut lock = store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    let id = JobId::try_from(1).unwrap();
    store.close().await.unwrap();

    is_closed("enqueue", queue.enqueue(&1).await);
    is_closed("enqueue_with", queue.enqueue_with(&1, EnqueueOpts::new()).await);
    is_closed("enqueue_many", queue.enqueue_many(vec![NewJob::new(&1).unwrap()]).await);
    is_closed("claim", queue.claim("w").await);
    is_closed("claim_batch", queue.claim_batch("w", 10).await);
    is_closed("next", queue.next("w").await);
    is_closed("ack_batch", queue.ack_batch(std::slice::from_mut(&mut job)).await);
    is_closed("cancel", queue.cancel(id).await);
    is_closed("get_job", queue.get_job(id).await);
    is_closed("jobs", queue.jobs(JobFilter::new()).await);
    is_closed("stats", queue.stats().await);
    is_closed("requeue_dead", queue.requeue_dead(DeadSelection::All).await);
    is_closed("purge_dead", queue.purge_dead(DeadSelection::All).await);
    is_closed("pause", queue.pause().await);
    is_closed("resume", queue.resume().await);
    is_closed("ack", job.ack().await);
    is_closed("retry", job.retry("busy", None).await);
    is_closed("fail", job.fail("broken").await);
    is_closed("release of a job", job.release(MINUTE).await);
    is_closed("heartbeat", job.heartbeat(MINUTE).await);

    is_closed("publish", stream.publish(&1).await);
    is_closed("publish_with", stream.publish_with(&1, PublishOpts::new()).await);
    is_closed("publish_many", stream.publish_many(vec![NewEvent::new(&1).unwrap()]).await);
    is_closed("read", stream.read(Offset::START, 1).await);
    is_closed("trim_to", stream.trim_to(offset(1)).await);
    is_closed("info", stream.info().await);
    is_closed("forget_consumer", stream.forget_consumer("c").await);
    is_closed("subscribe", stream.subscribe(Offset::START).await);
    is_closed("offset", consumer.offset().await);
    is_closed("read of a consumer", consumer.read(1).await);
    is_closed("save_offset", consumer.save_offset(offset(1)).await);
    is_closed("rewind", consumer.rewind(Offset::START).await);
    is_closed("subscribe of a consumer", consumer.subscribe().await);

    is_closed("enqueue of an outbox", outbox.enqueue(&1, OutboxOpts::new()).await);
    is_closed("run_once", outbox.run_once("w", async |_| Ok::<_, String>(())).await);
    is_closed("run", outbox.run("w", async |_| Ok::<_, String>(()), StopToken::new()).await);
    is_closed("get_job of an outbox", outbox.get_job(id).await);
    is_closed("jobs of an outbox", outbox.jobs(JobFilter::new()).await);
    is_closed("stats of an outbox", outbox.stats().await);
    is_closed("cancel of an outbox", outbox.cancel(id).await);
    is_closed("requeue_dead of an outbox", outbox.requeue_dead(DeadSelection::All).await);
    is_closed("purge_dead of an outbox", outbox.purge_dead(DeadSelection::All).await);
    is_closed("pause of an outbox", outbox.pause().await);
    is_closed("resume of an outbox", outbox.resume().await);

    is_closed("renew", lock.renew(MINUTE).await);
    is_closed("release of a lock", lock.release().await);
    assert_eq!(jobs(&cx.store, "q").await, 1, "nothing was written");
    assert_eq!(state(&cx.store, "q", job.id()).await, Some(alkstore_core::JobState::Claimed));
    assert_eq!(cx.store.stream("log").unwrap().info().await.unwrap().count, 1);
    assert!(!cx.store.queue("q").unwrap().stats().await.unwrap().paused);
}

pub(crate) async fn c51_clones_close_together(cx: Cx) {
    let store = cx.second().await;
    let clones = [store.clone(), store.shared(), store.shared().shared()];
    let made_by_a_clone = clones[2].queue("q").unwrap();
    clones[1].close().await.unwrap();
    store_is_closed(&store).await;
    for clone in &clones {
        store_is_closed(clone).await;
    }
    is_closed("enqueue", made_by_a_clone.enqueue(&1).await);
    is_closed("enqueue", store.queue("q").unwrap().enqueue(&1).await);
}

pub(crate) async fn c52_another_open_on_the_same_data_goes_on(cx: Cx) {
    let store = cx.second().await;
    let mut bell = cx.store.listen("bell").await.unwrap();
    let mut tail = cx.store.stream("log").unwrap().subscribe(Offset::START).await.unwrap();
    let queue = cx.store.queue("q").unwrap();
    let next = cx.spawn(async move { queue.next("w").await.unwrap().id() });
    let mut job = claimed(&cx.store, "mine").await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    cx.settle().await;
    store.close().await.unwrap();

    assert!(!next.is_done());
    job.ack_tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    store_is_open(&cx.store).await;
    let third = cx.second().await;
    store_is_open(&third).await;
    let id = third.queue("q").unwrap().enqueue(&1).await.unwrap();
    assert_eq!(next.join().await, id);
    third.notify("bell", &1).await.unwrap();
    third.stream("log").unwrap().publish(&1).await.unwrap();
    assert!(cx.within(bell.recv()).await.is_some_and(|item| item.is_ok()));
    assert!(cx.within(tail.recv()).await.is_some_and(|item| item.is_ok()));
}

pub(crate) async fn c52_a_reopened_store_has_everything(cx: Cx) {
    let first = cx.second().await;
    let queue = first.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    let held = queue.enqueue(&"held").await.unwrap();
    let mut job: Job = queue.claim("w").await.unwrap().unwrap();
    let waiting = queue.enqueue(&"waiting").await.unwrap();
    first.stream("log").unwrap().publish(&"kept").await.unwrap();
    let lock = first.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    let token = lock.token();
    first.close().await.unwrap();
    // Neither handle could give anything back: both leases run on.
    is_closed("ack", job.ack().await);
    drop(lock);

    let again = cx.second().await;
    let queue = again.queue("q").unwrap();
    assert_eq!(queue.claim("w").await.unwrap().map(|job| job.id()), Some(waiting));
    assert_eq!(log(&again, "log").await, ["kept"]);
    assert!(queue.claim("w").await.unwrap().is_none(), "the claim outlives the store");
    cx.advance(MINUTE).await;
    assert_eq!(queue.claim("w").await.unwrap().map(|job| job.id()), Some(held));
    let lock = again.try_lock("lock", "me", MINUTE).await.unwrap().expect("it has expired");
    assert!(lock.token() > token);
}

pub(crate) async fn c53_closing_again_is_fine(cx: Cx) {
    let store = cx.second().await;
    for _ in 0..3 {
        cx.within(store.close()).await.unwrap();
    }
    store.shared().close().await.unwrap();
    let store = cx.second().await;
    let closes = (0..4).map(|_| {
        let store = store.clone();
        Box::pin(async move { store.close().await })
            as alkstore_core::BoxFuture<'static, Result<()>>
    });
    for result in cx.together(closes).await {
        result.expect("at the same moment too");
    }
    store_is_closed(&store).await;
}

pub(crate) async fn c53_a_dropped_close_closes(cx: Cx) {
    let store = cx.second().await;
    let closed = crate::cx::drop_at_every_await(|| store.close(), async || {}).await;
    closed.unwrap();
    store_is_closed(&store).await;
}

pub(crate) async fn c54_close_does_not_wait_for_an_open_transaction(cx: Cx) {
    for commit in [false, true] {
        let store = cx.second().await;
        let (queue, stream) = (store.queue("q").unwrap(), store.stream("log").unwrap());
        let mut job = claimed(&store, "held").await;
        let mut tx = store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new().unique_key("k")).await.unwrap();
        stream.publish_tx(&mut tx, &1, PublishOpts::new()).await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        cx.within(store.close()).await.unwrap();
        if !commit {
            let id = job.id();
            is_closed("enqueue_tx", queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await);
            is_closed("publish_tx", stream.publish_tx(&mut tx, &1, PublishOpts::new()).await);
            is_closed("notify_tx", tx.notify_tx("bell", &1).await);
            is_closed("get_job_tx", tx.get_job_tx("q", id).await);
            is_closed("read_tx", stream.read_tx(&mut tx, Offset::START, 1).await);
            is_closed("get_offset_tx", tx.get_offset_tx("log", "c").await);
        }
        is_closed("commit", tx.commit().await);
        assert_eq!(jobs(&cx.store, "q").await, 0, "nothing of it was written");
        assert_eq!(log(&cx.store, "log").await.len(), 0);
        // What it held is free.
        let freed = cx.store.queue("held").unwrap();
        assert!(cx.within(freed.cancel(job.id())).await.unwrap());
        let keyed = EnqueueOpts::new().unique_key("k");
        let id = cx.store.queue("q").unwrap().enqueue_with(&1, keyed).await.unwrap();
        cx.store.queue("q").unwrap().cancel(id).await.unwrap();
    }
}

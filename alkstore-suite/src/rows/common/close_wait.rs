//! What a close ends, and what keeps a store open.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, Listener, Offset, QueueOpts, Result, StopToken, Store, StoreExt,
};

use super::super::tx::claimed;
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) async fn c49_waiting_calls_end_with_closed(cx: Cx) {
    let store = cx.second().await;
    let held = cx.store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    let (queue, outbox) = (store.queue("q").unwrap(), store.outbox("mails").unwrap());
    let next = cx.spawn(async move { queue.next("w").await.map(drop) });
    let locking = store.clone();
    let lock = cx.spawn(async move { locking.lock("lock", "you", MINUTE).await.map(drop) });
    let run =
        cx.spawn(
            async move { outbox.run("w", async |_| Ok::<_, String>(()), StopToken::new()).await },
        );
    let runner = store.clone();
    let leads = cx.spawn(async move { runner.run_schedules(StopToken::new()).await });
    cx.until(|| async { cx.store.locks().await.unwrap().len() == 2 }).await;
    let standby = store.clone();
    let stands_by = cx.spawn(async move { standby.run_schedules_standby(StopToken::new()).await });
    cx.settle().await;
    let tasks =
        [("next", next), ("lock", lock), ("run", run), ("leads", leads), ("standby", stands_by)];
    for (call, task) in &tasks {
        assert!(!task.is_done(), "{call} has ended before the close");
    }
    store.close().await.unwrap();
    for (call, task) in tasks {
        let result = task.join().await;
        assert!(matches!(result, Err(Error::Closed)), "{call}: {result:?}");
    }
    held.release().await.unwrap();
}

pub(crate) async fn c49_a_call_that_waits_for_a_transaction_ends_with_closed(cx: Cx) {
    let keyed = || EnqueueOpts::new().unique_key("k");
    let mut tx = cx.store.begin_tx().await.unwrap();
    cx.store.queue("q").unwrap().enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
    let store = cx.second().await;
    let queue = store.queue("q").unwrap();
    let waiting = cx.spawn(async move { queue.enqueue_with(&2, keyed()).await });
    cx.settle().await;
    assert!(!waiting.is_done());
    store.close().await.unwrap();
    let result = waiting.join().await;
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    tx.commit().await.unwrap();
    assert_eq!(super::super::tx::jobs(&cx.store, "q").await, 1, "it wrote nothing later");
}

pub(crate) async fn c50_listeners_and_subscriptions_end_at_close(cx: Cx) {
    let store = cx.second().await;
    let stream = store.stream("log").unwrap();
    let mut idle = store.listen("bell").await.unwrap();
    let mut bell = store.listen("bell").await.unwrap();
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    let mut reader = stream.consumer("c").unwrap().subscribe().await.unwrap();
    let hearing =
        cx.spawn(async move { bell.recv().await.is_none() && bell.recv().await.is_none() });
    let reading =
        cx.spawn(async move { tail.recv().await.is_none() && tail.recv().await.is_none() });
    let consuming =
        cx.spawn(async move { reader.recv().await.is_none() && reader.recv().await.is_none() });
    cx.settle().await;
    store.close().await.unwrap();
    for task in [hearing, reading, consuming] {
        assert!(task.join().await, "the end is None, and stays None");
    }
    cx.store.notify("bell", &1).await.unwrap();
    assert!(cx.within(idle.recv()).await.is_none(), "nothing arrives after the end");
}

/// A handle keeps its store open, which a listener doesn't.
struct Ear {
    store: Arc<dyn Store>,
    bell: Listener,
}

impl Ear {
    async fn new(cx: &Cx) -> Self {
        let store = cx.second().await;
        let bell = store.listen("bell").await.unwrap();
        Self { store, bell }
    }

    /// Drops the store, and then the last handle on it.
    async fn keeps<H>(self, cx: &Cx, kind: &str, handle: H) {
        let Self { store, mut bell } = self;
        drop(store);
        let ended = cx.briefly(&mut Box::pin(bell.recv())).await;
        assert!(ended.is_none(), "a {kind} doesn't keep its store open: {ended:?}");
        drop(handle);
        let ended = cx.within(bell.recv()).await;
        assert!(ended.is_none(), "after the last handle, a {kind}: {ended:?}");
    }
}

pub(crate) async fn c55_handles_keep_their_store_open(cx: Cx) {
    let ear = Ear::new(&cx).await;
    let queue = ear.store.queue("q").unwrap();
    ear.keeps(&cx, "queue", queue).await;

    let ear = Ear::new(&cx).await;
    let stream = ear.store.stream("log").unwrap();
    ear.keeps(&cx, "stream", stream).await;

    let ear = Ear::new(&cx).await;
    let consumer = ear.store.stream("log").unwrap().consumer("c").unwrap();
    ear.keeps(&cx, "consumer", consumer).await;

    let ear = Ear::new(&cx).await;
    let outbox = ear.store.outbox("mails").unwrap();
    ear.keeps(&cx, "outbox", outbox).await;

    let ear = Ear::new(&cx).await;
    let job = claimed(&ear.store, "q").await;
    ear.keeps(&cx, "job", job).await;

    let ear = Ear::new(&cx).await;
    let lock = ear.store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    ear.keeps(&cx, "lock", lock).await;

    let ear = Ear::new(&cx).await;
    let tx = ear.store.begin_tx().await.unwrap();
    ear.keeps(&cx, "transaction", tx).await;

    let ear = Ear::new(&cx).await;
    let clone = ear.store.shared();
    ear.keeps(&cx, "clone", clone).await;
}

pub(crate) async fn c55_handles_work_after_the_store_was_dropped(cx: Cx) {
    let store = cx.second().await;
    let queue = store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    drop(store);
    queue.enqueue(&1).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    drop(queue);
    job.heartbeat(MINUTE).await.unwrap();
    job.ack().await.unwrap();

    let store = cx.second().await;
    let mut lock = store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    let tx = store.begin_tx().await.unwrap();
    drop(store);
    tx.commit().await.unwrap();
    lock.renew(MINUTE).await.unwrap();
    lock.release().await.unwrap();

    let store = cx.second().await;
    let queue = store.queue("q").unwrap();
    let waiting = cx.spawn(async move { queue.next("w").await.map(|job| job.id()) });
    drop(store);
    cx.settle().await;
    let id = cx.store.queue("q").unwrap().enqueue(&1).await.unwrap();
    assert_eq!(waiting.join().await.unwrap(), id);
}

pub(crate) async fn c56_listeners_and_subscriptions_end_with_the_last_handle(cx: Cx) {
    let store = cx.second().await;
    let stream = store.stream("log").unwrap();
    let mut tail = stream.subscribe(Offset::START).await.unwrap();
    let mut reader = stream.consumer("c").unwrap().subscribe().await.unwrap();
    let mut bell = store.listen("bell").await.unwrap();
    let hearing = cx.spawn(async move { bell.recv().await.is_none() });
    let reading = cx.spawn(async move { tail.recv().await.is_none() });
    let consuming = cx.spawn(async move { reader.recv().await.is_none() });
    drop(stream);
    cx.settle().await;
    assert!(!hearing.is_done() && !reading.is_done() && !consuming.is_done(), "it is still open");
    drop(store);
    for task in [hearing, reading, consuming] {
        assert!(task.join().await, "an item where nothing was sent");
    }
}

pub(crate) async fn c56_the_end_of_a_store_leaves_the_others_alone(cx: Cx) {
    let mut bell = cx.store.listen("bell").await.unwrap();
    for _ in 0..20 {
        let store = cx.second().await;
        let listener = store.listen("bell").await.unwrap();
        let tail = store.stream("log").unwrap().subscribe(Offset::START).await.unwrap();
        drop(store);
        drop((listener, tail));
    }
    let answer: Result<()> = cx.store.notify("bell", &1).await;
    answer.unwrap();
    assert!(cx.within(bell.recv()).await.is_some_and(|item| item.is_ok()));
}

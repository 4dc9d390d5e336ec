//! The store for tests of applications: its clock, its record, and when it is idle.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use alkstore::prelude::*;
use alkstore::testing::TestStore;
use alkstore::worker::{JobContext, Worker};
use alkstore::{MemStore, QueueOpts};
use futures_util::FutureExt;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Works on a queue until it is stopped; every number above 0 becomes the one below it.
async fn count_down(store: impl StoreExt, stop: StopToken) -> Result<u32> {
    let (queue, mut done) = (store.queue("numbers")?, 0);
    loop {
        let next = queue.next("counter");
        let mut job = tokio::select! {
            () = stop.stopped() => return Ok(done),
            job = next => job?,
        };
        let number: u32 = job.decode()?;
        if number > 0 {
            queue.enqueue(&(number - 1)).await?;
        }
        job.ack().await?;
        done += 1;
    }
}

/// What a future that is expected to panic says.
async fn panic_of<T>(future: impl Future<Output = T>) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.err().expect("it panics");
    *panic.downcast::<String>().expect("it says why")
}

#[tokio::test]
async fn it_runs_until_nothing_is_left_to_do() {
    let test = TestStore::new();
    test.store().queue("numbers").unwrap().enqueue(&5).await.unwrap();
    let done = test.run_until_idle(|stop| count_down(test.store(), stop)).await.unwrap();
    assert_eq!(done, 6);
    let numbers: Vec<u32> =
        test.enqueued("numbers").iter().map(|job| job.payload.decode().unwrap()).collect();
    assert_eq!(numbers, [5, 4, 3, 2, 1, 0]);
    let done = test.run_until_idle(|stop| count_down(test.store(), stop)).await.unwrap();
    assert_eq!(done, 0);
}

#[tokio::test]
async fn tasks_and_what_waits_outside_of_the_store_are_waited_for() {
    let test = TestStore::new();
    let queue = test.store().queue("slow").unwrap();
    queue.enqueue(&1).await.unwrap();
    let done = test
        .run_until_idle(|stop| async move {
            let worker = tokio::spawn(async move {
                let mut job = queue.next("w").await?;
                let blocking = tokio::task::spawn_blocking(|| {
                    std::fs::metadata(env!("CARGO_MANIFEST_DIR")).unwrap().is_dir()
                });
                assert!(blocking.await.unwrap());
                job.ack().await
            });
            stop.stopped().await;
            worker.await.unwrap()
        })
        .await;
    done.unwrap();
    assert_eq!(test.store().queues().await.unwrap(), []);
}

#[tokio::test]
async fn time_stands_still_until_it_is_moved() {
    let test = TestStore::new();
    let (store, began) = (test.store(), test.now());
    let queue = store.queue("numbers").unwrap();
    queue.enqueue_with(&0, EnqueueOpts::new().delay(HOUR)).await.unwrap();
    let run = async || test.run_until_idle(|stop| count_down(test.store(), stop)).await.unwrap();
    assert_eq!(run().await, 0);
    test.advance(HOUR - Duration::from_millis(1));
    assert_eq!(run().await, 0);
    test.advance(Duration::from_millis(1));
    assert_eq!((run().await, test.now()), (1, began + HOUR));
}

#[tokio::test]
async fn schedules_fire_where_somebody_runs_them() {
    let test = TestStore::new();
    let store = test.store();
    let opts = ScheduleOpts::new();
    store.schedule("tick", "@every 1h", "numbers", &0, opts).await.unwrap();
    test.advance(3 * HOUR);
    let nobody = test.run_until_idle(|stop| count_down(store.clone(), stop)).await.unwrap();
    assert_eq!(nobody, 0);
    let run = test.run_until_idle(async |stop| {
        tokio::join!(count_down(store.clone(), stop.clone()), store.run_schedules(stop)).0
    });
    assert_eq!(run.await.unwrap(), 3);
    assert_eq!(test.assert_enqueued("numbers", &0).headers.get("alkstore-schedule"), Some("tick"));
}

#[tokio::test]
async fn what_nobody_works_on_is_left_alone() {
    let test = TestStore::new();
    let store = test.store();
    store.queue("elsewhere").unwrap().enqueue(&1).await.unwrap();
    let paused = store.queue("numbers").unwrap();
    paused.enqueue(&1).await.unwrap();
    paused.pause().await.unwrap();
    // Claimed by somebody who is gone.
    let crashed = store.queue("crashed").unwrap();
    crashed.enqueue(&1).await.unwrap();
    drop(crashed.claim("w").await.unwrap());
    let done = test.run_until_idle(|stop| count_down(store.clone(), stop)).await.unwrap();
    assert_eq!(done, 0);
}

#[tokio::test]
async fn what_ends_by_itself_or_closes_the_store_is_over() {
    let test = TestStore::new();
    let queue = test.store().queue("q").unwrap();
    queue.enqueue(&1).await.unwrap();
    let ended = test.run_until_idle(|_| async { queue.next("w").await?.ack().await }).await;
    ended.unwrap();
    let closed = test.run_until_idle(async |stop| {
        test.store().close().await.unwrap();
        stop.stopped().await;
        queue.claim("w").await.err()
    });
    assert!(matches!(closed.await, Some(Error::Closed)));
}

#[tokio::test]
async fn a_commit_is_recorded_and_a_rollback_is_not() {
    let test = TestStore::new();
    let store = test.store();
    let (jobs, mails) = (store.queue("jobs").unwrap(), store.outbox("mails").unwrap());
    let orders = store.stream("orders").unwrap();
    for (text, commits) in [("kept", true), ("undone", false)] {
        let mut tx = store.begin_tx().await.unwrap();
        let opts = EnqueueOpts::new().priority(7).unique_key(text);
        jobs.enqueue_tx(&mut tx, text, opts).await.unwrap();
        mails.enqueue_tx(&mut tx, text, OutboxOpts::new()).await.unwrap();
        orders.publish_tx(&mut tx, text, PublishOpts::new().key("k")).await.unwrap();
        tx.notify_tx("bell", text).await.unwrap();
        assert_eq!(test.enqueued("jobs").len(), usize::from(!commits), "staged isn't recorded");
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    assert_eq!(test.assert_enqueued("jobs", "kept").priority, 7);
    assert_eq!(test.assert_in_outbox("mails", "kept").max_attempts, 5);
    assert_eq!(test.assert_published("orders", "kept").offset.get(), 1);
    test.assert_notified("bell", "kept");
    let counts = || {
        let jobs = test.enqueued("jobs").len() + test.in_outbox("mails").len();
        (jobs, test.published("orders").len(), test.notified("bell").len())
    };
    assert_eq!(counts(), (2, 1, 1));

    // A retry in a transaction adds nothing, and neither does a key that is taken.
    let mut job = jobs.claim("w").await.unwrap().unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    job.retry_tx(&mut tx, "later", None).await.unwrap();
    tx.commit().await.unwrap();
    jobs.enqueue_with("again", EnqueueOpts::new().unique_key("kept")).await.unwrap();
    assert_eq!(counts(), (2, 1, 1));
    test.forget();
    assert_eq!(counts(), (0, 0, 0));
    jobs.enqueue("plain").await.unwrap();
    orders.publish("plain").await.unwrap();
    store.notify("bell", "plain").await.unwrap();
    assert_eq!(counts(), (1, 1, 1));
}

#[tokio::test]
async fn an_assertion_that_fails_says_what_came_instead() {
    let test = TestStore::new();
    test.store().queue("mails").unwrap().enqueue(&["ada"]).await.unwrap();
    let found = Payload::from_json_text(" [ \"ada\" ] ").unwrap();
    test.assert_enqueued("mails", found);
    let panic = panic_of(async { test.assert_enqueued("mails", &["bob"]) }).await;
    assert_eq!(panic, "no [\"bob\"] came to queue \"mails\"; what came:\n  [\"ada\"]");
    let panic = panic_of(async { test.assert_notified("bell", &1) }).await;
    assert_eq!(panic, "no 1 came to channel \"bell\"; what came: nothing");
    let panic = panic_of(async { test.published("") }).await;
    assert!(panic.starts_with("invalid name \"\": it is empty"), "{panic}");
}

#[tokio::test(start_paused = true)]
async fn what_never_becomes_idle_is_said() {
    let test = TestStore::with(MemStore::builder()).patience(Duration::from_secs(2));
    let queue = test.store().queue_with("q", QueueOpts::new()).unwrap();
    queue.enqueue(&1).await.unwrap();
    let dropped = test.run_until_idle(async |stop| {
        drop(queue.claim("w").await);
        stop.stopped().await;
    });
    let panic = panic_of(dropped).await;
    assert!(panic.starts_with("still not idle after 2s: job 1 of queue \"q\""), "{panic}");

    let deaf = test.run_until_idle(|_| std::future::pending::<()>());
    let panic = panic_of(deaf).await;
    assert!(panic.contains("didn't end; does it wait for the token"), "{panic}");
}

#[tokio::test]
async fn a_worker_runs_until_it_is_idle() {
    let test = TestStore::new();
    let store = test.store();
    let (jobs, mails) = (store.queue("jobs").unwrap(), store.outbox("mails").unwrap());
    let opts = ScheduleOpts::new();
    store.schedule("hourly", "@every 1h", "jobs", &2, opts).await.unwrap();
    jobs.enqueue(&3).await.unwrap();
    mails.enqueue(&"hello", OutboxOpts::new()).await.unwrap();
    let again = jobs.clone();
    let handler = move |mut job: JobContext, number: u32| {
        let again = again.clone();
        async move {
            if number == 0 {
                return Ok(());
            }
            tokio::task::spawn_blocking(|| ()).await.expect("it runs");
            let mut tx = job.store().begin_tx().await?;
            again.enqueue_tx(&mut tx, &(number - 1), EnqueueOpts::new()).await?;
            job.ack_and_commit(tx).await
        }
    };
    let worker = Worker::builder(&store)
        .queue("jobs", handler)
        .outbox("mails", async |_: Delivery| Ok::<_, Error>(()))
        .schedules(true)
        .maintenance(true)
        .build()
        .unwrap();
    for (hours, enqueued) in [(0, 4), (0, 4), (2, 10)] {
        test.advance(hours * HOUR);
        test.run_until_idle(|stop| worker.run(stop)).await.unwrap();
        assert_eq!(test.enqueued("jobs").len(), enqueued);
        assert_eq!(store.queues().await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_worker_whose_jobs_fail_is_idle_until_the_backoff_ends() {
    let test = TestStore::new();
    let store = test.store();
    store.queue("jobs").unwrap().enqueue(&1).await.unwrap();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    let handler = move |job: JobContext, _: u32| {
        let before = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(job.attempt(), before + 1);
            if before == 1 {
                panic!("the second attempt");
            }
            Err::<(), _>("no")
        }
    };
    let worker = Worker::builder(&store).queue("jobs", handler).build().unwrap();
    for attempt in 1..=4 {
        test.run_until_idle(|stop| worker.run(stop)).await.unwrap();
        assert_eq!(attempts.load(Ordering::SeqCst), attempt.min(3));
        test.advance(Duration::from_secs(20));
    }
    assert_eq!(store.queue("jobs").unwrap().stats().await.unwrap().dead, 1);
}

//! Waiting: who is woken, and when a waiter looks by itself. The safety poll is off.

use std::time::Duration;

use alkstore_core::{EnqueueOpts, NewJob, Offset, OutboxOpts, QueueOpts, StopToken, StoreExt};

use super::super::tx::{beside, claimed, impatient};
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) async fn c43_a_wake_is_never_missed(cx: Cx) {
    let second = cx.second().await;
    // Woken by its own store and by another one; time stands still.
    for writer in [cx.store.clone(), second] {
        let held = cx.store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
        let (queue, store) = (cx.store.queue("q").unwrap(), cx.store.clone());
        let next = cx.spawn(async move { queue.next("w").await.unwrap().ack().await });
        let lock = cx.spawn(async move { store.lock("lock", "you", MINUTE).await.map(drop) });
        let head = cx.store.stream("log").unwrap().info().await.unwrap().last;
        let mut tail = cx.store.stream("log").unwrap().subscribe(head).await.unwrap();
        let event = cx.spawn(async move { tail.recv().await.unwrap().map(drop) });
        let mut bell = cx.store.listen("bell").await.unwrap();
        let message = cx.spawn(async move { bell.recv().await.unwrap().map(drop) });
        let (outbox, stop) = (cx.store.outbox("mails").unwrap(), StopToken::new());
        let delivering = cx.spawn(async move {
            let stopper = stop.clone();
            let deliver = async |_| {
                stopper.stop();
                Ok::<_, String>(())
            };
            outbox.run("w", deliver, stop).await
        });
        cx.settle().await;
        writer.queue("q").unwrap().enqueue(&1).await.unwrap();
        writer.stream("log").unwrap().publish(&1).await.unwrap();
        writer.notify("bell", &1).await.unwrap();
        writer.outbox("mails").unwrap().enqueue(&1, OutboxOpts::new()).await.unwrap();
        held.release().await.unwrap();
        for task in [next, lock, event, message, delivering] {
            task.join().await.unwrap();
        }
    }
}

pub(crate) async fn c43_work_between_the_look_and_the_wait_is_seen(cx: Cx) {
    // Whatever lies between a waiter's look and its wait, the work comes right there.
    let second = cx.second().await;
    for round in 0..100 {
        let queue = cx.store.queue("q").unwrap();
        let waits = async move { queue.next("w").await.unwrap().ack().await.unwrap() };
        let queue = second.queue("q").unwrap();
        let adds = async move {
            queue.enqueue(&round).await.unwrap();
        };
        cx.together([
            Box::pin(waits) as alkstore_core::BoxFuture<'static, ()>,
            Box::pin(adds) as alkstore_core::BoxFuture<'static, ()>,
        ])
        .await;
    }
}

pub(crate) async fn c43_as_much_work_wakes_as_many_waiters(cx: Cx) {
    const WAITERS: usize = 5;
    let stores = [cx.store.clone(), cx.second().await];
    for delay in [Duration::ZERO, MINUTE] {
        let waiters: Vec<_> = (0..WAITERS)
            .map(|n| {
                let queue = stores[n % 2].queue("q").unwrap();
                cx.spawn(async move { queue.next("w").await.unwrap().ack().await.unwrap() })
            })
            .collect();
        cx.settle().await;
        let opts = EnqueueOpts::new().delay(delay);
        let jobs = (0..WAITERS).map(|n| NewJob::new(&n).unwrap().opts(opts.clone())).collect();
        stores[0].queue("q").unwrap().enqueue_many(jobs).await.unwrap();
        cx.settle().await;
        cx.advance(delay).await;
        for waiter in waiters {
            waiter.join().await;
        }
    }
}

pub(crate) async fn c43_what_is_for_everybody_wakes_everybody(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    let mut waiters = Vec::new();
    for store in stores.iter().cycle().take(6) {
        let mut tail = store.stream("log").unwrap().subscribe(Offset::START).await.unwrap();
        waiters.push(cx.spawn(async move { tail.recv().await.unwrap().map(drop) }));
        let mut bell = store.listen("bell").await.unwrap();
        waiters.push(cx.spawn(async move { bell.recv().await.unwrap().map(drop) }));
    }
    cx.settle().await;
    stores[0].stream("log").unwrap().publish(&1).await.unwrap();
    stores[0].notify("bell", &1).await.unwrap();
    for waiter in waiters {
        waiter.join().await.unwrap();
    }
}

pub(crate) async fn c44_a_waiter_sleeps_until_work_falls_due(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    queue.enqueue_with(&1, EnqueueOpts::new().delay(2 * MINUTE)).await.unwrap();
    let held = cx.store.try_lock("lock", "me", 2 * MINUTE).await.unwrap().unwrap();
    let (waiting, store) = (queue.clone(), cx.second().await);
    let next = cx.spawn(async move { waiting.next("w").await.unwrap() });
    let lock = cx.spawn(async move { store.lock("lock", "you", MINUTE).await.unwrap() });
    cx.settle().await;
    cx.advance(2 * MINUTE - Duration::from_millis(1)).await;
    cx.settle().await;
    assert!(!next.is_done() && !lock.is_done(), "a millisecond early");
    cx.advance(Duration::from_millis(1)).await;
    let job = next.join().await;
    let lock = lock.join().await;
    let stale = held.release().await;
    assert!(matches!(stale, Err(alkstore_core::Error::LockLost { .. })), "{stale:?}");
    lock.release().await.expect("the stale release left it alone");

    let waiting = queue.clone();
    let again = cx.spawn(async move { waiting.next("w").await.unwrap() });
    cx.settle().await;
    assert!(!again.is_done(), "its claim holds");
    cx.advance(MINUTE).await;
    assert_eq!(again.join().await.id(), job.id(), "lapsed");
}

pub(crate) async fn c45_a_waiter_looks_again_for_due_work_that_it_could_not_take(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    let id = queue.enqueue(&1).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    cx.advance(MINUTE).await;
    let hasty = impatient(&cx).await;
    let waiting = hasty.queue("q").unwrap();
    if beside(&cx, waiting.claim("w")).await.is_none() {
        // With one writer the wait is for the transaction itself, and ends with the lock timeout.
        tx.rollback().await.unwrap();
        assert_eq!(cx.within(waiting.next("w")).await.unwrap().id(), id);
        return;
    }
    let next = cx.spawn(async move { waiting.next("w").await.unwrap().id() });
    cx.settle().await;
    assert!(!next.is_done(), "the job is pinned");
    // A rollback wakes nobody, so that it is the waiter who has to look.
    tx.rollback().await.unwrap();
    let found = cx.advancing(Duration::from_millis(100), next.join()).await;
    assert_eq!(found, id);
}

pub(crate) async fn c46_an_idle_waiter_is_woken_by_what_makes_work_claimable(cx: Cx) {
    let second = cx.second().await;
    let queue = second.queue("q").unwrap();
    let mut job = claimed(&cx.store, "q").await;
    let id = job.id();
    for step in ["release", "retry", "requeue", "resume"] {
        if step == "resume" {
            job.release(Duration::ZERO).await.unwrap();
            queue.pause().await.unwrap();
        }
        let waiting = cx.store.queue("q").unwrap();
        let next = cx.spawn(async move { waiting.next("w").await.unwrap() });
        cx.settle().await;
        assert!(!next.is_done(), "{step}: there is nothing to claim");
        match step {
            "release" => job.release(Duration::ZERO).await.unwrap(),
            "retry" => drop(job.retry("busy", Some(Duration::ZERO)).await.unwrap()),
            "requeue" => {
                job.fail("broken").await.unwrap();
                assert_eq!(queue.requeue_dead(id).await.unwrap(), 1);
            }
            _ => assert!(queue.resume().await.unwrap()),
        }
        job = next.join().await;
        assert_eq!(job.id(), id, "{step}");
    }
}

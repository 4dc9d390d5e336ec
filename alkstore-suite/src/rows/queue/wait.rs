//! `next`: what it waits for, and that it misses nothing.

use std::time::Duration;

use alkstore_core::{DeadSelection, EnqueueOpts, Error, Job, JobState, QueueOpts, StoreExt};

use super::{
    ROUNDS, add, add_dead, add_many, brief, brief_queue, count, millis, queue, race, secs, state,
    take, waiter,
};
use crate::cx::{Cx, Task};

pub(crate) async fn q62_a_worker_takes_what_is_ready(cx: Cx) {
    let queue = queue(&cx);
    let added = add_many(&queue, 2, EnqueueOpts::new()).await;
    for id in added {
        let mut job = cx.within(queue.next("w")).await.unwrap();
        assert_eq!((job.id(), job.attempt()), (id, 1));
        job.ack().await.unwrap();
    }
}

pub(crate) async fn q62_an_enqueue_wakes_a_waiter(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    for adding in [&queue, &other] {
        let waiting = waiter(&cx, &queue).await;
        let id = add(adding, EnqueueOpts::new()).await;
        let mut job = waiting.join().await;
        assert_eq!((job.id(), job.attempt()), (id, 1));
        job.ack().await.unwrap();
    }
}

pub(crate) async fn q62_many_jobs_wake_as_many_waiters(cx: Cx) {
    let queues = [queue(&cx), cx.second().await.queue("q").unwrap()];
    for _ in 0..10 {
        let mut waiting: Vec<Task<Job>> = Vec::new();
        for n in 0..6 {
            let queue = queues[n % 2].clone();
            waiting.push(cx.spawn(async move { queue.next("w").await.unwrap() }));
        }
        cx.settle().await;
        let mut added = add_many(&queues[0], 6, EnqueueOpts::new()).await;
        for task in waiting {
            let mut job = task.join().await;
            added.retain(|id| *id != job.id());
            job.ack().await.unwrap();
        }
        assert!(added.is_empty(), "two waiters got one job");
    }
}

pub(crate) async fn q62_a_settlement_that_gives_back_wakes_a_waiter(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let waiting = waiter(&cx, &other).await;
    job.release(Duration::ZERO).await.unwrap();
    let mut job = waiting.join().await;
    assert_eq!((job.id(), job.attempt()), (id, 1));
    let waiting = waiter(&cx, &queue).await;
    job.retry("again", Some(Duration::ZERO)).await.unwrap();
    let job = waiting.join().await;
    assert_eq!((job.id(), job.attempt()), (id, 2));
}

pub(crate) async fn q62_a_requeue_wakes_a_waiter(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    let id = add_dead(&queue, EnqueueOpts::new()).await;
    let waiting = waiter(&cx, &other).await;
    assert_eq!(queue.requeue_dead(DeadSelection::All).await.unwrap(), 1);
    assert_eq!(waiting.join().await.id(), id);
}

pub(crate) async fn q63_a_waiter_sleeps_until_work_falls_due(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new().delay(secs(60))).await;
    let waiting = waiter(&cx, &queue).await;
    cx.advance(secs(60) - millis(1)).await;
    cx.settle().await;
    assert!(!waiting.is_done(), "a millisecond early");
    cx.advance(millis(1)).await;
    assert_eq!(waiting.join().await.id(), id);
}

pub(crate) async fn q63_a_waiter_sees_a_claim_lapse(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let waiting = waiter(&cx, &cx.second().await.queue("q").unwrap()).await;
    cx.advance(secs(5)).await;
    job.heartbeat(secs(60)).await.unwrap();
    cx.advance(secs(60) - millis(1)).await;
    cx.settle().await;
    assert!(!waiting.is_done(), "the claim was extended");
    cx.advance(millis(1)).await;
    let job = waiting.join().await;
    assert_eq!((job.id(), job.attempt()), (id, 2));
}

pub(crate) async fn q63_what_falls_due_sooner_is_seen_sooner(cx: Cx) {
    let queue = brief_queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    add(&queue, EnqueueOpts::new().delay(secs(3_600))).await;
    let waiting = waiter(&cx, &queue).await;
    let sooner = add(&other, EnqueueOpts::new().delay(secs(60))).await;
    cx.settle().await;
    cx.advance(secs(60)).await;
    assert_eq!(waiting.join().await.id(), sooner);

    let id = add(&other, EnqueueOpts::new()).await;
    let mut job = take(&other).await;
    assert_eq!(job.id(), id);
    let waiting = waiter(&cx, &queue).await;
    job.heartbeat(secs(1)).await.unwrap();
    cx.settle().await;
    cx.advance(secs(1)).await;
    assert_eq!(waiting.join().await.id(), id);
}

pub(crate) async fn q64_no_wake_is_missed(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    for round in 0..ROUNDS {
        let (waiting, adding) = (queue.clone(), other.clone());
        let (mut job, id) =
            race(&cx, round, async move { waiting.next("w").await.unwrap() }, async move {
                add(&adding, EnqueueOpts::new()).await
            })
            .await;
        assert_eq!(job.id(), id);
        job.ack().await.unwrap();
    }
}

pub(crate) async fn q64_no_release_is_missed(cx: Cx) {
    let queue = queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    for round in 0..ROUNDS {
        let waiting = other.clone();
        let (next, _held) =
            race(&cx, round, async move { waiting.next("w").await.unwrap() }, async move {
                job.release(Duration::ZERO).await.unwrap();
                job
            })
            .await;
        assert_eq!(next.attempt(), 1);
        job = next;
    }
}

pub(crate) async fn q65_a_commit_wakes_and_a_rollback_doesn_t(cx: Cx) {
    let queue = queue(&cx);
    let store = cx.second().await;
    let other = store.queue("q").unwrap();
    let waiting = waiter(&cx, &queue).await;
    let mut tx = store.begin_tx().await.unwrap();
    other.enqueue_tx(&mut tx, &"undone", EnqueueOpts::new()).await.unwrap();
    tx.rollback().await.unwrap();
    cx.settle().await;
    assert!(!waiting.is_done(), "a job that was rolled back was handed out");

    let mut tx = store.begin_tx().await.unwrap();
    let id = other.enqueue_tx(&mut tx, &"done", EnqueueOpts::new()).await.unwrap();
    cx.settle().await;
    assert!(!waiting.is_done(), "a job was handed out before its commit");
    tx.commit().await.unwrap();
    assert_eq!(waiting.join().await.id(), id);
}

pub(crate) async fn q65_a_committed_settlement_wakes(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let waiting = waiter(&cx, &cx.second().await.queue("q").unwrap()).await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.retry_tx(&mut tx, "again", Some(Duration::ZERO)).await.unwrap();
    tx.commit().await.unwrap();
    let job = waiting.join().await;
    assert_eq!((job.id(), job.attempt()), (id, 2));
}

pub(crate) async fn q66_a_waiter_looks_again_for_a_job_that_it_can_t_take(cx: Cx) {
    let queue = brief_queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let waiting = cx.spawn(async move {
        loop {
            match other.next("w").await {
                Err(Error::Unavailable { .. }) => {}
                result => break result.unwrap(),
            }
        }
    });
    cx.settle().await;
    let mut tx = cx.store.begin_tx().await.unwrap();
    job.ack_tx(&mut tx).await.unwrap();
    cx.advance(secs(10)).await;
    cx.settle().await;
    assert!(!waiting.is_done(), "a pinned job was handed out");
    tx.rollback().await.unwrap();
    let job = cx.advancing(millis(10), waiting.join()).await;
    assert_eq!((job.id(), job.attempt()), (id, 2));
}

pub(crate) async fn q67_what_one_claim_takes_in_wakes_every_waiter(cx: Cx) {
    let queues = [queue(&cx), cx.second().await.queue("q").unwrap()];
    for _ in 0..20 {
        add_many(&queues[0], 10, EnqueueOpts::new().delay(secs(1))).await;
        let waiting: Vec<Task<Job>> = (0..8)
            .map(|n| {
                let queue = queues[n % 2].clone();
                cx.spawn(async move { queue.next("w").await.unwrap() })
            })
            .collect();
        cx.settle().await;
        cx.advance(secs(1)).await;
        for task in waiting {
            task.join().await.ack().await.unwrap();
        }
        for mut job in queues[0].claim_batch("w", 10).await.unwrap() {
            job.ack().await.unwrap();
        }
        assert_eq!(count(&queues[0]).await, 0);
    }
}

pub(crate) async fn q67_a_waiter_works_off_a_backlog_of_lapsed_claims(cx: Cx) {
    let queue = cx.store.queue_with("q", brief().max_attempts(2)).unwrap();
    add_many(&queue, 4, EnqueueOpts::new()).await;
    assert_eq!(queue.claim_batch("killed", 4).await.unwrap().len(), 4);
    let other = cx.second().await.queue("q").unwrap();
    let worker = cx.spawn(async move {
        for _ in 0..4 {
            let mut job = other.next("w").await.unwrap();
            assert_eq!(job.attempt(), 2);
            job.ack().await.unwrap();
        }
    });
    cx.settle().await;
    cx.advance(secs(10)).await;
    worker.join().await;
    assert_eq!(count(&queue).await, 0);
}

pub(crate) async fn q63_a_waiter_isn_t_held_up_by_jobs_that_end(cx: Cx) {
    let opts = QueueOpts::new().visibility_timeout(secs(10)).max_attempts(1);
    let queue = cx.store.queue_with("q", opts).unwrap();
    let lapses = add(&queue, EnqueueOpts::new()).await;
    let _ = take(&queue).await;
    let expires = add(&queue, EnqueueOpts::new().delay(secs(5)).expires(secs(5))).await;
    let last = add(&queue, EnqueueOpts::new().delay(secs(20))).await;
    let waiting = waiter(&cx, &queue).await;
    for step in [5, 5, 10] {
        assert!(!waiting.is_done(), "a dead job was handed out");
        cx.advance(secs(step)).await;
        cx.settle().await;
    }
    assert_eq!(waiting.join().await.id(), last);
    for id in [lapses, expires] {
        assert_eq!(state(&queue, id).await, Some(JobState::Dead));
    }
}

pub(crate) async fn q74_a_waiter_ends_with_its_store(cx: Cx) {
    let store = cx.second().await;
    let queue = store.queue("q").unwrap();
    let waiting = cx.spawn(async move { queue.next("w").await });
    cx.settle().await;
    store.close().await.unwrap();
    assert!(matches!(waiting.join().await, Err(Error::Closed)));
}

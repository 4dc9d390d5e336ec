//! Futures that are dropped at every await.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use alkstore_core::{
    Error, Job, JobFilter, JobRecord, JobState, NewEvent, NewJob, Offset, QueueOpts, Result,
    ScheduleOpts, StoreExt,
};

use super::super::tx::{jobs, log, offset};
use crate::cx::{Cx, drop_at_every_await};

const MINUTE: Duration = Duration::from_secs(60);

fn three<T>(make: impl Fn(&String) -> Result<T>) -> Vec<T> {
    ["one", "two", "three"].map(|text| make(&text.to_owned()).unwrap()).into()
}

pub(crate) async fn c39_a_dropped_batch_is_nothing_or_the_whole(cx: Cx) {
    let second = cx.second().await;
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    let check = async || {
        assert_eq!(jobs(&second, "q").await % 3, 0, "a part of a batch");
        assert_eq!(log(&second, "log").await.len() % 3, 0, "a part of a batch");
        second.queue("other").unwrap().enqueue(&1).await.expect("it stays usable");
    };
    let enqueue = || queue.enqueue_many(three(|text| NewJob::new(text)));
    let ids = drop_at_every_await(enqueue, &check).await.unwrap();
    for id in ids {
        assert!(queue.get_job(id).await.unwrap().is_some(), "job {id} was answered for");
    }
    let publish = || stream.publish_many(three(|text| NewEvent::new(text)));
    let places = drop_at_every_await(publish, &check).await.unwrap();
    assert_eq!(stream.read(Offset::START, 10_000).await.unwrap().last().unwrap().offset, places[2]);
    check().await;
}

pub(crate) async fn c39_a_dropped_settlement_took_effect_or_not(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    let second = cx.second().await;
    type Settle = fn(Job) -> alkstore_core::BoxFuture<'static, Result<()>>;
    let ways: [(&str, Settle); 5] = [
        ("ack", |mut job| Box::pin(async move { job.ack().await })),
        ("retry", |mut job| {
            Box::pin(async move { job.retry("busy", Some(MINUTE)).await.map(drop) })
        }),
        ("fail", |mut job| Box::pin(async move { job.fail("broken").await })),
        ("release", |mut job| Box::pin(async move { job.release(MINUTE).await })),
        ("heartbeat", |mut job| Box::pin(async move { job.heartbeat(2 * MINUTE).await.map(drop) })),
    ];
    let now = SystemTime::from(cx.now().await);
    for (way, settle) in ways {
        // One claim an attempt, more than there are awaits.
        let many = (0..64).map(|n| NewJob::new(&n).unwrap()).collect();
        let ids = queue.enqueue_many(many).await.unwrap();
        let claims = Mutex::new(queue.claim_batch("w", 64).await.unwrap());
        let attempt = || settle(claims.lock().unwrap().pop().expect("a claim an attempt"));
        drop_at_every_await(attempt, async || {}).await.unwrap_or_else(|e| panic!("{way}: {e}"));
        let untouched: Vec<_> = claims.lock().unwrap().iter().map(Job::id).collect();
        let record_of = async |id| second.queue("q").unwrap().get_job(id).await.unwrap();
        for id in ids {
            let record = record_of(id).await;
            assert!(
                is_untouched(&record, now) || is_settled(way, &record, now),
                "{way}: {record:?}"
            );
            if untouched.contains(&id) {
                assert!(is_untouched(&record, now), "{way} touched another job: {record:?}");
            }
        }
        queue.purge_dead(alkstore_core::DeadSelection::All).await.unwrap();
        for job in queue.jobs(JobFilter::new()).await.unwrap() {
            let cancelled = queue.cancel(job.id).await.unwrap();
            // A settlement whose caller is gone may end the job in between.
            let ended =
                matches!(way, "ack" | "fail") && is_settled(way, &record_of(job.id).await, now);
            assert!(cancelled || ended, "{way} left {job:?}");
        }
    }
}

/// Whether a job is as its claim left it.
fn is_untouched(record: &Option<JobRecord>, now: SystemTime) -> bool {
    record.as_ref().is_some_and(|job| {
        (job.state, job.attempt, job.deadline) == (JobState::Claimed, 1, Some(now + MINUTE))
            && job.last_error.is_none()
    })
}

/// Whether a settlement took effect as a whole.
fn is_settled(way: &str, record: &Option<JobRecord>, now: SystemTime) -> bool {
    let Some(job) = record else { return way == "ack" };
    let pending = job.state == JobState::Pending
        && (job.ready_at, job.deadline, &job.worker_id) == (now + MINUTE, None, &None);
    let dead = job.state == JobState::Dead && job.died_at == Some(now);
    let error = job.last_error.as_deref();
    match way {
        "retry" => pending && (job.attempt, error) == (1, Some("busy")),
        "release" => pending && (job.attempt, error) == (0, None),
        "fail" => dead && (job.attempt, error) == (1, Some("broken")),
        "heartbeat" => job.state == JobState::Claimed && job.deadline == Some(now + 2 * MINUTE),
        _ => false,
    }
}

pub(crate) async fn c39_a_dropped_change_happened_or_not(cx: Cx) {
    let store = &cx.store;
    let (queue, stream) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let consumer = stream.consumer("c").unwrap();
    stream.publish_many(three(|text| NewEvent::new(text))).await.unwrap();
    let usable = async || {
        let second = cx.second().await;
        second.queue("other").unwrap().enqueue(&1).await.expect("another store is usable");
        store.queue("other").unwrap().enqueue(&1).await.expect("this one is usable");
        second.close().await.unwrap();
    };
    drop_at_every_await(|| queue.pause(), &usable).await.unwrap();
    assert!(queue.stats().await.unwrap().paused);
    drop_at_every_await(|| queue.resume(), &usable).await.unwrap();
    assert!(!queue.stats().await.unwrap().paused);

    drop_at_every_await(|| consumer.save_offset(offset(2)), &usable).await.unwrap();
    assert_eq!(consumer.offset().await.unwrap(), offset(2));
    drop_at_every_await(|| consumer.rewind(offset(1)), &usable).await.unwrap();
    assert_eq!(consumer.offset().await.unwrap(), offset(1));
    drop_at_every_await(|| stream.trim_to(offset(2)), &usable).await.unwrap();
    assert_eq!(stream.info().await.unwrap().first, offset(3));
    drop_at_every_await(|| stream.forget_consumer("c"), &usable).await.unwrap();
    assert_eq!(consumer.offset().await.unwrap(), Offset::START);

    let schedule = || store.schedule("s", "@every 1h", "q", &1, ScheduleOpts::new());
    drop_at_every_await(schedule, &usable).await.unwrap();
    assert_eq!(store.schedules().await.unwrap().len(), 1);
    drop_at_every_await(|| store.pause_schedule("s"), &usable).await.unwrap();
    assert!(store.schedules().await.unwrap()[0].paused);
    drop_at_every_await(|| store.unschedule("s"), &usable).await.unwrap();
    assert_eq!(store.schedules().await.unwrap(), []);

    let id = queue.enqueue(&1).await.unwrap();
    drop_at_every_await(|| queue.cancel(id), &usable).await.unwrap();
    assert_eq!(queue.get_job(id).await.unwrap(), None);
    drop_at_every_await(|| store.maintain(), &usable).await.unwrap();
    drop_at_every_await(|| store.notify("bell", &1), &usable).await.unwrap();
    drop_at_every_await(|| store.queues(), &usable).await.unwrap();
}

pub(crate) async fn c39_a_dropped_requeue_or_purge_took_all_or_none(cx: Cx) {
    let (queue, second) = (cx.store.queue("q").unwrap(), cx.second().await);
    let bury = async || {
        let mut claims = queue.claim_batch("w", 100).await.unwrap();
        for job in &mut claims {
            job.fail("broken").await.unwrap();
        }
    };
    queue.enqueue_many(three(|text| NewJob::new(text))).await.unwrap();
    bury().await;
    let all = alkstore_core::DeadSelection::All;
    let check = async || {
        let stats = second.queue("q").unwrap().stats().await.unwrap();
        assert!([0, 3].contains(&stats.dead), "{stats:?}");
        assert!([0, 3].contains(&stats.ready), "{stats:?}");
    };
    drop_at_every_await(|| queue.requeue_dead(all.clone()), &check).await.unwrap();
    assert_eq!(queue.stats().await.unwrap().ready, 3);
    bury().await;
    drop_at_every_await(|| queue.purge_dead(all.clone()), &check).await.unwrap();
    assert_eq!(jobs(&second, "q").await, 0);
}

pub(crate) async fn c40_a_dropped_acquisition_is_given_back_at_once(cx: Cx) {
    let (queue, second) = (cx.store.queue("q").unwrap(), cx.second().await);
    let other = second.queue("q").unwrap();
    queue.enqueue(&1).await.unwrap();
    // Time stands still, so that nothing lapses.
    let given_back = async || {
        let mut job = cx.within(other.next("thief")).await.unwrap();
        assert_eq!(job.attempt(), 1, "an attempt was charged");
        job.release(Duration::ZERO).await.unwrap();
    };
    let mut job = drop_at_every_await(|| queue.claim("w"), &given_back).await.unwrap().unwrap();
    assert_eq!(job.attempt(), 1, "an attempt was charged");
    job.release(Duration::ZERO).await.unwrap();
    let mut batch = drop_at_every_await(|| queue.claim_batch("w", 10), &given_back).await.unwrap();
    batch[0].release(Duration::ZERO).await.unwrap();
    let mut job = drop_at_every_await(|| queue.next("w"), &given_back).await.unwrap();
    job.release(Duration::ZERO).await.unwrap();
    given_back().await;

    let free = async || {
        let lock = cx.within(second.lock("lock", "thief", MINUTE)).await.unwrap();
        lock.release().await.unwrap();
    };
    let lock = drop_at_every_await(|| cx.store.try_lock("lock", "me", MINUTE), &free).await;
    lock.unwrap().expect("it is free").release().await.unwrap();
    let lock = drop_at_every_await(|| cx.store.lock("lock", "me", MINUTE), &free).await;
    lock.unwrap().release().await.unwrap();
    free().await;
}

pub(crate) async fn c40_a_waiter_that_is_cancelled_takes_nothing_with_it(cx: Cx) {
    let second = cx.second().await;
    let held = second.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    let queue = cx.store.queue("q").unwrap();
    for _ in 0..20 {
        let waiting = queue.clone();
        let next = cx.spawn(async move { waiting.next("w").await.map(drop) });
        let store = cx.store.clone();
        let lock = cx.spawn(async move { store.lock("lock", "you", MINUTE).await.map(drop) });
        cx.settle().await;
        next.cancel().await;
        lock.cancel().await;
    }
    let id = second.queue("q").unwrap().enqueue(&1).await.unwrap();
    let job = second.queue("q").unwrap().claim("w").await.unwrap().expect("nobody else waits");
    assert_eq!((job.id(), job.attempt()), (id, 1));
    held.release().await.unwrap();
    let lock = second.try_lock("lock", "me", MINUTE).await.unwrap();
    assert!(lock.is_some(), "nobody else waits");
}

pub(crate) async fn c41_a_dropped_recv_loses_nothing(cx: Cx) {
    let second = cx.second().await;
    let bell = futures_util::lock::Mutex::new(cx.store.listen("bell").await.unwrap());
    let stream = cx.store.stream("log").unwrap();
    let tail = futures_util::lock::Mutex::new(stream.subscribe(Offset::START).await.unwrap());
    for number in 0..20 {
        // Before it comes, while it comes, and when it is there.
        let waits = cx.briefly(&mut Box::pin(async { bell.lock().await.recv().await })).await;
        assert!(waits.is_none(), "{waits:?}");
        let waits = cx.briefly(&mut Box::pin(async { tail.lock().await.recv().await })).await;
        assert!(waits.is_none(), "{waits:?}");
        second.notify("bell", &number).await.unwrap();
        second.stream("log").unwrap().publish(&number).await.unwrap();
        let hear = async || bell.lock().await.recv().await;
        let message = cx.within(drop_at_every_await(&hear, async || {})).await;
        assert_eq!(message.unwrap().unwrap().payload.as_str(), number.to_string());
        let read = async || tail.lock().await.recv().await;
        let event = cx.within(drop_at_every_await(&read, async || {})).await;
        assert_eq!(event.unwrap().unwrap().offset.get(), i64::from(number) + 1);
    }
}

pub(crate) async fn c42_a_store_stays_usable_after_many_dropped_calls(cx: Cx) {
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    for polls in 0..40 {
        // Begun, polled so often, dropped.
        let mut calls = [
            Box::pin(async { queue.claim("w").await.map(drop) })
                as alkstore_core::BoxFuture<'_, Result<(), Error>>,
            Box::pin(async { stream.read(Offset::START, 10).await.map(drop) }),
            Box::pin(async { cx.store.begin_tx().await?.commit().await }),
            Box::pin(async { queue.stats().await.map(drop) }),
            Box::pin(async { cx.store.maintain().await.map(drop) }),
        ];
        for call in &mut calls {
            for _ in 0..polls % 4 {
                if futures_util::FutureExt::now_or_never(call.as_mut()).is_some() {
                    break;
                }
            }
        }
        drop(calls);
        queue.enqueue(&polls).await.unwrap();
    }
    assert_eq!(jobs(&cx.second().await, "q").await, 40, "acknowledged enqueues vanished");
    cx.within(cx.store.close()).await.unwrap();
}

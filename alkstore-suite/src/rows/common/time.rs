//! Instants and durations.

use std::time::{Duration, SystemTime};

use alkstore_core::{
    EnqueueOpts, Error, JobState, Offset, OutboxOpts, QueueOpts, Retried, ScheduleOpts, StoreExt,
    Timestamp,
};

use super::super::tools::before_1970;
use super::super::tx::{claimed, state};
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);
const MILLI: Duration = Duration::from_millis(1);
const NANO: Duration = Duration::from_nanos(1);

fn far_away() -> SystemTime {
    // 9999-12-31T23:59:59.999Z
    SystemTime::UNIX_EPOCH + Duration::from_millis(253_402_300_799_999)
}

pub(crate) async fn c22_durations_round_up_to_the_millisecond(cx: Cx) {
    let now = cx.now().await;
    let (given, rounded) = (MINUTE + NANO, MINUTE + MILLI);
    let expected: SystemTime = now.plus(rounded).into();
    let opts = QueueOpts::new().visibility_timeout(given).retry_base(given).dead_retention(given);
    let queue = cx.store.queue_with("q", opts).unwrap();
    let id = queue.enqueue_with(&1, EnqueueOpts::new().delay(given)).await.unwrap();
    assert_eq!(queue.get_job(id).await.unwrap().unwrap().ready_at, expected, "delay");
    queue.cancel(id).await.unwrap();

    let id = queue.enqueue_with(&1, EnqueueOpts::new().expires(given)).await.unwrap();
    let record = queue.get_job(id).await.unwrap().unwrap();
    assert_eq!(record.expires_at, Some(expected), "expires");
    assert_eq!(record.visibility_timeout, rounded, "visibility_timeout");
    assert_eq!(record.retry_base, rounded, "retry_base");
    assert_eq!(record.dead_retention, Some(rounded), "dead_retention");

    let mut job = queue.claim("w").await.unwrap().unwrap();
    assert_eq!(job.deadline(), expected, "visibility_timeout");
    assert_eq!(job.visibility_timeout(), rounded);
    assert_eq!(job.heartbeat(given).await.unwrap(), expected, "heartbeat");
    job.release(given).await.unwrap();
    assert_eq!(queue.get_job(id).await.unwrap().unwrap().ready_at, expected, "release");
    queue.cancel(id).await.unwrap();

    let mut job = claimed(&cx.store, "q").await;
    let again = job.retry("busy", Some(given)).await.unwrap();
    assert_eq!(again, Retried::Again { at: expected }, "retry");

    let mut lock = cx.store.try_lock("lock", "me", given).await.unwrap().unwrap();
    assert_eq!(lock.expires_at(), expected, "ttl");
    lock.renew(given).await.unwrap();
    assert_eq!(lock.expires_at(), expected, "renew");
    lock.release().await.unwrap();

    let outbox = cx.store.outbox("mails").unwrap();
    let id = outbox.enqueue(&1, OutboxOpts::new().delay(given)).await.unwrap();
    assert_eq!(outbox.get_job(id).await.unwrap().unwrap().ready_at, expected, "outbox");
}

pub(crate) async fn c22_the_options_of_a_schedule_round_up_too(cx: Cx) {
    let (given, rounded) = (MINUTE + NANO, MINUTE + MILLI);
    let with = |length| {
        let opts = ScheduleOpts::new().visibility_timeout(length).retry_base(length);
        opts.dead_retention(length).expires(length)
    };
    let schedule = cx.store.schedule("s", "@every 1h", "q", &1, with(given)).await.unwrap();
    assert_eq!(schedule.opts, with(rounded));
    assert_eq!(cx.store.schedules().await.unwrap()[0].opts, with(rounded));
}

pub(crate) async fn c22_instants_that_callers_give_round_up_too(cx: Cx) {
    let now: SystemTime = cx.now().await.into();
    let queue = cx.store.queue("q").unwrap();
    for (given, rounded) in [(MINUTE, MINUTE), (MINUTE + NANO, MINUTE + MILLI)] {
        let opts = EnqueueOpts::new().run_at(now + given);
        let id = queue.enqueue_with(&1, opts).await.unwrap();
        let record = queue.get_job(id).await.unwrap().unwrap();
        assert_eq!(record.ready_at, now + rounded, "{given:?}");
    }
}

pub(crate) async fn c23_instants_are_whole_milliseconds(cx: Cx) {
    cx.advance(MINUTE).await;
    let whole = |what: &str, instant: SystemTime| {
        let since = instant.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        assert_eq!(since.subsec_nanos() % 1_000_000, 0, "{what}: {since:?}");
    };
    let mut job = claimed(&cx.store, "q").await;
    let record = cx.store.queue("q").unwrap().get_job(job.id()).await.unwrap().unwrap();
    whole("enqueued_at", record.enqueued_at);
    whole("ready_at", record.ready_at);
    whole("deadline", job.deadline());
    let Retried::Again { at } = job.retry("busy", None).await.unwrap() else { panic!() };
    whole("the backoff", at);
    let stream = cx.store.stream("log").unwrap();
    stream.publish(&1).await.unwrap();
    whole("published_at", stream.read(Offset::START, 1).await.unwrap()[0].published_at);
    let lock = cx.store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    whole("expires_at", lock.expires_at());
}

pub(crate) async fn c23_every_store_reads_the_same_clock(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    for step in [Duration::ZERO, MILLI, MINUTE] {
        cx.advance(step).await;
        let now: SystemTime = cx.now().await.into();
        for store in &stores {
            let job = claimed(store, "q").await;
            assert_eq!(job.enqueued_at(), now);
            assert_eq!(job.deadline(), now + job.visibility_timeout());
            let stream = store.stream("log").unwrap();
            let place = stream.publish(&1).await.unwrap().get();
            let before = Offset::try_from(place - 1).unwrap();
            assert_eq!(stream.read(before, 1).await.unwrap()[0].published_at, now);
        }
    }
}

pub(crate) async fn c24_an_instant_is_reached_at_that_very_millisecond(cx: Cx) {
    let opts = QueueOpts::new().visibility_timeout(MINUTE).max_attempts(2);
    let queue = cx.store.queue_with("q", opts).unwrap();
    queue.enqueue_with(&1, EnqueueOpts::new().delay(MINUTE)).await.unwrap();
    cx.advance(MINUTE - MILLI).await;
    assert!(queue.claim("w").await.unwrap().is_none(), "a millisecond early");
    cx.advance(MILLI).await;
    let mut job = queue.claim("w").await.unwrap().expect("due");

    let lock = cx.store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    cx.advance(MINUTE - MILLI).await;
    assert!(queue.claim("w").await.unwrap().is_none(), "its claim holds");
    assert!(cx.store.try_lock("lock", "you", MINUTE).await.unwrap().is_none(), "it is held");
    assert_eq!(cx.store.locks().await.unwrap().len(), 1);
    cx.advance(MILLI).await;
    let late = job.ack().await;
    assert!(matches!(late, Err(Error::ClaimLost { .. })), "at the deadline: {late:?}");
    assert!(queue.claim("w").await.unwrap().is_some(), "claimable at the deadline");
    assert_eq!(cx.store.locks().await.unwrap(), [], "expired");
    let late = lock.release().await;
    assert!(matches!(late, Err(Error::LockLost { .. })), "at the expiry: {late:?}");

    let queue = cx.store.queue_with("r", QueueOpts::new().dead_retention(MINUTE)).unwrap();
    let expires = queue.enqueue_with(&1, EnqueueOpts::new().expires(MINUTE)).await.unwrap();
    cx.advance(MINUTE - MILLI).await;
    assert_eq!(state(&cx.store, "r", expires).await, Some(JobState::Pending));
    cx.advance(MILLI).await;
    assert_eq!(state(&cx.store, "r", expires).await, Some(JobState::Dead), "expired");
    cx.advance(MINUTE - MILLI).await;
    assert_eq!(state(&cx.store, "r", expires).await, Some(JobState::Dead), "retained");
    cx.advance(MILLI).await;
    assert_eq!(state(&cx.store, "r", expires).await, None, "its retention is over");
}

pub(crate) async fn c25_the_longest_duration_is_far_away(cx: Cx) {
    assert_eq!(SystemTime::from(Timestamp::FAR_AWAY), far_away());
    let opts = QueueOpts::new().retry_base(Duration::MAX).dead_retention(Duration::MAX);
    let queue = cx.store.queue_with("q", opts).unwrap();
    let opts = EnqueueOpts::new().delay(Duration::MAX).expires(Duration::MAX);
    let id = queue.enqueue_with(&1, opts).await.unwrap();
    let record = queue.get_job(id).await.unwrap().expect("the job that was just enqueued");
    assert_eq!((record.state, record.ready_at), (JobState::Pending, far_away()));
    assert_eq!(record.expires_at, Some(far_away()));
    assert!(queue.claim("w").await.unwrap().is_none());
    queue.cancel(id).await.unwrap();

    let id = queue.enqueue_with(&1, EnqueueOpts::new().expires(Duration::MAX)).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().expect("it doesn't expire");
    let again = job.retry("busy", Some(Duration::MAX)).await.unwrap();
    assert_eq!(again, Retried::Again { at: far_away() });
    queue.cancel(id).await.unwrap();

    let id = queue.enqueue(&1).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    job.release(Duration::MAX).await.unwrap();
    assert_eq!(queue.get_job(id).await.unwrap().unwrap().ready_at, far_away());
    queue.cancel(id).await.unwrap();

    queue.enqueue(&1).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    let Retried::Again { at } = job.retry("busy", None).await.unwrap() else { panic!() };
    let hour = cx.now().await.plus(Duration::from_secs(3600));
    assert!(at <= hour.into(), "the backoff ends at an hour");
    cx.advance(Duration::from_secs(3600)).await;
    let mut job = queue.claim("w").await.unwrap().expect("an hour has passed");
    job.fail("broken").await.unwrap();
    cx.advance(Duration::from_secs(100 * 365 * 24 * 3600)).await;
    assert_eq!(state(&cx.store, "q", job.id()).await, Some(JobState::Dead), "retained for ever");
}

pub(crate) async fn c25_the_latest_instant_is_far_away(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let beyond = far_away() + Duration::from_secs(1_000 * 365 * 24 * 3600);
    let id = queue.enqueue_with(&1, EnqueueOpts::new().run_at(beyond)).await.unwrap();
    assert_eq!(queue.get_job(id).await.unwrap().unwrap().ready_at, far_away());
    assert_eq!(queue.stats().await.unwrap().delayed, 1);
}

pub(crate) async fn c25_an_instant_before_1970_counts_as_1970(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let epoch = SystemTime::UNIX_EPOCH;
    let mut records = Vec::new();
    for at in [epoch, before_1970(Duration::from_secs(100 * 365 * 24 * 3600))] {
        let id = queue.enqueue_with(&1, EnqueueOpts::new().run_at(at)).await.unwrap();
        records.push(queue.get_job(id).await.unwrap().expect("the job that was just enqueued"));
    }
    assert_eq!(records[0].ready_at, records[1].ready_at);
    let jobs = queue.claim_batch("w", 10).await.unwrap();
    let order: Vec<_> = jobs.iter().map(alkstore_core::Job::id).collect();
    assert_eq!(order, [records[0].id, records[1].id], "both are ready, in the order of their ids");
}

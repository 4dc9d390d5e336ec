//! Extents, leases, attempts, priorities.

use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, JobFilter, MAX_LEASE, Offset, OutboxOpts, QueueOpts, Result, ScheduleOpts,
    StoreExt,
};

use super::super::tx::{claimed, jobs};
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) async fn c26_an_extent_of_0_is_the_empty_result(cx: Cx) {
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    queue.enqueue(&1).await.unwrap();
    stream.publish(&1).await.unwrap();
    assert!(queue.claim_batch("w", 0).await.unwrap().is_empty());
    assert_eq!(queue.jobs(JobFilter::new().limit(0)).await.unwrap(), []);
    assert_eq!(stream.read(Offset::START, 0).await.unwrap(), []);
    assert_eq!(stream.consumer("c").unwrap().read(0).await.unwrap(), []);
    assert_eq!(queue.enqueue_many(vec![]).await.unwrap(), []);
    assert_eq!(stream.publish_many(vec![]).await.unwrap(), []);
    assert!(queue.ack_batch(&mut []).await.unwrap().is_empty());
    assert_eq!(queue.requeue_dead(vec![]).await.unwrap(), 0);
    assert_eq!(queue.purge_dead(vec![]).await.unwrap(), 0);
    let job = queue.claim("w").await.unwrap().expect("nothing was claimed before");
    assert_eq!(job.attempt(), 1);
    let streams = cx.store.streams().await.unwrap();
    assert_eq!(streams.len(), 1, "publishing nothing publishes nothing: {streams:?}");
}

pub(crate) async fn c26_the_largest_extent_is_everything(cx: Cx) {
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    for number in 0..3 {
        queue.enqueue(&number).await.unwrap();
        stream.publish(&number).await.unwrap();
    }
    assert_eq!(queue.jobs(JobFilter::new().limit(usize::MAX)).await.unwrap().len(), 3);
    assert_eq!(stream.read(Offset::START, usize::MAX).await.unwrap().len(), 3);
    assert_eq!(stream.consumer("c").unwrap().read(usize::MAX).await.unwrap().len(), 3);
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_eq!(stream.read_tx(&mut tx, Offset::START, usize::MAX).await.unwrap().len(), 3);
    tx.rollback().await.unwrap();
    assert_eq!(queue.claim_batch("w", usize::MAX).await.unwrap().len(), 3);
}

pub(crate) async fn c27_a_lease_is_1_ms_to_10_years(cx: Cx) {
    let mut job = claimed(&cx.store, "q").await;
    let mut lock = cx.store.try_lock("held", "me", MINUTE).await.unwrap().unwrap();
    let (deadline, expiry) = (job.deadline(), lock.expires_at());
    let above = MAX_LEASE + Duration::from_nanos(1);
    for lease in [Duration::ZERO, Duration::from_nanos(999_999), above, Duration::MAX] {
        let queue_opts = QueueOpts::new().visibility_timeout(lease);
        let schedule_opts = ScheduleOpts::new().visibility_timeout(lease);
        let answers = [
            ("queue_with", cx.store.queue_with("q", queue_opts).map(drop)),
            ("try_lock", cx.store.try_lock("free", "me", lease).await.map(drop)),
            ("lock", cx.store.lock("free", "me", lease).await.map(drop)),
            ("renew", lock.renew(lease).await),
            ("heartbeat", job.heartbeat(lease).await.map(drop)),
            (
                "schedule",
                cx.store.schedule("s", "@every 1h", "q", &1, schedule_opts).await.map(drop),
            ),
        ];
        for (call, answer) in answers {
            let refused = matches!(answer, Err(Error::InvalidArgument { .. }));
            assert!(refused, "{call} of {lease:?}: {answer:?}");
        }
    }
    assert_eq!((job.deadline(), lock.expires_at()), (deadline, expiry), "nothing was written");
    let record = cx.store.queue("q").unwrap().get_job(job.id()).await.unwrap().unwrap();
    assert_eq!(record.deadline, Some(deadline), "nothing was written");
    assert_eq!(cx.store.locks().await.unwrap().len(), 1, "nothing was written");
    assert_eq!(cx.store.schedules().await.unwrap(), [], "nothing was written");

    for lease in [Duration::from_millis(1), MAX_LEASE] {
        let now = cx.now().await;
        let queue =
            cx.store.queue_with("ends", QueueOpts::new().visibility_timeout(lease)).unwrap();
        queue.enqueue(&1).await.unwrap();
        let mut other = queue.claim("w").await.unwrap().unwrap();
        assert_eq!(other.deadline(), now.plus(lease).into());
        assert_eq!(other.heartbeat(lease).await.unwrap(), now.plus(lease).into());
        other.ack().await.unwrap();
        let mut taken = cx.store.try_lock("ends", "me", lease).await.unwrap().unwrap();
        assert_eq!(taken.expires_at(), now.plus(lease).into());
        taken.renew(lease).await.unwrap();
        taken.release().await.unwrap();
    }
}

pub(crate) async fn c28_attempts_are_at_least_1(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let none = || EnqueueOpts::new().max_attempts(0);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let staged = queue.enqueue_tx(&mut tx, &1, none()).await.map(drop);
    tx.rollback().await.unwrap();
    let many = vec![
        alkstore_core::NewJob::new(&1).unwrap(),
        alkstore_core::NewJob::new(&2).unwrap().opts(none()),
    ];
    let outbox = cx.store.outbox("mails").unwrap();
    let schedule_opts = ScheduleOpts::new().max_attempts(0);
    let answers: [(&str, Result<()>); 6] = [
        ("queue_with", cx.store.queue_with("q", QueueOpts::new().max_attempts(0)).map(drop)),
        ("enqueue_with", queue.enqueue_with(&1, none()).await.map(drop)),
        ("enqueue_many", queue.enqueue_many(many).await.map(drop)),
        ("enqueue_tx", staged),
        ("outbox", outbox.enqueue(&1, OutboxOpts::new().max_attempts(0)).await.map(drop)),
        ("schedule", cx.store.schedule("s", "@every 1h", "q", &1, schedule_opts).await.map(drop)),
    ];
    for (call, answer) in answers {
        assert!(matches!(answer, Err(Error::InvalidArgument { .. })), "{call}: {answer:?}");
    }
    assert_eq!(jobs(&cx.store, "q").await, 0, "nothing was written");
    let most = EnqueueOpts::new().max_attempts(u32::MAX);
    queue.enqueue_with(&1, most).await.unwrap();
    let job = queue.claim("w").await.unwrap().unwrap();
    assert_eq!(job.max_attempts(), u32::MAX);
}

pub(crate) async fn c29_any_priority_is_fine_and_higher_goes_first(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let priorities = [0, i32::MIN, 1, i32::MAX, -1];
    for priority in priorities {
        queue.enqueue_with(&priority, EnqueueOpts::new().priority(priority)).await.unwrap();
    }
    let jobs = queue.claim_batch("w", 10).await.unwrap();
    let order: Vec<i32> = jobs.iter().map(|job| job.decode().unwrap()).collect();
    assert_eq!(order, [i32::MAX, 1, 0, -1, i32::MIN]);
}

//! What is an error, which one, and what is a value instead.

use std::error::Error as _;
use std::time::Duration;

use alkstore_core::{Error, JobFilter, JobId, StoreExt};

use super::super::tx::claimed;
use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) async fn c30_only_unavailable_is_retryable(_cx: Cx) {
    let id = JobId::try_from(1).unwrap();
    let name = || "q".to_owned();
    assert!(Error::unavailable("busy").is_retryable());
    let others = [
        Error::InvalidName { name: name(), reason: "it is empty" },
        Error::ReservedName { name: name(), prefix: "__alkstore_" },
        Error::InvalidSpec { spec: name(), reason: "it has no unit" },
        Error::invalid_argument("limit", 0, "more"),
        Error::PayloadTooLarge { size: 2, limit: 1 },
        Error::Codec { message: name(), source: None },
        Error::ClaimLost { queue: name(), id },
        Error::LockLost { name: name() },
        Error::LeadershipLost { lock: name() },
        Error::Lagged { missed: 1 },
        Error::Closed,
        Error::commit_unknown("the connection broke"),
        Error::engine("corrupt"),
    ];
    for error in others {
        assert!(!error.is_retryable(), "{error:?}");
    }
}

pub(crate) async fn c31_the_cause_is_kept_as_the_source(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    queue.enqueue(&"text").await.unwrap();
    let job = queue.claim("w").await.unwrap().unwrap();
    let error = job.decode::<u32>().unwrap_err();
    let source = error.source().expect("the error of the JSON library");
    assert!(error.to_string().contains(&source.to_string()), "{error} doesn't say {source}");
}

pub(crate) async fn c32_no_work_is_a_value(cx: Cx) {
    let store = &cx.store;
    let (queue, stream) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let outbox = store.outbox("mails").unwrap();
    let id = JobId::try_from(7).unwrap();
    assert!(queue.claim("w").await.unwrap().is_none());
    assert!(queue.claim_batch("w", 10).await.unwrap().is_empty());
    assert!(!outbox.run_once("w", async |_| Ok::<_, String>(())).await.unwrap());
    assert_eq!(queue.get_job(id).await.unwrap(), None);
    assert_eq!(queue.jobs(JobFilter::new()).await.unwrap(), []);
    assert!(!queue.cancel(id).await.unwrap());
    assert_eq!(queue.requeue_dead(id).await.unwrap(), 0);
    assert_eq!(queue.purge_dead(id).await.unwrap(), 0);
    assert_eq!(stream.read(alkstore_core::Offset::START, 10).await.unwrap(), []);
    assert_eq!(stream.trim_to(super::super::tx::offset(9)).await.unwrap(), 0);
    assert!(!stream.forget_consumer("nobody").await.unwrap());
    assert!(!store.unschedule("nothing").await.unwrap());
    assert!(!store.pause_schedule("nothing").await.unwrap());
    assert!(!store.resume_schedule("nothing").await.unwrap());
    assert_eq!(store.schedules().await.unwrap(), []);
    assert_eq!(store.queues().await.unwrap(), []);
    assert_eq!(store.streams().await.unwrap(), []);
    assert_eq!(store.locks().await.unwrap(), []);
    assert_eq!(store.maintain().await.unwrap(), alkstore_core::Maintenance::default());
    let held = store.try_lock("lock", "me", MINUTE).await.unwrap();
    assert!(store.try_lock("lock", "you", MINUTE).await.unwrap().is_none());
    drop(held);
}

pub(crate) async fn c33_a_bool_says_whether_something_changed(cx: Cx) {
    let store = &cx.store;
    let (queue, outbox) = (store.queue("q").unwrap(), store.outbox("mails").unwrap());
    store.schedule("s", "@every 1h", "q", &1, Default::default()).await.unwrap();
    for round in 0..2 {
        assert!(!queue.resume().await.unwrap(), "round {round}");
        assert!(queue.pause().await.unwrap(), "round {round}");
        assert!(!queue.pause().await.unwrap(), "round {round}");
        assert!(queue.resume().await.unwrap(), "round {round}");
        assert!(outbox.pause().await.unwrap(), "round {round}");
        assert!(!outbox.pause().await.unwrap(), "round {round}");
        assert!(outbox.resume().await.unwrap(), "round {round}");
        assert!(!store.resume_schedule("s").await.unwrap(), "round {round}");
        assert!(store.pause_schedule("s").await.unwrap(), "round {round}");
        assert!(!store.pause_schedule("s").await.unwrap(), "round {round}");
        assert!(store.resume_schedule("s").await.unwrap(), "round {round}");
    }
    assert!(store.unschedule("s").await.unwrap());
    assert!(!store.unschedule("s").await.unwrap());
    let id = queue.enqueue(&1).await.unwrap();
    assert!(queue.cancel(id).await.unwrap());
    assert!(!queue.cancel(id).await.unwrap());
    let stream = store.stream("log").unwrap();
    stream.publish(&1).await.unwrap();
    stream.consumer("c").unwrap().save_offset(super::super::tx::offset(1)).await.unwrap();
    assert!(stream.forget_consumer("c").await.unwrap());
    assert!(!stream.forget_consumer("c").await.unwrap());
}

pub(crate) async fn c34_what_could_be_lost_unnoticed_is_an_error(cx: Cx) {
    let mut job = claimed(&cx.store, "q").await;
    let id = job.id();
    job.ack().await.unwrap();
    let error = job.ack().await.expect_err("it was acked before");
    assert!(
        matches!(&error, Error::ClaimLost { queue, id: of } if queue == "q" && *of == id),
        "{error:?}"
    );
    let mut lock = cx.store.try_lock("lock", "me", MINUTE).await.unwrap().unwrap();
    cx.advance(MINUTE).await;
    let error = lock.renew(MINUTE).await.expect_err("it has expired");
    assert!(matches!(&error, Error::LockLost { name } if name == "lock"), "{error:?}");
    let error = lock.release().await.expect_err("it has expired");
    assert!(matches!(&error, Error::LockLost { name } if name == "lock"), "{error:?}");
}

//! Rows of docs/architecture/tx.md.

mod closure;
mod dropped;
mod foreign;
mod lifecycle;
mod publish;
mod race;
mod settle;
mod unique;
mod usable;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, Job, JobFilter, JobId, JobState, NewEvent, NewJob, Offset, OutboxOpts,
    PublishOpts, Result, Retried, Store, StoreExt, Tx,
};

pub(crate) use closure::*;
pub(crate) use dropped::*;
pub(crate) use foreign::*;
pub(crate) use lifecycle::*;
pub(crate) use publish::*;
pub(crate) use race::*;
pub(crate) use settle::*;
pub(crate) use unique::*;
pub(crate) use usable::*;

use crate::cx::Cx;
use crate::factory::OpenOptions;

/// How far [`Cx::advancing`] goes at once where a lock timeout has to run out.
pub(crate) const STEP: Duration = Duration::from_millis(10);

/// A further store that waits 30 ms for somebody else's transaction.
pub(crate) async fn impatient(cx: &Cx) -> Arc<dyn Store> {
    let lock_timeout = Some(Duration::from_millis(30));
    cx.open(OpenOptions { lock_timeout, ..OpenOptions::default() }).await
}

/// What an impatient store does beside an open transaction: `None` where the engine keeps every
/// other writer waiting meanwhile.
pub(crate) async fn beside<T>(cx: &Cx, work: impl Future<Output = Result<T>>) -> Option<T> {
    match cx.advancing(STEP, work).await {
        Ok(value) => Some(value),
        Err(Error::Unavailable { .. }) if cx.capabilities().one_writer => None,
        Err(error) => panic!("beside an open transaction: {error}"),
    }
}

/// One job of a queue, claimed.
pub(crate) async fn claimed(store: &Arc<dyn Store>, queue: &str) -> Job {
    let queue = store.queue(queue).unwrap();
    queue.enqueue(&queue.name()).await.unwrap();
    queue.claim("w").await.unwrap().expect("the job that was just enqueued")
}

/// How many jobs a queue has, dead ones included.
pub(crate) async fn jobs(store: &Arc<dyn Store>, queue: &str) -> usize {
    let filter = JobFilter::new().limit(10_000);
    store.queue(queue).unwrap().jobs(filter).await.unwrap().len()
}

/// The payloads of a stream, in order; its offsets have to be contiguous from 1.
pub(crate) async fn log(store: &Arc<dyn Store>, stream: &str) -> Vec<String> {
    let events = store.stream(stream).unwrap().read(Offset::START, 10_000).await.unwrap();
    for (event, place) in events.iter().zip(1..) {
        assert_eq!(event.offset.get(), place, "a place of stream {stream} is missing");
    }
    events.iter().map(|event| event.payload.decode().unwrap()).collect()
}

pub(crate) fn offset(place: i64) -> Offset {
    Offset::try_from(place).unwrap()
}

/// The claims and the event that one of every staged operation needs.
struct Everything {
    acked: Job,
    retried: Job,
    failed: Job,
}

/// What a store shows of them.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    enqueued: usize,
    deliveries: usize,
    acked: Option<JobState>,
    retried: Option<JobState>,
    failed: Option<JobState>,
    events: usize,
    saved: Offset,
}

impl Everything {
    const CHANNEL: &'static str = "bell";

    async fn new(store: &Arc<dyn Store>) -> Self {
        store.stream("log").unwrap().publish(&"before").await.unwrap();
        Self {
            acked: claimed(store, "done").await,
            retried: claimed(store, "again").await,
            failed: claimed(store, "failed").await,
        }
    }

    async fn stage(&mut self, store: &Arc<dyn Store>, tx: &mut Tx<'_>) {
        let (queue, outbox) = (store.queue("new").unwrap(), store.outbox("mails").unwrap());
        let stream = store.stream("log").unwrap();
        queue.enqueue_tx(tx, &"one", EnqueueOpts::new()).await.unwrap();
        let two = vec![NewJob::new("two").unwrap(), NewJob::new("three").unwrap()];
        let ids = queue.enqueue_many_tx(tx, two).await.unwrap();
        assert!(ids.len() == 2 && ids[0] < ids[1], "{ids:?}");
        outbox.enqueue_tx(tx, &"mail", OutboxOpts::new()).await.unwrap();
        self.acked.ack_tx(tx).await.unwrap();
        let retried = self.retried.retry_tx(tx, "busy", Some(Duration::ZERO)).await.unwrap();
        assert!(matches!(retried, Retried::Again { .. }), "{retried:?}");
        self.failed.fail_tx(tx, "broken").await.unwrap();
        stream.publish_tx(tx, &"first", PublishOpts::new()).await.unwrap();
        let more = vec![NewEvent::new("second").unwrap(), NewEvent::new("third").unwrap()];
        stream.publish_many_tx(tx, more).await.unwrap();
        stream.consumer("reader").unwrap().save_offset_tx(tx, offset(1)).await.unwrap();
        tx.notify_tx(Self::CHANNEL, &"rung").await.unwrap();
    }

    async fn seen_by(&self, store: &Arc<dyn Store>) -> Seen {
        let stream = store.stream("log").unwrap();
        let mails = store.outbox("mails").unwrap();
        Seen {
            enqueued: jobs(store, "new").await,
            deliveries: mails.jobs(JobFilter::new()).await.unwrap().len(),
            acked: state(store, "done", self.acked.id()).await,
            retried: state(store, "again", self.retried.id()).await,
            failed: state(store, "failed", self.failed.id()).await,
            events: stream.read(Offset::START, 100).await.unwrap().len(),
            saved: stream.consumer("reader").unwrap().offset().await.unwrap(),
        }
    }

    fn nothing() -> Seen {
        Seen {
            enqueued: 0,
            deliveries: 0,
            acked: Some(JobState::Claimed),
            retried: Some(JobState::Claimed),
            failed: Some(JobState::Claimed),
            events: 1,
            saved: Offset::START,
        }
    }

    fn whole() -> Seen {
        Seen {
            enqueued: 3,
            deliveries: 1,
            acked: None,
            retried: Some(JobState::Pending),
            failed: Some(JobState::Dead),
            events: 4,
            saved: offset(1),
        }
    }
}

pub(crate) async fn state(store: &Arc<dyn Store>, queue: &str, id: JobId) -> Option<JobState> {
    store.queue(queue).unwrap().get_job(id).await.unwrap().map(|job| job.state)
}

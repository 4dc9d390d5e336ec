//! Every way on which a payload enters a store, and how it comes out again.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, IntoPayload, Job, JobFilter, Listener, NewEvent, NewJob, Offset, OutboxOpts,
    Payload, PublishOpts, Result, ScheduleOpts, StopToken, Store, StoreExt,
};

use crate::cx::Cx;

/// How many ways there are.
pub(super) const WAYS: usize = 15;

/// Each way has names of its own, so that what came in on one can't be taken for another's.
pub(super) struct Paths {
    store: Arc<dyn Store>,
    notified: Listener,
    staged: Listener,
}

impl Paths {
    pub(super) async fn new(store: &Arc<dyn Store>) -> Self {
        Self {
            store: store.clone(),
            notified: store.listen("notify").await.unwrap(),
            staged: store.listen("notify_tx").await.unwrap(),
        }
    }

    /// Sends a payload on every way, and says what each answered.
    pub(super) async fn send<P>(
        &self,
        make: impl Fn() -> P + Send + Sync,
    ) -> Vec<(&'static str, Result<()>)>
    where
        P: IntoPayload + Send,
    {
        let store = &self.store;
        let (queue, stream) =
            (|name| store.queue(name).unwrap(), |name| store.stream(name).unwrap());
        let outbox = |name| store.outbox(name).unwrap();
        let mut answers = vec![
            ("enqueue", queue("enqueue").enqueue(make()).await.map(drop)),
            (
                "enqueue_with",
                queue("enqueue_with").enqueue_with(make(), EnqueueOpts::new()).await.map(drop),
            ),
            (
                "enqueue_many",
                match NewJob::new(make()) {
                    Ok(job) => {
                        let jobs = vec![NewJob::new("small").unwrap(), job];
                        queue("enqueue_many").enqueue_many(jobs).await.map(drop)
                    }
                    Err(error) => Err(error),
                },
            ),
            ("outbox", outbox("outbox").enqueue(make(), OutboxOpts::new()).await.map(drop)),
            ("publish", stream("publish").publish(make()).await.map(drop)),
            (
                "publish_with",
                stream("publish_with").publish_with(make(), PublishOpts::new()).await.map(drop),
            ),
            (
                "publish_many",
                match NewEvent::new(make()) {
                    Ok(event) => {
                        let events = vec![NewEvent::new("small").unwrap(), event];
                        stream("publish_many").publish_many(events).await.map(drop)
                    }
                    Err(error) => Err(error),
                },
            ),
            ("notify", store.notify("notify", make()).await),
            (
                "schedule",
                store
                    .schedule("schedule", "@every 1h", "schedule", make(), ScheduleOpts::new())
                    .await
                    .map(drop),
            ),
        ];

        let mut tx = store.begin_tx().await.unwrap();
        let tx_ref = &mut tx;
        let plain = EnqueueOpts::new();
        let enqueued = queue("enqueue_tx").enqueue_tx(tx_ref, make(), plain).await;
        answers.push(("enqueue_tx", enqueued.map(drop)));
        let many = match NewJob::new(make()) {
            Ok(job) => queue("enqueue_many_tx").enqueue_many_tx(tx_ref, vec![job]).await.map(drop),
            Err(error) => Err(error),
        };
        answers.push(("enqueue_many_tx", many));
        let delivery = outbox("outbox_tx").enqueue_tx(tx_ref, make(), OutboxOpts::new()).await;
        answers.push(("outbox_tx", delivery.map(drop)));
        let published = stream("publish_tx").publish_tx(tx_ref, make(), PublishOpts::new()).await;
        answers.push(("publish_tx", published));
        let many = match NewEvent::new(make()) {
            Ok(event) => stream("publish_many_tx").publish_many_tx(tx_ref, vec![event]).await,
            Err(error) => Err(error),
        };
        answers.push(("publish_many_tx", many));
        answers.push(("notify_tx", tx_ref.notify_tx("notify_tx", make()).await));
        tx.commit().await.unwrap();
        assert_eq!(answers.len(), WAYS);
        answers
    }

    /// What came out at the end of every way on which exactly one payload was sent.
    pub(super) async fn received(&mut self, cx: &Cx) -> Vec<(&'static str, Payload)> {
        let mut received = Vec::new();
        for name in ["enqueue", "enqueue_with", "enqueue_many", "enqueue_tx", "enqueue_many_tx"] {
            let queue = self.store.queue(name).unwrap();
            let records = queue.jobs(JobFilter::new()).await.unwrap();
            let record = records.last().unwrap_or_else(|| panic!("nothing came on {name}"));
            let job = queue.claim_batch("w", 10).await.unwrap().pop().expect("a job to claim");
            assert_eq!(job.payload(), &record.payload, "claimed and looked up on {name}");
            let found = queue.get_job(job.id()).await.unwrap().expect("a claimed job");
            received.extend([(name, job.payload().clone()), (name, found.payload)]);
        }
        for name in ["outbox", "outbox_tx"] {
            let outbox = self.store.outbox(name).unwrap();
            let mut delivered = None;
            let deliver = async |delivery: alkstore_core::Delivery| {
                delivered = Some(delivery.payload().clone());
                Ok::<_, String>(())
            };
            assert!(outbox.run_once("w", deliver).await.unwrap(), "nothing came on {name}");
            received.push((name, delivered.expect("the delivery ran")));
        }
        let streams = ["publish", "publish_with", "publish_many", "publish_tx", "publish_many_tx"];
        for name in streams {
            let stream = self.store.stream(name).unwrap();
            let event = stream.read(Offset::START, 10).await.unwrap().pop();
            let event = event.unwrap_or_else(|| panic!("nothing came on {name}"));
            let before = Offset::try_from(event.offset.get() - 1).unwrap();
            let mut tail = stream.subscribe(before).await.unwrap();
            let live = cx.within(tail.recv()).await.unwrap().unwrap();
            received.extend([(name, event.payload), (name, live.payload)]);
        }
        let message = cx.within(self.notified.recv()).await.unwrap().unwrap();
        received.push(("notify", message.payload));
        let message = cx.within(self.staged.recv()).await.unwrap().unwrap();
        received.push(("notify_tx", message.payload));
        let schedule = self.store.schedules().await.unwrap().pop().expect("a schedule");
        received.push(("schedule", schedule.payload));
        received.push(("schedule", fire(cx, &self.store, "schedule").await.payload().clone()));
        received
    }

    /// Nothing came out anywhere.
    pub(super) async fn assert_empty(&mut self, cx: &Cx) {
        assert_eq!(self.store.queues().await.unwrap(), [], "a job was written");
        assert_eq!(self.store.streams().await.unwrap(), [], "an event was written");
        assert_eq!(self.store.schedules().await.unwrap(), [], "a schedule was written");
        for listener in [&mut self.notified, &mut self.staged] {
            let heard = cx.briefly(&mut Box::pin(listener.recv())).await;
            assert!(heard.is_none(), "{heard:?}");
        }
    }
}

/// Runs the schedules after an hour and returns the job that one of them has put into a queue.
pub(super) async fn fire(cx: &Cx, store: &Arc<dyn Store>, queue: &str) -> Job {
    // Before it runs: a lease of the scheduler wouldn't survive the hour.
    cx.advance(Duration::from_secs(3600)).await;
    let stop = StopToken::new();
    let (runner, stopped) = (store.clone(), stop.clone());
    let running = cx.spawn(async move { runner.run_schedules(stopped).await });
    let queue = store.queue(queue).unwrap();
    let job = cx.within(queue.next("w")).await.unwrap();
    stop.stop();
    running.join().await.unwrap();
    job
}

//! What becomes of a job after its handler.

use std::time::{Duration, SystemTime};

use alkstore::prelude::*;
use alkstore_core::{Settled, Settlement};
use alkstore_suite::fault::{Layer, layered};
use async_trait::async_trait;

use crate::stage::{Gate, Log, Run, Stage, on_every_engine, secs};

async fn as_told(what: String) -> Result<Outcome, String> {
    Ok(match what.as_str() {
        "done" => Outcome::Done,
        "error" => return Err("the line is busy".to_owned()),
        "later" => Outcome::retry_after("not before noon", secs(7_200)),
        "discard" => Outcome::discard("no such address"),
        "snooze" => Outcome::snooze(secs(3_600)),
        _ => panic!("I don't know {what:?}"),
    })
}

fn lies_within(at: SystemTime, from: SystemTime, least: Duration, most: Duration) -> bool {
    at >= from + least && at <= from + most
}

#[tokio::test]
async fn every_outcome_settles_the_job_as_it_says() {
    on_every_engine(async |stage: Stage| {
        let queue = stage.queue("q");
        let mut ids = Vec::new();
        for what in ["done", "error", "later", "discard", "snooze", "nonsense"] {
            ids.push(queue.enqueue(&what).await.unwrap());
        }
        let run = Run::start(Worker::builder(&stage.store).queue("q", as_told));
        let mut records = Vec::new();
        for id in ids {
            records.push(stage.settled("q", id).await);
        }
        assert!(records[0].is_none(), "done");
        let record = |n: usize| records[n].as_ref().unwrap();
        let (error, later, discard, snooze, nonsense) =
            (record(1), record(2), record(3), record(4), record(5));
        let pending = |job: &JobRecord| (job.state == JobState::Pending, job.attempt);
        let said = |job: &JobRecord| job.last_error.clone().unwrap_or_default();

        assert_eq!((pending(error), said(error).as_str()), ((true, 1), "the line is busy"));
        assert!(lies_within(error.ready_at, error.enqueued_at, secs(2), secs(5)), "by the backoff");
        assert_eq!((pending(later), said(later).as_str()), ((true, 1), "not before noon"));
        assert_eq!(later.ready_at, later.enqueued_at + secs(7_200));
        assert_eq!((discard.state, discard.attempt), (JobState::Dead, 1));
        assert_eq!(said(discard), "no such address");
        assert_eq!(pending(snooze), (true, 0), "no attempt is counted");
        assert_eq!(snooze.ready_at, snooze.enqueued_at + secs(3_600));
        assert_eq!(pending(nonsense), (true, 1));
        assert_eq!(said(nonsense), "the handler panicked: I don't know \"nonsense\"");
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_payload_that_cannot_be_decoded_backs_off_and_goes_dead_with_the_reason() {
    on_every_engine(async |stage: Stage| {
        let id = stage.queue("q").enqueue(&"a word").await.unwrap();
        let calls = Log::new();
        let handler = {
            let calls = calls.clone();
            move |n: u64| {
                calls.add(n);
                async {}
            }
        };
        let run = Run::start(Worker::builder(&stage.store).queue("q", handler));
        let first = stage.settled("q", id).await.unwrap();
        assert_eq!((first.state, first.attempt), (JobState::Pending, 1));
        assert!(lies_within(first.ready_at, first.enqueued_at, secs(2), secs(5)));
        let dead = async || stage.job("q", id).await.unwrap().state == JobState::Dead;
        stage.advancing(secs(1), dead).await;
        let dead = stage.job("q", id).await.unwrap();
        assert_eq!(dead.attempt, 3);
        let error = dead.last_error.unwrap();
        assert!(error.starts_with("payload can't be converted: invalid type: string"), "{error}");
        assert_eq!(calls.len(), 0);
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_job_acked_in_a_transaction_is_settled_with_it() {
    async fn in_one(mut job: JobContext, n: u32) -> Result<()> {
        let events = job.store().stream("effects")?;
        let mut tx = job.store().begin_tx().await?;
        events.publish_tx(&mut tx, &n, PublishOpts::new()).await?;
        job.ack_and_commit(tx).await
    }
    async fn by_a_closure(mut job: JobContext, n: u32) -> Result<()> {
        let (store, events) = (job.store().clone(), job.store().stream("effects")?);
        let staged = store.with_tx(|tx| {
            Box::pin(async {
                events.publish_tx(tx, &n, PublishOpts::new()).await?;
                job.ack_tx(tx).await
            })
        });
        staged.await
    }
    on_every_engine(async |stage: Stage| {
        stage.queue("a").enqueue(&1).await.unwrap();
        stage.queue("b").enqueue(&2).await.unwrap();
        let builder = Worker::builder(&stage.store).queue("a", in_one).queue("b", by_a_closure);
        let run = Run::start(builder);
        let events = stage.store.stream("effects").unwrap();
        stage
            .until(async || {
                events.info().await.unwrap().count == 2
                    && stage.store.queues().await.unwrap().is_empty()
            })
            .await;
        stage.until(async || run.worker.health().unsettled == 0).await;
        assert_eq!(run.worker.health().last_fault, None);
        run.stop(&stage).await.unwrap();
        assert_eq!(events.info().await.unwrap().count, 2);
        assert!(stage.store.queues().await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn an_ack_whose_transaction_is_not_committed_counts_as_failed() {
    async fn forgets(mut job: JobContext, ends_well: bool) -> Result<()> {
        let mut tx = job.store().begin_tx().await?;
        let events = job.store().stream("effects")?;
        events.publish_tx(&mut tx, &1, PublishOpts::new()).await?;
        job.ack_tx(&mut tx).await?;
        if ends_well { Ok(()) } else { Err(Error::engine("changed my mind")) }
    }
    on_every_engine(async |stage: Stage| {
        let queue = stage.queue("q");
        let forgotten = queue.enqueue(&true).await.unwrap();
        let failed = queue.enqueue(&false).await.unwrap();
        let run = Run::start(Worker::builder(&stage.store).queue("q", forgets));
        let error = async |id| stage.settled("q", id).await.unwrap().last_error.unwrap();
        assert!(error(forgotten).await.contains("was not committed"));
        assert!(error(failed).await.ends_with("changed my mind"));
        assert_eq!(stage.store.stream("effects").unwrap().info().await.unwrap().count, 0);
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_dropped_and_counts_as_failed() {
    on_every_engine(async |stage: Stage| {
        let id = stage.queue("q").enqueue(&()).await.unwrap();
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |(): ()| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        };
        let opts = HandlerOpts::new().timeout(secs(10));
        let run = Run::start(Worker::builder(&stage.store).queue_with("q", opts, handler));
        stage.until(async || gate.inside() == 1).await;
        stage.settle().await;
        stage.advance(secs(9)).await;
        stage.settle().await;
        assert_eq!(gate.inside(), 1, "its time isn't over");
        stage.advancing_slowly(secs(1), async || gate.dropped() == 1).await;
        let record = stage.settled("q", id).await.unwrap();
        assert_eq!(gate.dropped(), 1);
        assert_eq!(record.last_error.unwrap(), "the handler timed out after 10s");
        assert_eq!((record.state, record.attempt), (JobState::Pending, 1));
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_handler_sees_its_job() {
    on_every_engine(async |stage: Stage| {
        let headers = Headers::new([("traceparent", "00-4bf9-00f0-01")]).unwrap();
        let opts = EnqueueOpts::new().headers(headers).max_attempts(7);
        let id = stage.queue("q").enqueue_with(&["ada"], opts).await.unwrap();
        let (seen, log) = (Log::new(), Log::new());
        let handler = {
            let seen = seen.clone();
            move |job: JobContext, names: Vec<String>| {
                let trace = job.headers().get("traceparent").map(str::to_owned);
                let known = (job.id(), job.queue().to_owned(), job.attempt(), job.max_attempts());
                let times = (job.deadline(), job.enqueued_at() + secs(300));
                let held = job.remaining() > secs(200) && !job.stop_token().is_stopped();
                seen.add((known, trace, names, times.0 == times.1, held));
                async {}
            }
        };
        let plain = {
            let log = log.clone();
            move |n: u32| {
                log.add(n);
                async {}
            }
        };
        stage.queue("plain").enqueue(&5).await.unwrap();
        let builder = Worker::builder(&stage.store).queue("q", handler).queue("plain", plain);
        let run = Run::start(builder);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        run.stop(&stage).await.unwrap();
        let known = (id, "q".to_owned(), 1, 7);
        let trace = Some("00-4bf9-00f0-01".to_owned());
        assert_eq!(seen.entries(), [(known, trace, vec!["ada".to_owned()], true, true)]);
        assert_eq!(log.entries(), [5]);
    })
    .await;
}

/// Holds the first call that settles, and writes down how many each had.
struct SlowWriter {
    gate: Gate,
    calls: Log<usize>,
}

#[async_trait]
impl Layer for SlowWriter {
    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        self.calls.add(items.len());
        if self.calls.len() == 1 {
            self.gate.pass().await;
        }
        inner.settle_jobs(items).await
    }
}

#[tokio::test]
async fn what_ends_while_a_batch_is_written_goes_into_the_next() {
    on_every_engine(async |stage: Stage| {
        let (gate, calls, handled) = (Gate::new(), Log::new(), Log::new());
        let store =
            layered(stage.store.clone(), SlowWriter { gate: gate.clone(), calls: calls.clone() });
        let handler = {
            let handled = handled.clone();
            move |n: u32| {
                handled.add(n);
                async {}
            }
        };
        let queue = stage.queue("q");
        queue.enqueue(&0).await.unwrap();
        let run = Run::start(Worker::builder(&store).queue("q", handler));
        stage.until(async || gate.inside() == 1).await;
        for n in 1..=20 {
            queue.enqueue(&n).await.unwrap();
            stage.until(async || handled.len() == n + 1).await;
        }
        assert_eq!(run.worker.health().unsettled, 21);
        gate.let_on(1);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        assert_eq!(calls.entries(), [1, 20]);
        run.stop(&stage).await.unwrap();
    })
    .await;
}

//! Outboxes in a worker.

use alkstore::prelude::*;
use alkstore_core::{SettleAction, Settled, Settlement};
use alkstore_suite::fault::{Layer, layered};
use async_trait::async_trait;

use crate::stage::{Gate, Log, Run, Stage, on_every_engine, secs};

#[tokio::test]
async fn deliveries_end_as_run_once_ends_them() {
    async fn deliver(delivery: Delivery) -> Result<(), String> {
        match delivery.decode::<String>().unwrap().as_str() {
            "ok" => Ok(()),
            "error" => Err("status 503".to_owned()),
            other => panic!("I don't know {other:?}"),
        }
    }
    on_every_engine(async |stage: Stage| {
        let outbox = stage.store.outbox("o").unwrap();
        let mut ids = Vec::new();
        for what in ["ok", "error", "nonsense"] {
            ids.push(outbox.enqueue(&what, OutboxOpts::new().max_attempts(2)).await.unwrap());
        }
        let run = Run::start(Worker::builder(&stage.store).outbox("o", deliver));
        let dead = async || outbox.stats().await.unwrap().dead == 2;
        stage.advancing(secs(1), dead).await;
        assert!(outbox.get_job(ids[0]).await.unwrap().is_none());
        let error = outbox.get_job(ids[1]).await.unwrap().unwrap();
        assert_eq!((error.attempt, error.last_error.as_deref()), (2, Some("status 503")));
        let panicked = outbox.get_job(ids[2]).await.unwrap().unwrap().last_error.unwrap();
        assert_eq!(panicked, "the handler panicked: I don't know \"nonsense\"");
        // A later one is heard of by its wake.
        let later = outbox.enqueue(&"ok", OutboxOpts::new()).await.unwrap();
        stage.until(async || outbox.get_job(later).await.unwrap().is_none()).await;
        run.stop(&stage).await.unwrap();
    })
    .await;
}

/// Writes down what is settled in one call, and who heartbeats.
struct Calls(Log<(usize, bool)>);

#[async_trait]
impl Layer for Calls {
    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let beat = |item: &Settlement| matches!(item.action, SettleAction::Heartbeat { .. });
        self.0.add((items.len(), items.iter().any(beat)));
        inner.settle_jobs(items).await
    }
}

#[tokio::test]
async fn a_delivery_is_not_extended_by_itself_and_is_settled_alone() {
    on_every_engine(async |stage: Stage| {
        let outbox = stage.store.outbox("o").unwrap();
        for n in 0..4 {
            outbox.enqueue(&n, OutboxOpts::new()).await.unwrap();
        }
        let (gate, calls) = (Gate::new(), Log::new());
        let deliver = {
            let gate = gate.clone();
            move |delivery: Delivery| {
                let gate = gate.clone();
                async move {
                    if delivery.decode::<u32>()? == 0 {
                        delivery.heartbeat(secs(600)).await?;
                    }
                    gate.pass().await;
                    Ok::<_, Error>(())
                }
            }
        };
        let store = layered(stage.store.clone(), Calls(calls.clone()));
        let run = Run::start(Worker::builder(&store).concurrency(4).outbox("o", deliver));
        stage.until(async || gate.inside() == 4).await;
        stage.settle().await;
        for _ in 0..6 {
            stage.advance(secs(10)).await;
            stage.settle().await;
        }
        // Their 60 s are over, but for the one that was extended; the slots are all taken.
        let stats = outbox.stats().await.unwrap();
        assert_eq!((stats.claimed, stats.ready), (1, 3));
        assert_eq!(calls.entries(), [(1, true)], "the one that the handler asked for");
        gate.let_on(100);
        stage.advancing(secs(1), async || stage.store.queues().await.unwrap().is_empty()).await;
        assert!(calls.entries().iter().all(|(items, _)| *items == 1), "{:?}", calls.entries());
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stop_lets_deliveries_end_and_starts_no_other() {
    on_every_engine(async |stage: Stage| {
        let outbox = stage.store.outbox("o").unwrap();
        for n in 0..5 {
            outbox.enqueue(&n, OutboxOpts::new()).await.unwrap();
        }
        let gate = Gate::new();
        let deliver = {
            let gate = gate.clone();
            move |_: Delivery| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok::<_, Error>(())
                }
            }
        };
        let opts = HandlerOpts::new().concurrency(2);
        let run = Run::start(Worker::builder(&stage.store).outbox_with("o", opts, deliver));
        stage.until(async || gate.inside() == 2).await;
        run.stop.stop();
        stage.settle().await;
        assert!(!run.is_over());
        gate.let_on(5);
        run.ended(&stage).await.unwrap();
        let stats = outbox.stats().await.unwrap();
        assert_eq!((stats.ready, stats.claimed), (3, 0));
        let left = outbox.jobs(JobFilter::new()).await.unwrap();
        assert!(left.iter().all(|delivery| delivery.attempt == 0));
    })
    .await;
}

#[tokio::test]
async fn a_delivery_that_takes_too_long_counts_as_failed() {
    on_every_engine(async |stage: Stage| {
        let outbox = stage.store.outbox("o").unwrap();
        let id = outbox.enqueue(&1, OutboxOpts::new()).await.unwrap();
        let gate = Gate::new();
        let deliver = {
            let gate = gate.clone();
            move |_: Delivery| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok::<_, Error>(())
                }
            }
        };
        let opts = HandlerOpts::new().timeout(secs(5));
        let run = Run::start(Worker::builder(&stage.store).outbox_with("o", opts, deliver));
        stage.until(async || gate.inside() == 1).await;
        stage.settle().await;
        stage.advancing_slowly(secs(5), async || gate.dropped() == 1).await;
        let failed = async || outbox.get_job(id).await.unwrap().unwrap().last_error.is_some();
        stage.until(failed).await;
        let error = outbox.get_job(id).await.unwrap().unwrap().last_error.unwrap();
        assert_eq!((error.as_str(), gate.dropped()), ("the handler timed out after 5s", 1));
        run.stop(&stage).await.unwrap();
    })
    .await;
}

//! Heartbeats, and claims that are lost.

use std::sync::Arc;

use alkstore::prelude::*;
use alkstore_core::{SettleAction, Settled, Settlement};
use alkstore_suite::fault::{Layer, layered};
use async_trait::async_trait;

use crate::stage::{Gate, Log, Run, Stage, gated, numbered, on_every_engine, secs};

/// Writes down how many heartbeats each call had.
struct Beats(Log<usize>);

#[async_trait]
impl Layer for Beats {
    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let beat = |item: &&Settlement| matches!(item.action, SettleAction::Heartbeat { .. });
        let beats = items.iter().filter(beat).count();
        if beats > 0 {
            self.0.add(beats);
        }
        inner.settle_jobs(items).await
    }
}

fn short(store: &Arc<dyn Store>) -> Queue {
    store.queue_with("q", QueueOpts::new().visibility_timeout(secs(30))).unwrap()
}

#[tokio::test]
async fn claims_are_extended_together_at_a_third_of_their_visibility_timeout() {
    on_every_engine(async |stage: Stage| {
        let (beats, gate) = (Log::new(), Gate::new());
        let ids = short(&stage.store).enqueue_many(numbered(0..3)).await.unwrap();
        let store = layered(stage.store.clone(), Beats(beats.clone()));
        let run = Run::start(Worker::builder(&store).queue("q", gated(&gate)));
        stage.until(async || gate.inside() == 3).await;
        stage.settle().await;
        stage.advance(secs(9)).await;
        stage.settle().await;
        assert_eq!(beats.entries(), [0; 0], "not before a third");
        let mut seconds = 9;
        let four = async || {
            seconds += 1;
            beats.len() >= 4
        };
        stage.advancing_slowly(secs(1), four).await;
        assert_eq!(beats.entries(), [3; 4], "one call each");
        assert!(seconds >= 40, "four times in {seconds} s");
        for id in &ids {
            let job = stage.job("q", *id).await.unwrap();
            assert_eq!(
                (job.state, job.attempt),
                (JobState::Claimed, 1),
                "after its first deadline"
            );
        }
        gate.let_on(3);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        assert_eq!(gate.dropped(), 0);
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_handler_whose_claim_is_lost_is_cancelled() {
    on_every_engine(async |stage: Stage| {
        let (queue, gate) = (short(&stage.store), Gate::new());
        let ids = queue.enqueue_many(numbered(0..2)).await.unwrap();
        let run = Run::start(Worker::builder(&stage.store).queue("q", gated(&gate)));
        stage.until(async || gate.inside() == 2).await;
        stage.settle().await;
        assert!(queue.cancel(ids[0]).await.unwrap());
        stage.advancing_slowly(secs(1), async || gate.dropped() == 1).await;
        assert_eq!(gate.inside(), 1, "the other goes on");
        // Its slot is free again.
        queue.enqueue(&7).await.unwrap();
        stage.until(async || gate.inside() == 2).await;
        gate.let_on(2);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        run.stop(&stage).await.unwrap();
        assert_eq!(gate.dropped(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_lapsed_is_let_go() {
    on_every_engine(async |stage: Stage| {
        let (queue, gate) = (short(&stage.store), Gate::new());
        let id = queue.enqueue(&1).await.unwrap();
        let run = Run::start(Worker::builder(&stage.store).queue("q", gated(&gate)).concurrency(1));
        stage.until(async || gate.inside() == 1).await;
        stage.settle().await;
        // All at once, so that no heartbeat comes before the deadline; nobody claims it meanwhile.
        queue.pause().await.unwrap();
        stage.advance(secs(31)).await;
        stage.advancing_slowly(secs(1), async || gate.dropped() == 1).await;
        let lapsed = stage.job("q", id).await.unwrap();
        assert_eq!((lapsed.state, lapsed.attempt), (JobState::Pending, 1));
        run.stop(&stage).await.unwrap();
        queue.resume().await.unwrap();
        let mut other = queue.claim("other").await.unwrap().unwrap();
        assert_eq!((other.id(), other.attempt()), (id, 2), "the worker let go of it");
        other.ack().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_acked_in_a_transaction_is_left_to_its_end() {
    on_every_engine(async |stage: Stage| {
        let (queue, gate, log) = (short(&stage.store), Gate::new(), Log::new());
        queue.enqueue(&1).await.unwrap();
        let handler = {
            let (gate, log) = (gate.clone(), log.clone());
            move |mut job: JobContext, n: u32| {
                let (gate, log) = (gate.clone(), log.clone());
                async move {
                    let mut tx = job.store().begin_tx().await?;
                    job.ack_tx(&mut tx).await?;
                    tx.commit().await?;
                    gate.pass().await;
                    log.add(n);
                    Ok::<_, Error>(())
                }
            }
        };
        let run = Run::start(Worker::builder(&stage.store).queue("q", handler));
        stage.until(async || gate.inside() == 1).await;
        for _ in 0..6 {
            stage.advance(secs(10)).await;
            stage.settle().await;
        }
        assert_eq!((gate.inside(), gate.dropped()), (1, 0));
        gate.let_on(1);
        stage.until(async || log.len() == 1).await;
        run.stop(&stage).await.unwrap();
        assert!(stage.store.queues().await.unwrap().is_empty());
    })
    .await;
}

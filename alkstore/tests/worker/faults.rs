//! Faults of the store: waited out, reported, and never the silent end of the loop.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use alkstore::worker::WorkerState;
use alkstore::{LocalName, QueueName, prelude::*};
use alkstore_core::{Claimed, SettleAction, Settled, Settlement, Topic, Watch};
use alkstore_suite::fault::{Layer, layered};
use async_trait::async_trait;

use super::seeing::Witnessed;
use crate::stage::{Gate, Log, Run, Stage, millis, numbered, on_every_engine, secs};

#[derive(Default)]
struct Plans {
    claims: VecDeque<Error>,
    watches: VecDeque<Error>,
    /// The call fails, and nothing is settled.
    settlements: VecDeque<Error>,
    /// The settlements take effect, and the answer is lost.
    answers: VecDeque<Error>,
    beats: VecDeque<Error>,
}

/// Fails as it is told to, in order.
#[derive(Default)]
struct Failing(Mutex<Plans>);

impl Failing {
    fn plan(&self, plan: impl FnOnce(&mut Plans)) {
        plan(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn next(&self, of: impl FnOnce(&mut Plans) -> &mut VecDeque<Error>) -> Option<Error> {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)).pop_front()
    }

    fn left(&self) -> usize {
        let plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Plans { claims, watches, settlements, answers, beats } = &*plans;
        claims.len() + watches.len() + settlements.len() + answers.len() + beats.len()
    }
}

#[async_trait]
impl Layer for Failing {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        match self.next(|plans| &mut plans.claims) {
            Some(error) => Err(error),
            None => inner.claim_jobs(queue, worker, max).await,
        }
    }

    async fn watch(&self, inner: &dyn Store, topic: Topic) -> Result<Box<dyn Watch>> {
        match self.next(|plans| &mut plans.watches) {
            Some(error) => Err(error),
            None => inner.watch(topic).await,
        }
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        if matches!(items.first().map(|item| &item.action), Some(SettleAction::Heartbeat { .. })) {
            return match self.next(|plans| &mut plans.beats) {
                Some(error) => Err(error),
                None => inner.settle_jobs(items).await,
            };
        }
        if let Some(error) = self.next(|plans| &mut plans.settlements) {
            return Err(error);
        }
        let results = inner.settle_jobs(items).await?;
        self.next(|plans| &mut plans.answers).map_or(Ok(results), Err)
    }
}

fn unavailable() -> Error {
    Error::unavailable("the test says so")
}

fn unknown() -> Error {
    Error::commit_unknown("the test says so")
}

fn broken() -> Error {
    Error::engine("the test says so")
}

fn failing(stage: &Stage) -> (Arc<Failing>, Arc<dyn Store>) {
    let layer = Arc::new(Failing::default());
    (layer.clone(), layered(stage.store.clone(), layer))
}

#[tokio::test]
async fn faults_of_the_store_are_waited_out_and_reported() {
    on_every_engine(async |stage: Stage| {
        let (layer, store) = failing(&stage);
        let log = Log::new();
        let handler = {
            let log = log.clone();
            move |n: u32| {
                log.add(n);
                async {}
            }
        };
        layer.plan(|plans| {
            plans.claims.extend([unavailable(), broken(), unknown()]);
            plans.watches.extend([unavailable(), broken()]);
            plans.settlements.extend([unavailable(), broken(), unavailable()]);
        });
        let run = Run::start(Worker::builder(&store).queue("q", handler));
        stage.until(async || run.worker.health().faults_since_progress > 0).await;
        let fault = run.worker.health().last_fault.unwrap();
        assert_eq!(fault.operation, "claim");
        assert_eq!(fault.error, unavailable().to_string());
        stage.queue("q").enqueue_many(numbered(0..50)).await.unwrap();
        let empty = async || stage.store.queues().await.unwrap().is_empty();
        stage.advancing(millis(20), empty).await;
        let mut handled = log.entries();
        handled.sort_unstable();
        assert_eq!(handled, (0..50).collect::<Vec<_>>(), "each once");
        // The watch is made once it finds nothing.
        stage.advancing(millis(20), async || layer.left() == 0).await;
        stage.queue("q").enqueue(&99).await.unwrap();
        stage.advancing(millis(20), async || log.len() == 51).await;
        let recovered = async || run.worker.health().faults_since_progress == 0;
        stage.advancing(millis(20), recovered).await;
        assert_eq!(run.worker.health().state, WorkerState::Running);
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_settlement_of_unknown_outcome_is_repeated_and_counts_once() {
    on_every_engine(async |stage: Stage| {
        let (layer, store) = failing(&stage);
        let log = Log::new();
        let handler = {
            let log = log.clone();
            move |n: u32| {
                log.add(n);
                async {}
            }
        };
        let witnessed = Witnessed::new();
        let queue = stage.queue(&witnessed.name);
        layer.plan(|plans| {
            plans.answers.extend([unknown()]);
            plans.settlements.extend([unknown()]);
        });
        queue.enqueue(&1).await.unwrap();
        let run = Run::start(Worker::builder(&store).queue(&witnessed.name, handler));
        let settled =
            async || layer.left() == 0 && log.len() == 1 && run.worker.health().unsettled == 0;
        stage.advancing(millis(20), settled).await;
        assert!(stage.store.queues().await.unwrap().is_empty());
        assert_eq!(log.entries(), [1], "it isn't handled again");
        run.stop(&stage).await.unwrap();
        assert!(witnessed.named("claim lost").is_empty(), "what it did was no loss");
        assert_eq!(witnessed.named("job settled").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_that_fails_is_repeated_before_the_claim_lapses() {
    on_every_engine(async |stage: Stage| {
        let (layer, store) = failing(&stage);
        let opts = QueueOpts::new().visibility_timeout(secs(30));
        let id = stage.store.queue_with("q", opts).unwrap().enqueue(&1).await.unwrap();
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |_: u32| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        };
        layer.plan(|plans| plans.beats.extend([unavailable(), broken(), unknown()]));
        let run = Run::start(Worker::builder(&store).queue("q", handler));
        stage.until(async || gate.inside() == 1).await;
        stage.settle().await;
        stage.advance(secs(10)).await;
        stage.advancing(millis(50), async || layer.left() == 0).await;
        for _ in 0..15 {
            stage.advance(secs(2)).await;
            stage.settle().await;
        }
        let job = stage.job("q", id).await.unwrap();
        assert_eq!((job.state, job.attempt, gate.dropped()), (JobState::Claimed, 1, 0));
        gate.let_on(1);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stop_that_cannot_write_outcomes_says_so() {
    on_every_engine(async |stage: Stage| {
        let (layer, store) = failing(&stage);
        layer.plan(|plans| plans.settlements.extend((0..10_000).map(|_| unavailable())));
        let id = stage.queue("q").enqueue(&1).await.unwrap();
        let builder = Worker::builder(&store).grace(secs(5)).queue("q", async |_: u32| {});
        let run = Run::start(builder);
        stage.until(async || run.worker.health().unsettled == 1).await;
        run.stop.stop();
        stage.settle().await;
        assert!(!run.is_over());
        let over = async || run.is_over();
        stage.advancing(millis(200), over).await;
        let error = run.ended(&stage).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(error.to_string().contains("1 jobs whose outcome could not be written"), "{error}");
        assert_eq!(stage.job("q", id).await.unwrap().state, JobState::Claimed);
    })
    .await;
}

#[tokio::test]
async fn a_store_that_is_closed_ends_the_run_with_that() {
    on_every_engine(async |stage: Stage| {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |_: u32| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        };
        let store = stage.second().await;
        store.queue("q").unwrap().enqueue(&1).await.unwrap();
        let builder = Worker::builder(&store)
            .queue("q", handler)
            .queue("idle", async |_: u32| {})
            .schedules(true);
        let run = Run::start(builder);
        stage.until(async || gate.inside() == 1).await;
        stage.settle().await;
        store.close().await.unwrap();
        let worker = run.worker.clone();
        assert!(matches!(run.ended(&stage).await, Err(Error::Closed)));
        assert_eq!((gate.dropped(), worker.health().state), (1, WorkerState::Ended));
    })
    .await;
}

//! How much a worker claims, and for whom.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use alkstore::prelude::*;

use crate::stage::{Gate, Log, Run, Stage, gated, millis, numbered, on_every_engine, secs};

/// A handler that takes 10 ms on the engine's clock, and how many of them are under way.
#[derive(Clone, Default)]
struct Sleepers(Arc<AtomicUsize>);

impl Sleepers {
    async fn sleep(&self, store: &Arc<dyn Store>) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let slept = store.sleep(millis(10)).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
        slept
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

async fn engine_time(stage: &Stage) -> SystemTime {
    // What a job is stamped with is the engine's now.
    let id = stage.queue("clock").enqueue(&()).await.unwrap();
    let at = stage.job("clock", id).await.unwrap().enqueued_at;
    stage.queue("clock").cancel(id).await.unwrap();
    at
}

#[tokio::test]
async fn a_job_of_another_queue_starts_within_a_second_beside_a_backlog() {
    on_every_engine(async |stage: Stage| {
        let flood = stage.queue("flood");
        for page in 0..100 {
            flood.enqueue_many(numbered(page * 1_000..(page + 1) * 1_000)).await.unwrap();
        }
        let (sleepers, started) = (Sleepers::default(), Log::new());
        let mut builder = Worker::builder(&stage.store).concurrency(4);
        let names: Vec<_> = (1..10).map(|n| format!("other-{n}")).collect();
        for name in names.iter().map(String::as_str).chain(["flood"]) {
            let (sleepers, started) = (sleepers.clone(), started.clone());
            builder = builder.queue(name, move |job: JobContext, _: u32| {
                let (sleepers, started) = (sleepers.clone(), started.clone());
                async move {
                    started.add(job.queue().to_owned());
                    sleepers.sleep(job.store()).await
                }
            });
        }
        let run = Run::start(builder);
        stage.until(async || sleepers.count() == 4).await;
        // Time goes on once the four that were asleep have ended and four others sleep.
        let step = async || {
            let begun = started.len() + 4;
            stage.advance(millis(10)).await;
            stage.until(async || started.len() >= begun && sleepers.count() == 4).await;
        };
        for _ in 0..50 {
            step().await;
        }
        let before = engine_time(&stage).await;
        for name in &names {
            stage.queue(name).enqueue(&1).await.unwrap();
        }
        let served = || {
            let started = started.entries();
            names.iter().all(|name| started.contains(name))
        };
        while !served() {
            step().await;
            let waited = engine_time(&stage).await.duration_since(before).unwrap();
            let by_queue = started.entries().into_iter().fold(BTreeMap::new(), |mut sum, name| {
                *sum.entry(name).or_insert(0) += 1;
                sum
            });
            assert!(waited <= secs(1), "after {waited:?} only {by_queue:?} had started");
        }
        run.stop.abort();
        run.ended(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn no_more_is_claimed_than_can_start_soon() {
    on_every_engine(async |stage: Stage| {
        stage.queue("q").enqueue_many(numbered(0..100)).await.unwrap();
        let gate = Gate::new();
        let run = Run::start(Worker::builder(&stage.store).concurrency(4).queue("q", gated(&gate)));
        stage.until(async || gate.inside() == 4).await;
        stage.settle().await;
        let stats = stage.queue("q").stats().await.unwrap();
        assert_eq!((stats.claimed, stats.ready), (4, 96), "the others are left to other workers");
        gate.let_on(100);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_was_claimed_ahead_of_handlers_that_became_slow_is_given_back() {
    on_every_engine(async |stage: Stage| {
        stage.queue("q").enqueue_many(numbered(0..200)).await.unwrap();
        let gate = Gate::new();
        gate.let_on(20);
        let builder = Worker::builder(&stage.store).concurrency(1).queue("q", gated(&gate));
        let run = Run::start(builder);
        let stats = async || stage.queue("q").stats().await.unwrap();
        stage.until(async || stats().await.ready + stats().await.claimed == 180).await;
        stage.until(async || gate.inside() == 1).await;
        let given_back = async || {
            let health = run.worker.health();
            stats().await.claimed == 1 && health.buffered == 0 && health.unsettled == 0
        };
        stage.advancing(millis(500), given_back).await;
        for job in stage.queue("q").jobs(JobFilter::new().limit(200)).await.unwrap() {
            let claimed = u32::from(job.state == JobState::Claimed);
            assert_eq!(job.attempt, claimed, "job {} is charged an attempt", job.id);
        }
        gate.let_on(200);
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        run.stop(&stage).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn concurrency_is_bounded_in_all_and_by_queue() {
    on_every_engine(async |stage: Stage| {
        let (a, b, all) = (Gate::new(), Gate::new(), Gate::new());
        let outbox = stage.store.outbox("o").unwrap();
        for n in 0..10 {
            stage.queue("a").enqueue(&n).await.unwrap();
            stage.queue("b").enqueue(&n).await.unwrap();
            outbox.enqueue(&n, OutboxOpts::new()).await.unwrap();
        }
        let delivering = all.clone();
        let deliver = move |_: Delivery| {
            let gate = delivering.clone();
            async move {
                gate.pass().await;
                Ok::<_, Error>(())
            }
        };
        let opts = HandlerOpts::new;
        let builder = Worker::builder(&stage.store)
            .concurrency(5)
            .queue_with("a", opts().concurrency(1), gated(&a))
            .queue_with("b", opts().concurrency(3), gated(&b))
            .outbox("o", deliver);
        let run = Run::start(builder);
        let inside = || (a.inside(), b.inside(), all.inside());
        stage.until(async || a.inside() + b.inside() + all.inside() == 5).await;
        stage.settle().await;
        let (of_a, of_b, of_o) = inside();
        assert_eq!(of_a + of_b + of_o, 5, "all slots are taken");
        assert!(of_a <= 1 && of_b <= 3, "{:?}", inside());
        for gate in [&a, &b, &all] {
            gate.let_on(10);
        }
        let empty = async || stage.store.queues().await.unwrap().is_empty();
        stage.until(empty).await;
        assert!(a.most() == 1 && b.most() <= 3, "{} of a, {} of b", a.most(), b.most());
        run.stop(&stage).await.unwrap();
    })
    .await;
}

//! How a worker is put together.

use alkstore::prelude::*;
use alkstore::worker::{WorkerBuilder, WorkerState};

use crate::stage::{Gate, Run, Stage, millis, on_every_engine, secs};

async fn nothing((): ()) {}

async fn no_delivery(_: Delivery) -> Result<()> {
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_a_worker_is_said_before_it_runs() {
    let store = alkstore::open("memory:").await.unwrap();
    let worker = || Worker::builder(&store);
    let refusals: Vec<(WorkerBuilder, &str)> = vec![
        (worker(), "nothing to do"),
        (worker().queue("", nothing), "invalid name"),
        (worker().queue("__alkstore_x", nothing), "reserved name"),
        (worker().queue("q", nothing).queue("q", nothing), "\"q\"; expected one handler"),
        (worker().outbox("o", no_delivery).outbox("o", no_delivery), "expected one handler"),
        (worker().queue("q", nothing).concurrency(0), "concurrency: \"0\""),
        (worker().queue_with("q", HandlerOpts::new().concurrency(0), nothing), "at least 1"),
        (worker().queue_with("q", HandlerOpts::new().timeout(secs(0)), nothing), "timeout"),
        (worker().queue("q", nothing).poll_every(secs(0)), "poll_every"),
        (worker().maintain_every(secs(86_401)), "maintain_every"),
        (worker().queue("q", nothing).worker_id(" me"), "invalid name"),
    ];
    for (builder, expected) in refusals {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert!(worker().schedules(true).build().is_ok());
    assert!(worker().queue("o", nothing).outbox("o", no_delivery).build().is_ok());
}

#[tokio::test]
async fn health_tells_where_a_worker_stands() {
    on_every_engine(async |stage: Stage| {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |(): ()| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        };
        let builder = Worker::builder(&stage.store).queue("q", handler).worker_id("w-7");
        let worker = builder.build().unwrap();
        assert_eq!(worker.id(), "w-7");
        let new = worker.health();
        assert_eq!((new.state, new.last_progress), (WorkerState::New, None));
        assert!(!new.is_alive(secs(3_600)));

        let (stop, running) = (StopToken::new(), worker.clone());
        let token = stop.clone();
        let task = tokio::spawn(async move { running.run(token).await });
        stage.queue("q").enqueue(&()).await.unwrap();
        stage.until(async || worker.health().running == 1).await;
        let health = worker.health();
        assert_eq!(health.state, WorkerState::Running);
        assert!(health.last_progress.is_some() && health.is_alive(secs(3_600)));
        let since = health.since_progress.unwrap();
        stage.pause().await;
        assert!(worker.health().since_progress.unwrap() > since, "nothing happens meanwhile");
        let again = worker.run(StopToken::new()).await.unwrap_err();
        assert!(again.to_string().contains("one that isn't running"), "{again}");

        stop.stop();
        stage.until(async || worker.health().state == WorkerState::Stopping).await;
        assert!(worker.health().is_alive(secs(3_600)));
        gate.let_on(1);
        stage.within(task).await.unwrap().unwrap();
        let ended = worker.health();
        assert_eq!((ended.state, ended.running, ended.unsettled), (WorkerState::Ended, 0, 0));
        assert!(!ended.is_alive(millis(u64::MAX)));

        // It can be run again.
        stage.queue("q").enqueue(&()).await.unwrap();
        gate.let_on(1);
        let stop = StopToken::new();
        let token = stop.clone();
        let task = tokio::spawn(async move { worker.run(token).await });
        stage.until(async || stage.store.queues().await.unwrap().is_empty()).await;
        stop.stop();
        stage.within(task).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_dropped_leaves_nothing_running() {
    on_every_engine(async |stage: Stage| {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |(): ()| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        };
        let id = stage.queue("q").enqueue(&()).await.unwrap();
        let run = Run::start(Worker::builder(&stage.store).queue("q", handler));
        stage.until(async || gate.inside() == 1).await;
        run.cancel();
        stage.until(async || gate.dropped() == 1).await;
        let record = stage.job("q", id).await.unwrap();
        assert_eq!((record.state, record.attempt), (JobState::Claimed, 1));
    })
    .await;
}

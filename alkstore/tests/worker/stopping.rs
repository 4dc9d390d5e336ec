//! How a worker ends.

use alkstore::prelude::*;

use crate::stage::{Gate, Log, Run, Stage, gated, numbered, on_every_engine, secs};

#[tokio::test]
async fn a_stop_gives_back_what_has_not_begun_and_acks_what_has() {
    on_every_engine(async |stage: Stage| {
        let queue = stage.queue("q");
        queue.enqueue_many(numbered(0..200)).await.unwrap();
        let (gate, begun) = (Gate::new(), Log::new());
        let handler = {
            let (gate, begun) = (gate.clone(), begun.clone());
            move |job: JobContext, _: u32| {
                let (gate, begun) = (gate.clone(), begun.clone());
                async move {
                    begun.add(job.id());
                    gate.pass().await;
                }
            }
        };
        gate.let_on(20);
        let run = Run::start(Worker::builder(&stage.store).concurrency(2).queue("q", handler));
        // Twenty were quick, so that more are claimed ahead; two wait.
        stage.until(async || begun.len() == 22 && run.worker.health().buffered > 0).await;
        run.stop.stop();
        stage.until(async || queue.stats().await.unwrap().claimed == 2).await;
        assert_eq!(begun.len(), 22, "nothing begins any more");
        assert!(!run.is_over());
        let waiting =
            queue.jobs(JobFilter::new().state(JobState::Pending).limit(200)).await.unwrap();
        assert_eq!(waiting.len(), 178);
        assert!(waiting.iter().all(|job| job.attempt == 0), "no attempt is charged");
        gate.let_on(2);
        run.ended(&stage).await.unwrap();
        let stats = queue.stats().await.unwrap();
        assert_eq!((stats.ready, stats.claimed), (178, 0), "the last acks are written");
        assert_eq!(gate.dropped(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_stop_waits_for_handlers_and_keeps_their_claims() {
    on_every_engine(async |stage: Stage| {
        let opts = QueueOpts::new().visibility_timeout(secs(30));
        let queue = stage.store.queue_with("q", opts).unwrap();
        let id = queue.enqueue(&1).await.unwrap();
        let gate = Gate::new();
        let builder = Worker::builder(&stage.store).grace(secs(600)).queue("q", gated(&gate));
        let run = Run::start(builder);
        stage.until(async || gate.inside() == 1).await;
        run.stop.stop();
        stage.settle().await;
        for _ in 0..25 {
            stage.advance(secs(2)).await;
            stage.settle().await;
        }
        let job = stage.job("q", id).await.unwrap();
        assert_eq!((job.state, job.attempt, run.is_over()), (JobState::Claimed, 1, false));
        gate.let_on(1);
        run.ended(&stage).await.unwrap();
        assert!(stage.job("q", id).await.is_none(), "it was acked");
    })
    .await;
}

#[tokio::test]
async fn handlers_beyond_the_grace_are_dropped_and_their_jobs_given_back() {
    on_every_engine(async |stage: Stage| {
        let id = stage.queue("q").enqueue(&1).await.unwrap();
        let gate = Gate::new();
        let builder = Worker::builder(&stage.store).grace(secs(5)).queue("q", gated(&gate));
        let run = Run::start(builder);
        stage.until(async || gate.inside() == 1).await;
        run.stop.stop();
        stage.settle().await;
        stage.advance(secs(4)).await;
        stage.settle().await;
        assert!(!run.is_over() && gate.inside() == 1);
        stage.advancing_slowly(secs(1), async || run.is_over()).await;
        run.ended(&stage).await.unwrap();
        assert_eq!(gate.dropped(), 1);
        let job = stage.job("q", id).await.unwrap();
        assert_eq!((job.state, job.attempt, job.last_error), (JobState::Pending, 0, None));
    })
    .await;
}

#[tokio::test]
async fn an_abort_ends_at_once() {
    on_every_engine(async |stage: Stage| {
        for stopped_before in [false, true] {
            let id = stage.queue("q").enqueue(&1).await.unwrap();
            let gate = Gate::new();
            let run = Run::start(Worker::builder(&stage.store).queue("q", gated(&gate)));
            stage.until(async || gate.inside() == 1).await;
            if stopped_before {
                run.stop.stop();
                stage.settle().await;
                assert!(!run.is_over());
            }
            run.stop.abort();
            run.ended(&stage).await.unwrap();
            assert_eq!(gate.dropped(), 1);
            let job = stage.job("q", id).await.unwrap();
            assert_eq!((job.state, job.attempt), (JobState::Claimed, 1), "left to its deadline");
            stage.queue("q").cancel(id).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn an_idle_worker_stops_at_once() {
    on_every_engine(async |stage: Stage| {
        let builder = Worker::builder(&stage.store)
            .queue("q", async |_: u32| {})
            .outbox("o", async |_: Delivery| Ok::<_, Error>(()))
            .schedules(true)
            .maintenance(true);
        let run = Run::start(builder);
        stage.settle().await;
        run.stop(&stage).await.unwrap();
        assert!(stage.store.locks().await.unwrap().is_empty(), "the scheduler's lease is free");
        // A token that was stopped before it began.
        let stop = StopToken::new();
        stop.stop();
        let never = Worker::builder(&stage.store).queue("q", async |_: u32| {});
        stage.within(never.run(stop)).await.unwrap();
    })
    .await;
}

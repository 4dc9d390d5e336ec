//! Workers that are stopped and started again and again under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use alkstore::prelude::*;

use crate::stage::{Log, Run, Stage, millis, on_every_engine, secs};

const JOBS: u32 = 1_500;

/// Takes up to 20 ms on the engine's clock, fails sometimes, and leaves one event where it is
/// settled: as many events of a job as settlements.
async fn settles_in_a_transaction(mut job: JobContext, n: u32) -> Result<()> {
    job.store().sleep(millis(u64::from(n % 20))).await?;
    let mut tx = job.store().begin_tx().await?;
    job.store().stream("settled")?.publish_tx(&mut tx, &n, PublishOpts::new()).await?;
    if n.is_multiple_of(7) && job.attempt() == 1 {
        return Err(Error::engine("the first time it always fails"));
    }
    job.ack_and_commit(tx).await
}

fn worker(store: &Arc<dyn Store>, ran: &Log<u32>) -> alkstore::worker::WorkerBuilder {
    let (plain, ran) = (ran.clone(), ran.clone());
    Worker::builder(store)
        .concurrency(8)
        .grace(millis(50))
        .queue("tx", settles_in_a_transaction)
        .queue("plain", move |job: JobContext, n: u32| {
            let plain = plain.clone();
            async move {
                job.store().sleep(millis(u64::from(n % 20))).await?;
                plain.add(n);
                Ok::<_, Error>(())
            }
        })
        .outbox("out", move |delivery: Delivery| {
            let ran = ran.clone();
            async move {
                ran.add(delivery.decode()?);
                Ok::<_, Error>(())
            }
        })
}

fn queue(store: &Arc<dyn Store>, name: &str) -> Queue {
    let opts = QueueOpts::new().visibility_timeout(secs(2)).retry_base(millis(10));
    store.queue_with(name, opts.max_attempts(1_000)).unwrap()
}

/// Adds jobs while the workers come and go.
async fn produce(store: Arc<dyn Store>, made: Arc<AtomicU32>) {
    let (tx, plain, outbox) =
        (queue(&store, "tx"), queue(&store, "plain"), store.outbox("out").unwrap());
    for n in 0..JOBS {
        match n % 3 {
            0 => drop(tx.enqueue(&n).await.unwrap()),
            1 => drop(plain.enqueue(&n).await.unwrap()),
            _ => drop(outbox.enqueue(&n, OutboxOpts::new().max_attempts(1_000)).await.unwrap()),
        }
        made.store(n + 1, Ordering::SeqCst);
        if n % 25 == 0 {
            store.sleep(millis(50)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_started_every_300_ms_no_job_is_lost_and_none_is_settled_twice() {
    on_every_engine(async |stage: Stage| {
        let (ran, made) = (Log::new(), Arc::new(AtomicU32::new(0)));
        let stores = [stage.store.clone(), stage.second().await];
        let producing = tokio::spawn(produce(stage.store.clone(), made.clone()));
        let empty = async || {
            let queues = stage.store.queues().await.unwrap();
            assert!(queues.iter().all(|queue| queue.dead == 0), "{queues:?}");
            queues.is_empty()
        };
        let mut round = 0_usize;
        while made.load(Ordering::SeqCst) < JOBS || !empty().await {
            let runs: Vec<_> = stores.iter().map(|store| Run::start(worker(store, &ran))).collect();
            // 300 ms on the engine's clock.
            for _ in 0..30 {
                stage.advance(millis(10)).await;
                stage.pause().await;
            }
            for (place, run) in runs.into_iter().enumerate() {
                // Now and then one is killed.
                if (round + place) % 5 == 4 {
                    run.stop.abort();
                } else {
                    run.stop.stop();
                }
                let over = async || run.is_over();
                stage.advancing(millis(10), over).await;
                match run.ended(&stage).await {
                    Ok(()) => {}
                    // Time goes faster here than the engine works: what it couldn't write in its
                    // grace is delivered again.
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
            round += 1;
            assert!(round < 500, "after {round} rounds something is left");
        }
        stage.within(producing).await.unwrap();
        assert!(round > 5, "only {round} rounds");
        let mut settled: BTreeMap<u32, u32> = BTreeMap::new();
        let events = stage.store.stream("settled").unwrap();
        for event in events.read(Offset::START, usize::MAX).await.unwrap() {
            *settled.entry(event.payload.decode().unwrap()).or_default() += 1;
        }
        let expected: BTreeMap<_, _> = (0..JOBS).step_by(3).map(|n| (n, 1)).collect();
        assert_eq!(settled, expected, "each is settled once");
        let mut ran = ran.entries();
        ran.sort_unstable();
        ran.dedup();
        let others: Vec<_> = (0..JOBS).filter(|n| n % 3 != 0).collect();
        assert_eq!(ran, others, "each was handled at least once");
    })
    .await;
}

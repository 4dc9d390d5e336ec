//! The workloads of the memory engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use alkstore::{EnqueueOpts, MemStore, NewEvent, NewJob, Offset, Payload, Queue, Store, StoreExt};
use alkstore_mem::ManualClock;
use futures_util::future::try_join_all;

use crate::measure::{Reading, now, percentile, rate};
use crate::workload::{Target, Workload, workload};

const JOBS: u64 = 200_000;
const BACKLOG: usize = 1_000_000;

fn payload() -> anyhow::Result<Payload> {
    Ok(Payload::from_json_text(format!("{{\"body\":\"{}\"}}", "x".repeat(89)))?)
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemStore::new())
}

async fn cycle(queue: &Queue, worker: &str, payload: &Payload, count: u64) -> anyhow::Result<()> {
    for _ in 0..count {
        queue.enqueue(payload.clone()).await?;
        if let Some(mut job) = queue.claim(worker).await? {
            job.ack().await?;
        }
    }
    Ok(())
}

async fn one_thread() -> anyhow::Result<Reading> {
    let (queue, payload) = (store().queue("q")?, payload()?);
    rate(JOBS, || cycle(&queue, "w", &payload, JOBS)).await
}

/// The same number of jobs, by tasks that run at the same time: all on one queue, or each on one of
/// its own.
async fn threads(count: u64, queue: fn(u64) -> String) -> anyhow::Result<Reading> {
    let store = store();
    rate(JOBS, || async {
        let tasks = (0..count).map(|worker| {
            let store = store.clone();
            tokio::spawn(async move {
                // A worker has its own handle and its own payloads, as it would in an application.
                let (queue, payload) = (store.queue(&queue(worker))?, payload()?);
                cycle(&queue, &format!("w{worker}"), &payload, JOBS / count).await
            })
        });
        try_join_all(tasks).await?.into_iter().collect()
    })
    .await
}

/// How long a cache line takes from one thread to the other: what threads that share data pay at
/// every turn, and what decides whether more of them get more done.
async fn hand_over() -> anyhow::Result<Reading> {
    const TURNS: u32 = 20_000;
    fn play(turn: &AtomicU32, first: u32) {
        for mine in (first..2 * TURNS).step_by(2) {
            while turn.load(Ordering::Acquire) != mine {
                std::hint::spin_loop();
            }
            turn.store(mine + 1, Ordering::Release);
        }
    }
    let (turn, start) = (AtomicU32::new(0), now());
    std::thread::scope(|scope| {
        scope.spawn(|| play(&turn, 1));
        play(&turn, 0);
    });
    Ok(Reading::Time(start.elapsed() / (2 * TURNS)))
}

async fn enqueue_only() -> anyhow::Result<Reading> {
    let (queue, payload) = (store().queue("q")?, payload()?);
    rate(JOBS, || async {
        for _ in 0..JOBS {
            queue.enqueue(payload.clone()).await?;
        }
        Ok(())
    })
    .await
}

async fn enqueue_batches() -> anyhow::Result<Reading> {
    let (queue, payload) = (store().queue("q")?, payload()?);
    rate(JOBS, || async {
        for _ in 0..JOBS / 100 {
            queue.enqueue_many(jobs(&payload, 100, &EnqueueOpts::new())?).await?;
        }
        Ok(())
    })
    .await
}

fn jobs(payload: &Payload, count: usize, opts: &EnqueueOpts) -> anyhow::Result<Vec<NewJob>> {
    (0..count).map(|_| Ok(NewJob::new(payload.clone())?.opts(opts.clone()))).collect()
}

async fn fill(queue: &Queue, count: usize, opts: &EnqueueOpts) -> anyhow::Result<()> {
    let payload = payload()?;
    for _ in 0..count / 1_000 {
        queue.enqueue_many(jobs(&payload, 1_000, opts)?).await?;
    }
    Ok(())
}

async fn claim_and_ack(queue: &Queue, count: u64, batch: usize) -> anyhow::Result<Reading> {
    rate(count, || async {
        let mut left = usize::try_from(count)?;
        while left > 0 {
            let mut claimed = queue.claim_batch("w", batch).await?;
            anyhow::ensure!(!claimed.is_empty(), "the queue ran empty");
            queue.ack_batch(&mut claimed).await?;
            left = left.saturating_sub(claimed.len());
        }
        Ok(())
    })
    .await
}

async fn batches_of_32() -> anyhow::Result<Reading> {
    let queue = store().queue("q")?;
    fill(&queue, usize::try_from(JOBS)?, &EnqueueOpts::new()).await?;
    claim_and_ack(&queue, JOBS, 32).await
}

/// What stands in the store beside the jobs that are claimed.
#[derive(Debug, Clone, Copy)]
pub enum Beside {
    Nothing,
    Ready,
    Priorities,
    Delayed,
    Claimed,
    Lapsed,
    Expired,
    Dead,
    OtherQueues,
    FallDueAtOnce,
}

/// How many jobs are claimed and acked one by one beside a million rows of some kind.
const CLAIMS: u64 = 20_000;

/// How many of them at once, before as many are beside nothing.
const SLICE: u64 = 500;

/// What they cost, as so many times of what they cost beside nothing. Both are measured in turn, so
/// that a drift of the machine's speed meets both.
async fn growth(beside: Beside) -> anyhow::Result<Reading> {
    let (empty, full) = (urgent_jobs(Beside::Nothing).await?, urgent_jobs(beside).await?);
    let (mut took, mut other) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..CLAIMS / SLICE {
        for (queue, total) in [(&empty, &mut other), (&full, &mut took)] {
            let start = now();
            for _ in 0..SLICE {
                queue.next("w").await?.ack().await?;
            }
            *total += start.elapsed();
        }
    }
    Ok(Reading::Times { took, other })
}

/// A queue with jobs that come before a million rows of some kind.
async fn urgent_jobs(beside: Beside) -> anyhow::Result<Queue> {
    let clock = Arc::new(ManualClock::new());
    let store: Arc<dyn Store> = Arc::new(MemStore::builder().clock(clock.clone()).build());
    let queue = store.queue("q")?;
    let hour = Duration::from_secs(3_600);
    let urgent = EnqueueOpts::new().priority(i32::MAX);
    match beside {
        Beside::Nothing => {}
        Beside::Ready => fill(&queue, BACKLOG, &EnqueueOpts::new()).await?,
        Beside::Priorities => {
            for priority in 0..1_000 {
                fill(&queue, BACKLOG / 1_000, &EnqueueOpts::new().priority(priority)).await?;
            }
        }
        Beside::Delayed => fill(&queue, BACKLOG, &EnqueueOpts::new().delay(hour)).await?,
        Beside::Claimed => {
            fill(&queue, BACKLOG, &EnqueueOpts::new()).await?;
            drop(queue.claim_batch("w", BACKLOG).await?);
        }
        Beside::Lapsed => {
            fill(&queue, BACKLOG, &EnqueueOpts::new().max_attempts(1)).await?;
            drop(queue.claim_batch("w", BACKLOG).await?);
            clock.advance(hour);
        }
        Beside::Expired => {
            let opts = EnqueueOpts::new().expires(Duration::from_secs(1)).priority(-1);
            fill(&queue, BACKLOG, &opts).await?;
            clock.advance(hour);
        }
        Beside::Dead => {
            fill(&queue, BACKLOG, &EnqueueOpts::new()).await?;
            for mut job in queue.claim_batch("w", BACKLOG).await? {
                job.fail("dead").await?;
            }
        }
        Beside::OtherQueues => {
            for other in 0..10_000 {
                let other = store.queue(&format!("other-{other}"))?;
                other.enqueue_many(jobs(&payload()?, BACKLOG / 10_000, &urgent)?).await?;
            }
        }
        Beside::FallDueAtOnce => {
            fill(&queue, BACKLOG, &EnqueueOpts::new().delay(hour)).await?;
            clock.advance(hour);
            // The first calls take the backlog in, a page each.
            for _ in 0..BACKLOG / 1_000 {
                if let Some(mut job) = queue.claim("w").await? {
                    job.release(Duration::ZERO).await?;
                }
            }
        }
    }
    fill(&queue, usize::try_from(CLAIMS)?, &urgent).await?;
    Ok(queue)
}

async fn fan_out(listeners: usize) -> anyhow::Result<Reading> {
    const MESSAGES: u64 = 500;
    let (store, payload) = (store(), payload()?);
    let mut open = Vec::with_capacity(listeners);
    for _ in 0..listeners {
        open.push(store.listen("c").await?);
    }
    let delivered = MESSAGES * u64::try_from(listeners)?;
    rate(delivered, || async {
        for _ in 0..MESSAGES {
            store.notify("c", payload.clone()).await?;
        }
        Ok(())
    })
    .await
}

/// The time from an enqueue to the moment at which a worker that waited holds the job.
async fn wake() -> anyhow::Result<Vec<Duration>> {
    let (queue, payload) = (store().queue("q")?, payload()?);
    let worker = queue.clone();
    let (sender, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let waiting = tokio::spawn(async move {
        while let Ok(mut job) = worker.next("w").await {
            let at = now();
            job.ack().await?;
            if sender.send(at).is_err() {
                break;
            }
        }
        Ok::<_, alkstore::Error>(())
    });
    let mut times = Vec::new();
    for _ in 0..5_000 {
        // Lets the worker come to rest.
        tokio::task::yield_now().await;
        let start = now();
        queue.enqueue(payload.clone()).await?;
        if let Some(at) = arrived.recv().await {
            times.push(at.duration_since(start));
        }
    }
    waiting.abort();
    Ok(times)
}

async fn wake_p50() -> anyhow::Result<Reading> {
    Ok(Reading::Time(percentile(wake().await?, 0.5)))
}

async fn wake_p99() -> anyhow::Result<Reading> {
    Ok(Reading::Time(percentile(wake().await?, 0.99)))
}

async fn publish_100() -> anyhow::Result<Reading> {
    let (stream, payload) = (store().stream("s")?, payload()?);
    rate(JOBS, || async {
        for _ in 0..JOBS / 100 {
            let events: Result<_, _> = (0..100).map(|_| NewEvent::new(payload.clone())).collect();
            stream.publish_many(events?).await?;
        }
        Ok(())
    })
    .await
}

async fn read_1000() -> anyhow::Result<Reading> {
    let (stream, payload) = (store().stream("s")?, payload()?);
    for _ in 0..JOBS {
        stream.publish(payload.clone()).await?;
    }
    rate(JOBS, || async {
        let mut after = Offset::START;
        while let Some(event) = stream.read(after, 1_000).await?.last() {
            after = event.offset;
        }
        Ok(())
    })
    .await
}

pub fn workloads() -> Vec<Workload> {
    let threaded =
        |name, count, queue| workload(name, move || threads(count, queue)).on_four_threads();
    let (one, own) = (|_| "q".to_owned(), |worker| format!("q{worker}"));
    let beside = |name, beside| workload(name, move || growth(beside)).target(Target::AtMost(1.5));
    vec![
        workload("enqueue + claim + ack, 1 thread", one_thread)
            .target(Target::PerSecond(500_000.0)),
        threaded("enqueue + claim + ack, 1 task of 4 threads", 1, one),
        threaded("enqueue + claim + ack, 4 threads on one queue", 4, one)
            .target(Target::NotBelow(1.0, "enqueue + claim + ack, 1 thread")),
        threaded("enqueue + claim + ack, 4 threads, a queue each", 4, own)
            .target(Target::NotBelow(1.0, "enqueue + claim + ack, 1 thread")),
        workload("hand-over of a cache line", hand_over),
        workload("enqueue, 1 thread", enqueue_only),
        workload("enqueue, 100 a call", enqueue_batches),
        workload("claim 32 + ack 32", batches_of_32),
        workload("publish, 100 a call", publish_100),
        workload("read, 1,000 a call", read_1000),
        workload("wake, p50", wake_p50),
        workload("wake, p99", wake_p99).target(Target::AtMost(50.0)),
        workload("deliveries to 10 listeners", || fan_out(10)),
        workload("deliveries to 100 listeners", || fan_out(100)),
        workload("deliveries to 1,000 listeners", || fan_out(1_000))
            .target(Target::NotBelow(0.8, "deliveries to 100 listeners")),
        beside("claim + ack beside nothing", Beside::Nothing),
        beside("claim + ack beside 1M ready", Beside::Ready),
        beside("claim + ack beside 1M of 1,000 priorities", Beside::Priorities),
        beside("claim + ack beside 1M delayed", Beside::Delayed),
        beside("claim + ack beside 1M claimed", Beside::Claimed),
        beside("claim + ack beside 1M lapsed on the last attempt", Beside::Lapsed),
        beside("claim + ack beside 1M expired", Beside::Expired),
        beside("claim + ack beside 1M dead", Beside::Dead),
        beside("claim + ack beside 1M in 10,000 other queues", Beside::OtherQueues),
        beside("claim + ack beside 1M that fell due at once", Beside::FallDueAtOnce),
    ]
}

//! The workloads through alkstore's handles, whatever the engine.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alkstore::{EnqueueOpts, NewEvent, NewJob, Offset, Payload, Queue, StoreExt};
use futures_util::future::{select, try_join_all};
use tokio::sync::{Barrier, mpsc};

use crate::measure::{Reading, now, pause, percentile, rate};

/// How long a loop runs that is counted.
pub const WHILE: Duration = Duration::from_millis(350);

/// How many tasks or threads enqueue where many do.
pub const CONCURRENT: usize = 64;

/// How many wakes are timed.
pub const WAKES: usize = 100;

/// How long it is quiet before each.
pub const QUIET: Duration = Duration::from_millis(3);

/// How many calls are timed that come alone.
pub const ALONE: usize = 150;

/// How many jobs a worker claims at once beside producers.
pub const TOGETHER: usize = 32;

/// A hundred bytes of JSON.
pub fn payload_text() -> String {
    format!("{{\"body\":\"{}\"}}", "x".repeat(89))
}

pub fn payload() -> anyhow::Result<Payload> {
    Ok(Payload::from_json_text(payload_text())?)
}

/// Repeats a step for a while, in so many tasks of the runtime at once, and counts what the steps
/// say. Each task makes a step first that isn't counted: it connects, and prepares statements.
pub async fn repeat<F>(
    tasks: usize,
    step: impl Fn() -> F + Clone + Send + 'static,
) -> anyhow::Result<Reading>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let ready = Arc::new(Barrier::new(tasks));
    let run = move || {
        let (step, ready) = (step.clone(), ready.clone());
        async move {
            let first = step().await;
            ready.wait().await;
            first?;
            let (start, mut count) = (now(), 0);
            while start.elapsed() < WHILE {
                count += step().await?;
            }
            anyhow::Ok((count, start.elapsed()))
        }
    };
    let (mut count, mut took) = (0, Duration::ZERO);
    for done in try_join_all((0..tasks).map(|_| tokio::spawn(run()))).await? {
        let (counted, while_it_ran) = done?;
        count += counted;
        took = took.max(while_it_ran);
    }
    Ok(Reading::Rate { count, took })
}

/// How long a step takes when nothing else happens.
pub async fn alone(step: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<Reading> {
    let mut times = Vec::new();
    for _ in 0..ALONE {
        pause(Duration::from_millis(1)).await;
        let start = now();
        step().await?;
        times.push(start.elapsed());
    }
    Ok(Reading::Time(percentile(times, 0.5)))
}

/// Fills and drains again and again, by so many tasks of the runtime at once, and counts the
/// draining. The first time isn't counted: it connects, and prepares statements on every connection.
pub async fn drained<F, W>(
    workers: usize,
    backlog: u64,
    fill: impl Fn(u64) -> F + Send + Sync,
    work: impl Fn() -> W + Send + Sync,
) -> anyhow::Result<Reading>
where
    F: Future<Output = anyhow::Result<()>> + Send,
    W: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let drain = async || -> anyhow::Result<u64> {
        let done = try_join_all((0..workers).map(|_| tokio::spawn(work()))).await?;
        done.into_iter().sum()
    };
    fill(backlog).await?;
    drain().await?;
    let (mut count, mut took) = (0, Duration::ZERO);
    while took < WHILE {
        fill(backlog).await?;
        let start = now();
        count += drain().await?;
        took += start.elapsed();
    }
    Ok(Reading::Rate { count, took })
}

/// Producers that enqueue for a while, beside workers who tell what they have done; until all is
/// done. The first time isn't counted, as in [`drained`].
pub async fn flow<F>(
    producers: usize,
    enqueue: impl Fn() -> F + Clone + Send + Sync + 'static,
    done: &AtomicU64,
) -> anyhow::Result<Reading>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let mut added = 0;
    let mut flow = async || -> anyhow::Result<Reading> {
        let start = now();
        let Reading::Rate { count, .. } = repeat(producers, enqueue.clone()).await? else {
            anyhow::bail!("a rate was expected")
        };
        // With the first step of each.
        let count = count + u64::try_from(producers)?;
        added += count;
        let all = async {
            while done.load(Ordering::SeqCst) < added {
                pause(Duration::from_micros(200)).await;
            }
        };
        select(pin!(all), pin!(pause(Duration::from_secs(20)))).await;
        let took = start.elapsed();
        anyhow::ensure!(done.load(Ordering::SeqCst) >= added, "jobs were left");
        Ok(Reading::Rate { count, took })
    };
    flow().await?;
    flow().await
}

/// How long it takes from the beginning of a step to what it sends to who waits for it.
pub async fn woken(
    wakes: usize,
    enqueue: impl AsyncFn() -> anyhow::Result<()>,
    mut arrived: mpsc::UnboundedReceiver<Instant>,
) -> anyhow::Result<Reading> {
    let mut times = Vec::new();
    // The first ones connect, and prepare statements.
    for _ in 0..wakes + 2 {
        pause(QUIET).await;
        let start = now();
        enqueue().await?;
        let Some(at) = arrived.recv().await else { anyhow::bail!("the worker has ended") };
        times.push(at.duration_since(start));
    }
    Ok(Reading::Time(percentile(times.split_off(2), 0.5)))
}

/// Single enqueues by so many tasks at once.
pub async fn enqueue(store: &impl StoreExt, tasks: usize) -> anyhow::Result<Reading> {
    enqueue_with(store, tasks, EnqueueOpts::new()).await
}

pub async fn enqueue_with(
    store: &impl StoreExt,
    tasks: usize,
    opts: EnqueueOpts,
) -> anyhow::Result<Reading> {
    let (queue, payload) = (store.queue("q")?, payload()?);
    repeat(tasks, move || {
        let (queue, payload, opts) = (queue.clone(), payload.clone(), opts.clone());
        async move {
            queue.enqueue_with(payload, opts).await?;
            Ok(1)
        }
    })
    .await
}

/// How long one enqueue takes when nothing else happens.
pub async fn enqueue_alone(store: &impl StoreExt) -> anyhow::Result<Reading> {
    let (queue, payload) = (store.queue("q")?, payload()?);
    alone(async || {
        queue.enqueue(payload.clone()).await?;
        Ok(())
    })
    .await
}

fn jobs(payload: &Payload, count: usize) -> anyhow::Result<Vec<NewJob>> {
    Ok((0..count).map(|_| NewJob::new(payload.clone())).collect::<Result<_, _>>()?)
}

/// Enqueues of so many jobs a call.
pub async fn enqueue_many(store: &impl StoreExt, batch: usize) -> anyhow::Result<Reading> {
    let (queue, payload) = (store.queue("q")?, payload()?);
    repeat(1, move || {
        let (queue, payload) = (queue.clone(), payload.clone());
        async move {
            let ids = queue.enqueue_many(jobs(&payload, batch)?).await?;
            Ok(u64::try_from(ids.len())?)
        }
    })
    .await
}

pub async fn fill(queue: &Queue, count: u64) -> anyhow::Result<()> {
    let (payload, mut left) = (payload()?, usize::try_from(count)?);
    while left > 0 {
        let page = left.min(1_000);
        queue.enqueue_many(jobs(&payload, page)?).await?;
        left -= page;
    }
    Ok(())
}

async fn work(queue: Queue, batch: usize) -> anyhow::Result<u64> {
    let mut done = 0;
    loop {
        if batch == 1 {
            let Some(mut job) = queue.claim("w").await? else { return Ok(done) };
            job.ack().await?;
            done += 1;
            continue;
        }
        let mut claimed = queue.claim_batch("w", batch).await?;
        if claimed.is_empty() {
            return Ok(done);
        }
        for acknowledged in queue.ack_batch(&mut claimed).await? {
            acknowledged?;
            done += 1;
        }
    }
}

/// Claims and acknowledgements of so many at once until a backlog is gone.
pub async fn drain(
    store: &impl StoreExt,
    workers: usize,
    batch: usize,
    backlog: u64,
) -> anyhow::Result<Reading> {
    let queue = store.queue("q")?;
    drained(workers, backlog, |count| fill(&queue, count), || work(queue.clone(), batch)).await
}

/// Claims and acknowledgements one by one.
pub async fn claim_and_ack(queue: &Queue, count: u64) -> anyhow::Result<Reading> {
    rate(count, || async {
        for _ in 0..count {
            let Some(mut job) = queue.claim("w").await? else {
                anyhow::bail!("the queue ran empty")
            };
            job.ack().await?;
        }
        Ok(())
    })
    .await
}

/// Adds jobs that come before all others of the queue.
pub async fn add_urgent(queue: &Queue, count: u64) -> anyhow::Result<()> {
    let (payload, opts) = (payload()?, EnqueueOpts::new().priority(i32::MAX));
    let jobs: Result<Vec<_>, _> =
        (0..count).map(|_| Ok(NewJob::new(payload.clone())?.opts(opts.clone()))).collect();
    queue.enqueue_many(jobs.map_err(|error: alkstore::Error| error)?).await?;
    Ok(())
}

/// Two producers with so many enqueues in flight each, and four workers beside them, until all is
/// done.
pub async fn pipeline(store: &impl StoreExt, in_flight: usize) -> anyhow::Result<Reading> {
    let (queue, payload) = (store.queue("q")?, payload()?);
    let done = Arc::new(AtomicU64::new(0));
    let working = (0..4).map(|_| {
        let (queue, done) = (queue.clone(), done.clone());
        tokio::spawn(async move {
            loop {
                let mut claimed = queue.claim_batch("w", TOGETHER).await?;
                if claimed.is_empty() {
                    claimed.push(queue.next("w").await?);
                }
                let acknowledged = queue.ack_batch(&mut claimed).await?;
                done.fetch_add(u64::try_from(acknowledged.len())?, Ordering::SeqCst);
            }
        })
    });
    let working: Vec<tokio::task::JoinHandle<anyhow::Result<()>>> = working.collect();
    // Two tasks where each has one in flight, else as many as are in flight altogether.
    let enqueue = move || {
        let (queue, payload) = (queue.clone(), payload.clone());
        async move {
            queue.enqueue(payload).await?;
            Ok(1)
        }
    };
    let reading = flow(2 * in_flight, enqueue, &done).await;
    working.iter().for_each(tokio::task::JoinHandle::abort);
    reading
}

/// The time from an enqueue to the moment at which a worker that waited holds the job.
pub async fn wake(store: &impl StoreExt) -> anyhow::Result<Reading> {
    let (queue, payload) = (store.queue("q")?, payload()?);
    let worker = queue.clone();
    let (sender, arrived) = mpsc::unbounded_channel();
    let waiting = tokio::spawn(async move {
        while let Ok(mut job) = worker.next("w").await {
            sender.send(now())?;
            job.ack().await?;
        }
        anyhow::Ok(())
    });
    let enqueue = async || {
        queue.enqueue(payload.clone()).await?;
        Ok(())
    };
    let reading = woken(WAKES, enqueue, arrived).await;
    waiting.abort();
    reading
}

fn events(payload: &Payload, count: usize) -> anyhow::Result<Vec<NewEvent>> {
    Ok((0..count).map(|_| NewEvent::new(payload.clone())).collect::<Result<_, _>>()?)
}

/// So many events a call.
pub async fn publish(store: &impl StoreExt, batch: usize) -> anyhow::Result<Reading> {
    let (stream, payload) = (store.stream("s")?, payload()?);
    repeat(1, move || {
        let (stream, payload) = (stream.clone(), payload.clone());
        async move {
            if batch == 1 {
                stream.publish(payload).await?;
                return Ok(1);
            }
            let placed = stream.publish_many(events(&payload, batch)?).await?;
            Ok(u64::try_from(placed.len())?)
        }
    })
    .await
}

/// Reads of a thousand events a call.
pub async fn read(store: &impl StoreExt) -> anyhow::Result<Reading> {
    let (stream, payload) = (store.stream("s")?, payload()?);
    for _ in 0..20 {
        stream.publish_many(events(&payload, 1_000)?).await?;
    }
    repeat(1, move || {
        let stream = stream.clone();
        async move {
            let (mut after, mut count) = (Offset::START, 0);
            loop {
                let events = stream.read(after, 1_000).await?;
                let Some(last) = events.last() else { return Ok(count) };
                after = last.offset;
                count += u64::try_from(events.len())?;
            }
        }
    })
    .await
}

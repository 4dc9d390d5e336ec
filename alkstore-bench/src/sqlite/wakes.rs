//! How soon what waits hears of work, and what waiting costs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use alkstore::{Queue, StoreExt};
use alkstore_sqlite::Durability;

use super::{File, open};
use crate::handles::{QUIET, WAKES};
use crate::measure::{Reading, now, pause, percentile, processor_time, wall_micros};

/// The argument with which a program of the benchmarks becomes [`produce`].
pub const PRODUCER: &str = "alkstore-producer";

/// How long an idle process is watched.
pub const IDLE: Duration = Duration::from_millis(600);

/// What another process does that enqueues: each job says when that began.
pub async fn produce(path: &Path, durability: Durability) -> anyhow::Result<()> {
    let store = open(path, durability).await?;
    let queue = store.queue("q")?;
    for _ in 0..WAKES {
        pause(QUIET).await;
        queue.enqueue(&wall_micros()).await?;
    }
    store.close().await?;
    Ok(())
}

/// The time from an enqueue of another process to the moment at which a worker that waited here
/// holds the job.
pub async fn wake_across(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), durability).await?;
    let queue = store.queue("q")?;
    // Where the file is made is no part of it.
    store.queue("other")?.enqueue(&0).await?;
    let mut producer = Command::new(std::env::current_exe()?)
        .args([PRODUCER, &format!("{durability:?}")])
        .arg(file.path())
        .stdin(Stdio::null())
        .spawn()?;
    let times = wakes_of(&queue).await;
    producer.wait()?;
    store.close().await?;
    Ok(Reading::Time(percentile(times?, 0.5)))
}

async fn wakes_of(queue: &Queue) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..WAKES {
        let mut job = queue.next("w").await?;
        let at = wall_micros();
        times.push(Duration::from_micros(at.saturating_sub(job.decode()?)));
        job.ack().await?;
    }
    Ok(times)
}

/// What a process costs that waits for work of others, and nothing happens.
pub async fn idle() -> anyhow::Result<Reading> {
    let file = File::new()?;
    let store = open(&file.path(), Durability::Full).await?;
    let queue = store.queue("q")?;
    let waiting = tokio::spawn(async move { queue.next("w").await });
    pause(Duration::from_millis(200)).await;
    let (start, before) = (now(), processor_time()?);
    pause(IDLE).await;
    let used = processor_time()?.saturating_sub(before);
    let of = start.elapsed();
    waiting.abort();
    store.close().await?;
    Ok(Reading::Core { used, of })
}

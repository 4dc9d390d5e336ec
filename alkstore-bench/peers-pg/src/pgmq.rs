//! pgmq by its own crate, installed from the SQL that comes with it: messages are read for a
//! while and deleted, in batches where there are many, and waited for by its polling read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use alkstore_bench::handles::{self, TOGETHER, payload_text};
use alkstore_bench::measure::{Reading, now, rate};
use alkstore_bench::pg::{backlog, database, run_sql};
use pgmq::PGMQueueExt;
use serde_json::Value;
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinHandle;

/// For how many seconds a message that was read is out of sight.
const VISIBLE_AFTER: i32 = 300;

/// As many as alkstore has.
const CONNECTIONS: u32 = 10;

/// It looks four times a second while it waits, so that a hundred wakes would take half a minute.
const WAKES: usize = 6;

#[derive(Clone)]
struct Queue {
    pgmq: PGMQueueExt,
    name: String,
    message: Value,
}

/// A queue with nothing in it.
async fn fresh() -> anyhow::Result<Queue> {
    static QUEUES: AtomicU32 = AtomicU32::new(0);
    let queue = named(format!("q{}", QUEUES.fetch_add(1, Ordering::Relaxed))).await?;
    queue.pgmq.create(&queue.name).await?;
    Ok(queue)
}

async fn named(name: String) -> anyhow::Result<Queue> {
    let (url, made) = database("pgmq").await?;
    // It asks for a password, which the server doesn't.
    let url = url.replace("postgres@", "postgres:none@");
    let pgmq = PGMQueueExt::new(url, CONNECTIONS).await?;
    if made {
        pgmq.install_sql_from_embedded().await?;
    }
    Ok(Queue { pgmq, name, message: serde_json::from_str(&payload_text())? })
}

impl Queue {
    async fn send(&self) -> anyhow::Result<u64> {
        self.pgmq.send(&self.name, &self.message).await?;
        Ok(1)
    }

    async fn send_many(&self, count: usize) -> anyhow::Result<u64> {
        let messages = vec![&self.message; count];
        Ok(self.pgmq.send_batch(&self.name, &messages).await?.len() as u64)
    }

    async fn fill(&self, count: u64) -> anyhow::Result<()> {
        for _ in 0..count / 1_000 {
            self.send_many(1_000).await?;
        }
        let rest = usize::try_from(count % 1_000)?;
        if rest > 0 {
            self.send_many(rest).await?;
        }
        Ok(())
    }

    /// How many it got and deleted.
    async fn work_once(&self, batch: usize) -> anyhow::Result<u64> {
        if batch == 1 {
            let read = self.pgmq.read::<Value>(&self.name, VISIBLE_AFTER).await?;
            let Some(message) = read else { return Ok(0) };
            anyhow::ensure!(self.pgmq.delete(&self.name, message.msg_id).await?);
            return Ok(1);
        }
        let batch = i32::try_from(batch)?;
        let read = self.pgmq.read_batch::<Value>(&self.name, VISIBLE_AFTER, batch).await?;
        self.delete(&read).await
    }

    async fn delete(&self, read: &[pgmq::Message<Value>]) -> anyhow::Result<u64> {
        if read.is_empty() {
            return Ok(0);
        }
        let ids: Vec<_> = read.iter().map(|message| message.msg_id).collect();
        Ok(self.pgmq.delete_batch(&self.name, &ids).await? as u64)
    }

    /// Waits for up to a second.
    async fn poll(&self, max: usize) -> anyhow::Result<Vec<pgmq::Message<Value>>> {
        let second = Some(Duration::from_secs(1));
        let max = i32::try_from(max)?;
        let polled =
            self.pgmq.read_batch_with_poll(&self.name, VISIBLE_AFTER, max, second, None).await?;
        Ok(polled.unwrap_or_default())
    }
}

pub async fn enqueue(tasks: usize) -> anyhow::Result<Reading> {
    let queue = fresh().await?;
    handles::repeat(tasks, move || {
        let queue = queue.clone();
        async move { queue.send().await }
    })
    .await
}

pub async fn enqueue_many(batch: usize) -> anyhow::Result<Reading> {
    let queue = fresh().await?;
    handles::repeat(1, move || {
        let queue = queue.clone();
        async move { queue.send_many(batch).await }
    })
    .await
}

pub async fn drain(workers: usize, batch: usize) -> anyhow::Result<Reading> {
    let queue = fresh().await?;
    let work = || {
        let queue = queue.clone();
        async move {
            let mut done = 0;
            loop {
                match queue.work_once(batch).await? {
                    0 => return Ok(done),
                    more => done += more,
                }
            }
        }
    };
    handles::drained(workers, backlog(batch), |count| queue.fill(count), work).await
}

pub async fn pipeline(in_flight: usize) -> anyhow::Result<Reading> {
    let queue = fresh().await?;
    let done = Arc::new(AtomicU64::new(0));
    let working: Vec<JoinHandle<anyhow::Result<()>>> = (0..4)
        .map(|_| {
            let (queue, done) = (queue.clone(), done.clone());
            tokio::spawn(async move {
                loop {
                    let mut deleted = queue.work_once(TOGETHER).await?;
                    if deleted == 0 {
                        deleted = queue.delete(&queue.poll(TOGETHER).await?).await?;
                    }
                    done.fetch_add(deleted, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let enqueue = move || {
        let queue = queue.clone();
        async move { queue.send().await }
    };
    let reading = handles::flow(2 * in_flight, enqueue, &done).await;
    working.iter().for_each(JoinHandle::abort);
    reading
}

pub async fn wake() -> anyhow::Result<Reading> {
    let queue = fresh().await?;
    let (sender, arrived) = mpsc::unbounded_channel();
    let worker = queue.clone();
    let waiting: JoinHandle<anyhow::Result<()>> = tokio::spawn(async move {
        loop {
            let read = worker.poll(1).await?;
            if !read.is_empty() {
                sender.send(now())?;
                worker.delete(&read).await?;
            }
        }
    });
    let enqueue = async || queue.send().await.map(drop);
    let reading = handles::woken(WAKES, enqueue, arrived).await;
    waiting.abort();
    reading
}

/// Reads and deletions one by one behind a hundred thousand messages that somebody else has.
pub async fn behind_claimed() -> anyhow::Result<Reading> {
    const CLAIMS: u64 = 10;
    static MADE: OnceCell<()> = OnceCell::const_new();
    let queue = named("behind".to_owned()).await?;
    let make = async || {
        queue.pgmq.create(&queue.name).await?;
        queue.fill(100_000).await?;
        let (url, _) = database("pgmq").await?;
        let read = "SELECT count(*) FROM pgmq.read('behind', 86400, 100000)";
        run_sql(&url, read).await?;
        run_sql(&url, "VACUUM ANALYZE pgmq.q_behind").await
    };
    MADE.get_or_try_init(make).await?;
    queue.fill(CLAIMS + 1).await?;
    queue.work_once(1).await?;
    rate(CLAIMS, || async {
        for _ in 0..CLAIMS {
            anyhow::ensure!(queue.work_once(1).await? == 1, "the queue ran empty");
        }
        Ok(())
    })
    .await
}

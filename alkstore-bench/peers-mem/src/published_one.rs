//! The published memory engine, through its `dyn Store`.

use std::sync::Arc;

use alkstore_bench::measure::{Reading, rate};
use published::{EnqueueOpts, Queue, QueueOpts, Store, StreamHandle};
use published_mem::MemStore;

use crate::{MANY, ONE_BY_ONE, READY, payload};

/// Its store, which may be gone with its last handle.
type Held<T> = (Arc<dyn Store>, Box<T>);

fn store() -> Arc<dyn Store> {
    Arc::new(MemStore::new())
}

async fn filled(count: u64) -> anyhow::Result<Held<dyn Queue>> {
    let (store, payload) = (store(), payload());
    let queue = store.queue("q", QueueOpts::default()).await?;
    for _ in 0..count {
        queue.enqueue(payload.clone(), EnqueueOpts::default()).await?;
    }
    Ok((store, queue))
}

async fn written(count: u64) -> anyhow::Result<Held<dyn StreamHandle>> {
    let (store, payload) = (store(), payload());
    let stream = store.stream("s").await?;
    for _ in 0..count {
        stream.publish(payload.clone()).await?;
    }
    Ok((store, stream))
}

pub async fn enqueue() -> anyhow::Result<Reading> {
    // Kept until the clock has stopped.
    let mut kept = None;
    rate(MANY, || async {
        kept = Some(filled(MANY).await?);
        Ok(())
    })
    .await
}

pub async fn one_by_one() -> anyhow::Result<Reading> {
    let (_store, queue) = filled(READY).await?;
    rate(ONE_BY_ONE, || async {
        for _ in 0..ONE_BY_ONE {
            let job = queue.claim_one("w").await?;
            let job = job.ok_or_else(|| anyhow::anyhow!("the queue ran empty"))?;
            anyhow::ensure!(job.ack().await?, "a claim was lost");
        }
        Ok(())
    })
    .await
}

pub async fn batches() -> anyhow::Result<Reading> {
    let (_store, queue) = filled(READY).await?;
    rate(READY, || async {
        let mut left = READY;
        while left > 0 {
            let claimed = queue.claim_batch("w", 32).await?;
            let ids: Vec<_> = claimed.iter().map(|claimed| claimed.job().id).collect();
            anyhow::ensure!(!ids.is_empty(), "the queue ran empty");
            left -= u64::try_from(queue.ack_batch(&ids).await?)?;
        }
        Ok(())
    })
    .await
}

pub async fn publish() -> anyhow::Result<Reading> {
    // Kept until the clock has stopped.
    let mut kept = None;
    rate(MANY, || async {
        kept = Some(written(MANY).await?);
        Ok(())
    })
    .await
}

pub async fn read() -> anyhow::Result<Reading> {
    let (_store, stream) = written(MANY).await?;
    rate(MANY, || async {
        let (mut after, mut left) = (0, MANY);
        while left > 0 {
            let events = stream.read_since(after, 1_000).await?;
            let last = events.last().map(|event| event.offset);
            after = last.ok_or_else(|| anyhow::anyhow!("the stream ended"))?;
            left -= u64::try_from(events.len())?;
        }
        Ok(())
    })
    .await
}

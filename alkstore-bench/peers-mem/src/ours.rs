//! alkstore's memory engine, through `dyn Store`.

use std::sync::Arc;

use alkstore::{MemStore, Offset, Queue, Store, StoreExt, Stream};
use alkstore_bench::measure::{Reading, rate};

use crate::{MANY, ONE_BY_ONE, READY, payload};

fn store() -> Arc<dyn Store> {
    Arc::new(MemStore::new())
}

async fn filled(count: u64) -> anyhow::Result<Queue> {
    let (queue, payload) = (store().queue("q")?, payload());
    for _ in 0..count {
        queue.enqueue(&payload).await?;
    }
    Ok(queue)
}

async fn written(count: u64) -> anyhow::Result<Stream> {
    let (stream, payload) = (store().stream("s")?, payload());
    for _ in 0..count {
        stream.publish(&payload).await?;
    }
    Ok(stream)
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
    let queue = filled(READY).await?;
    rate(ONE_BY_ONE, || async {
        for _ in 0..ONE_BY_ONE {
            queue.next("w").await?.ack().await?;
        }
        Ok(())
    })
    .await
}

pub async fn batches() -> anyhow::Result<Reading> {
    let queue = filled(READY).await?;
    rate(READY, || async {
        let mut left = READY;
        while left > 0 {
            let mut claimed = queue.claim_batch("w", 32).await?;
            anyhow::ensure!(!claimed.is_empty(), "the queue ran empty");
            queue.ack_batch(&mut claimed).await?;
            left -= u64::try_from(claimed.len())?;
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
    let stream = written(MANY).await?;
    rate(MANY, || async {
        let (mut after, mut left) = (Offset::START, MANY);
        while left > 0 {
            let events = stream.read(after, 1_000).await?;
            let last = events.last().map(|event| event.offset);
            after = last.ok_or_else(|| anyhow::anyhow!("the stream ended"))?;
            left -= u64::try_from(events.len())?;
        }
        Ok(())
    })
    .await
}

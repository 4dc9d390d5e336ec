//! What is staged after the commit would never happen.

use alkstore_core::{EnqueueOpts, Queue, Result, Tx};

async fn late(queue: &Queue, mut tx: Tx<'_>) -> Result<()> {
    tx.commit().await?;
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.map(drop)
}

fn main() {}

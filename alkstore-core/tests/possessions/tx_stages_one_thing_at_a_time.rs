//! A transaction is one connection.

use alkstore_core::{EnqueueOpts, Queue, Result, Tx};

async fn at_once(queue: &Queue, tx: &mut Tx<'_>) -> Result<()> {
    let one = queue.enqueue_tx(tx, &1, EnqueueOpts::new());
    let other = queue.enqueue_tx(tx, &2, EnqueueOpts::new());
    one.await?;
    other.await.map(drop)
}

fn main() {}

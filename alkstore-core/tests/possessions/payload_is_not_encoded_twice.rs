//! A payload is JSON already: it goes by value.

use alkstore_core::{Payload, Queue, Result};

async fn encoded_again(queue: &Queue, payload: Payload) -> Result<()> {
    queue.enqueue(&payload).await.map(drop)
}

fn main() {}

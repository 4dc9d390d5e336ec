//! What is sent is only read.

use alkstore_core::{Queue, Result};

async fn by_value(queue: &Queue, text: String) -> Result<()> {
    queue.enqueue(text).await.map(drop)
}

fn main() {}

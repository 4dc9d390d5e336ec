//! A claim that nobody settles lies still until its deadline.

#![deny(unused_must_use)]

use alkstore_core::{Queue, Result};

async fn forget(queue: &Queue) -> Result<()> {
    queue.next("worker").await?;
    Ok(())
}

fn main() {}

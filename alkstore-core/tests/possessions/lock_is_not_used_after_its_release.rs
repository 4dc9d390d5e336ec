//! What was given back can't be renewed.

use std::time::Duration;

use alkstore_core::{Lock, Result};

async fn late(mut lock: Lock) -> Result<()> {
    lock.release().await?;
    lock.renew(Duration::from_secs(1)).await
}

fn main() {}

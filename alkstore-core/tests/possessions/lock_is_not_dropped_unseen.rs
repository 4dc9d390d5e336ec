//! It would be released at once, and protect nothing.

#![deny(unused_must_use)]

use std::time::Duration;

use alkstore_core::{Result, Store, StoreExt};

async fn unprotected(store: &dyn Store) -> Result<()> {
    store.lock("report", "me", Duration::from_secs(30)).await?;
    Ok(())
}

fn main() {}

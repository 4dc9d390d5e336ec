//! Dropped, it is rolled back.

#![deny(unused_must_use)]

use alkstore_core::{Result, Store, StoreExt};

async fn nothing_happens(store: &dyn Store) -> Result<()> {
    store.begin_tx().await?;
    Ok(())
}

fn main() {}

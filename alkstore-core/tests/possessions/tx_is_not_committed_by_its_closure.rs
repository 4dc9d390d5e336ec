//! `with_tx` commits what its closure was lent.

use alkstore_core::{Result, Store, StoreExt};

async fn early(store: &dyn Store) -> Result<()> {
    store.with_tx(|tx| Box::pin(async move { tx.commit().await })).await
}

fn main() {}

//! Nobody would listen.

#![deny(unused_must_use)]

use alkstore_core::{Offset, Result, Store, StoreExt, Stream};

async fn deaf(store: &dyn Store, stream: &Stream) -> Result<()> {
    store.listen("bell").await?;
    stream.subscribe(Offset::START).await?;
    Ok(())
}

fn main() {}

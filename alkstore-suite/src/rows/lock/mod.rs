//! Rows of docs/architecture/lock.md.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{Lock, Store, StoreExt};

use crate::cx::Cx;

mod lease;
mod waiting;

pub(crate) use lease::*;
pub(crate) use waiting::*;

const TTL: Duration = Duration::from_secs(600);
const MS: Duration = Duration::from_millis(1);

/// Takes the lock `l`, which nobody holds.
async fn take(store: &Arc<dyn Store>, owner: &str) -> Lock {
    store.try_lock("l", owner, TTL).await.unwrap().expect("nobody holds it")
}

/// Takes the lock `l`, which somebody may be just giving back.
async fn take_soon(cx: &Cx, store: &Arc<dyn Store>, owner: &str) -> Lock {
    cx.within(store.lock("l", owner, TTL)).await.unwrap()
}

/// Whether somebody holds the lock `l`.
async fn is_held(store: &Arc<dyn Store>) -> bool {
    store.locks().await.unwrap().iter().any(|lock| lock.name == "l")
}

/// Waits until nobody holds the lock `l`, without time going on.
async fn until_free(cx: &Cx, store: &Arc<dyn Store>) {
    cx.until(async || !is_held(store).await).await;
    take_soon(cx, store, "probe").await.release().await.unwrap();
}

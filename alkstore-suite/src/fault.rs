//! Broken engines: a store with one of its primitives replaced.

use std::sync::Arc;

use alkstore_core::{Error, Store};

pub(crate) fn failing_ticks(store: Arc<dyn Store>, _errors: Vec<Error>) -> Arc<dyn Store> {
    store
}

//! `memory:`, the memory engine.

use std::sync::Arc;

use alkstore_core::{Error, Result, Store};
use alkstore_mem::MemStore;

use crate::StoreConfig;
use crate::params::{Params, at_least_one};
use crate::url::{listed, masked};

const PARAMETERS: [&str; 2] = ["payload_limit", "lock_timeout"];

pub(crate) fn open(config: &StoreConfig) -> Result<Arc<dyn Store>> {
    let (_, rest) = config.url.split_once(':').unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(Error::invalid_argument(
            "url",
            masked(&config.url),
            format!("\"memory:\" alone or with parameters, {}", listed(&PARAMETERS)),
        ));
    }
    config.only("memory:", &PARAMETERS)?;
    let params = Params::parse("memory:", query, &PARAMETERS)?;
    let mut builder = MemStore::builder();
    let given =
        config.payload_limit.map(|bytes| at_least_one("payload_limit", bytes)).transpose()?;
    if let Some(bytes) = params.or_given("payload_limit", given, Params::size)? {
        builder = builder.payload_limit(bytes);
    }
    if let Some(timeout) = params.or_given("lock_timeout", config.lock_timeout, Params::duration)? {
        builder = builder.lock_timeout(timeout);
    }
    Ok(Arc::new(builder.build()))
}

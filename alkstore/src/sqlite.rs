//! `sqlite:`, the SQLite engine.

use std::sync::Arc;

use alkstore_core::{Error, Result, Store};
use alkstore_sqlite::{Durability, SqliteStore};

use crate::params::{Params, at_least_one, decoded};
use crate::url::masked;
use crate::{StoreConfig, Synchronous};

const PARAMETERS: [&str; 3] = ["synchronous", "lock_timeout", "payload_limit"];

pub(crate) async fn open(config: &StoreConfig) -> Result<Arc<dyn Store>> {
    let (_, rest) = config.url.split_once(':').unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = decoded("url", path)?;
    // Two slashes would be the beginning of a server's name in one reading, and of a path in the
    // other; a colon begins what SQLite keeps in memory.
    if path.is_empty() || path.starts_with("//") || path.starts_with(':') {
        return Err(Error::invalid_argument(
            "url",
            masked(&config.url),
            "the path of a file after \"sqlite:\", for instance \"sqlite:app.db\" or \
             \"sqlite:/var/lib/app.db\"; for a store in memory, \"memory:\"",
        ));
    }
    config.only("sqlite:", &PARAMETERS)?;
    let params = Params::parse("sqlite:", query, &PARAMETERS)?;
    let mut builder = SqliteStore::builder(path);
    if let Some(synchronous) =
        params.or_given("synchronous", config.synchronous, Params::synchronous)?
    {
        builder = builder.durability(match synchronous {
            Synchronous::Full => Durability::Full,
            Synchronous::Normal => Durability::Normal,
        });
    }
    if let Some(timeout) = params.or_given("lock_timeout", config.lock_timeout, Params::duration)? {
        builder = builder.lock_timeout(timeout);
    }
    let given =
        config.payload_limit.map(|bytes| at_least_one("payload_limit", bytes)).transpose()?;
    if let Some(bytes) = params.or_given("payload_limit", given, Params::size)? {
        builder = builder.payload_limit(bytes);
    }
    Ok(Arc::new(builder.open().await?))
}

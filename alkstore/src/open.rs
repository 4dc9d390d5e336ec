//! From a URL to a store.

use std::sync::Arc;

use alkstore_core::{Error, Result, Store};

use crate::StoreConfig;
use crate::url::masked;

/// Opens the store that a URL names: `memory:` is a store of its own, in this process, and
/// `sqlite:app.db` the one in that file, which is made where it isn't there yet.
///
/// # Errors
///
/// [`Error::InvalidArgument`] where the URL names no engine of this build or has something its
/// engine doesn't understand: it says what there is, and masks passwords; or what the engine
/// meets.
///
/// # Cancel safety
///
/// Dropped, nothing is left open.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore::Result<()> {
/// use alkstore::StoreExt;
///
/// let store = alkstore::open("memory:?lock_timeout=500ms").await?;
/// store.queue("emails")?.enqueue(&"hello").await?;
/// # Ok(())
/// # }
/// ```
pub async fn open(url: &str) -> Result<Arc<dyn Store>> {
    open_with(StoreConfig::new(url)).await
}

/// Opens the store that a configuration describes.
///
/// # Errors
///
/// As [`open`]; [`Error::InvalidArgument`] too for an option that the engine hasn't, that is
/// outside its range, or that the URL gives as well.
///
/// # Cancel safety
///
/// Dropped, nothing is left open.
pub async fn open_with(config: StoreConfig) -> Result<Arc<dyn Store>> {
    let scheme = config.url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    match scheme.unwrap_or_default().as_str() {
        #[cfg(feature = "mem")]
        "memory" => crate::memory::open(&config),
        #[cfg(not(feature = "mem"))]
        "memory" => Err(no_engine(&config.url, "; the memory engine's feature is disabled")),
        #[cfg(feature = "sqlite-unbundled")]
        "sqlite" => crate::sqlite::open(&config).await,
        #[cfg(not(feature = "sqlite-unbundled"))]
        "sqlite" => Err(no_engine(&config.url, "; the SQLite engine's feature is disabled")),
        "postgres" | "postgresql" => Err(no_engine(&config.url, "; it has no Postgres engine")),
        _ => Err(no_engine(&config.url, "")),
    }
}

fn no_engine(url: &str, why: &str) -> Error {
    const ENGINES: &str = match (cfg!(feature = "mem"), cfg!(feature = "sqlite-unbundled")) {
        (true, true) => "\"memory:\" or \"sqlite:app.db\"",
        (true, false) => "\"memory:\"",
        (false, true) => "\"sqlite:app.db\"",
        (false, false) => "none, enable the feature \"mem\" or \"sqlite\"",
    };
    let expected = format!("the URL of an engine that this build of alkstore has: {ENGINES}{why}");
    Error::invalid_argument("url", masked(url), expected)
}

#[cfg(all(test, not(all(feature = "mem", feature = "sqlite-unbundled"))))]
mod tests {
    use super::*;

    async fn refusal(url: &str) -> String {
        open(url).await.err().expect("it is refused").to_string()
    }

    #[cfg(not(feature = "mem"))]
    #[tokio::test]
    async fn a_disabled_memory_engine_is_named() {
        let error = refusal("memory:").await;
        assert!(error.contains(r#"invalid argument url: "memory:""#), "{error}");
        assert!(error.contains("the memory engine's feature is disabled"), "{error}");
    }

    #[cfg(not(feature = "sqlite-unbundled"))]
    #[tokio::test]
    async fn a_disabled_sqlite_engine_is_named() {
        let error = refusal("sqlite:app.db").await;
        assert!(error.contains(r#"invalid argument url: "sqlite:app.db""#), "{error}");
        assert!(error.contains("the SQLite engine's feature is disabled"), "{error}");
    }

    #[tokio::test]
    async fn what_is_left_is_listed() {
        let left = if cfg!(feature = "mem") {
            r#"has: "memory:""#
        } else if cfg!(feature = "sqlite-unbundled") {
            r#"has: "sqlite:app.db""#
        } else {
            r#"has: none, enable the feature "mem" or "sqlite""#
        };
        let error = refusal("redis:").await;
        assert!(error.ends_with(left), "{error}");
    }
}

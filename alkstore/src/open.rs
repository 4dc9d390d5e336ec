//! From a URL to a store.

use std::sync::Arc;

use alkstore_core::{Error, Result, Store};

use crate::StoreConfig;
use crate::url::{listed, masked};

/// Opens the store that a URL names: `memory:` is a store of its own, in this process, `sqlite:app.db`
/// the one in that file, and `postgres://host/db` the one in a schema of that database; both are made
/// where they aren't there yet.
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
        #[cfg(feature = "pg")]
        "postgres" | "postgresql" => crate::postgres::open(&config).await,
        #[cfg(not(feature = "pg"))]
        "postgres" | "postgresql" => {
            Err(no_engine(&config.url, "; the Postgres engine's feature is disabled"))
        }
        _ => Err(no_engine(&config.url, "")),
    }
}

fn no_engine(url: &str, why: &str) -> Error {
    let engines: Vec<_> = [
        (cfg!(feature = "mem"), "memory:"),
        (cfg!(feature = "sqlite-unbundled"), "sqlite:app.db"),
        (cfg!(feature = "pg"), "postgres://host/db"),
    ]
    .into_iter()
    .filter_map(|(enabled, url)| enabled.then_some(url))
    .collect();
    let engines = match engines[..] {
        [] => "none, enable the feature \"mem\", \"sqlite\" or \"pg\"".to_owned(),
        _ => listed(&engines),
    };
    let expected = format!("the URL of an engine that this build of alkstore has: {engines}{why}");
    Error::invalid_argument("url", masked(url), expected)
}

#[cfg(all(test, not(all(feature = "mem", feature = "pg", feature = "sqlite-unbundled"))))]
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

    #[cfg(not(feature = "pg"))]
    #[tokio::test]
    async fn a_disabled_postgres_engine_is_named() {
        let error = refusal("postgres://ada:s3cret@db/app").await;
        assert!(error.contains(r#"invalid argument url: "postgres://ada:***@db/app""#), "{error}");
        assert!(error.contains("the Postgres engine's feature is disabled"), "{error}");
    }

    #[tokio::test]
    async fn what_is_left_is_listed() {
        let error = refusal("redis:").await;
        for (enabled, url) in [
            (cfg!(feature = "mem"), r#""memory:""#),
            (cfg!(feature = "sqlite-unbundled"), r#""sqlite:app.db""#),
            (cfg!(feature = "pg"), r#""postgres://host/db""#),
        ] {
            assert_eq!(error.contains(url), enabled, "{error}");
        }
        let none = !error.contains(r#"has: ""#);
        assert_eq!(error.contains(r#"none, enable the feature "mem""#), none, "{error}");
    }
}

//! What a store is opened with, for an application's own configuration.

use std::env::{self, VarError};
use std::fmt;
use std::time::Duration;

use alkstore_core::{Error, Result};
use serde::{Deserialize, Deserializer, de};

use crate::url::masked;

/// The variable that [`StoreConfig::from_env`] reads.
const URL_VARIABLE: &str = "ALKSTORE_URL";

/// How much a commit of the SQLite engine has survived once it is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Synchronous {
    /// The end of the process and the loss of power.
    #[default]
    Full,
    /// The end of the process; the last commits may be gone after a loss of power.
    Normal,
}

/// Which store to open, and how; a table of an application's own configuration, or what the
/// [environment](Self::from_env) says.
///
/// Fields it doesn't know are refused, and `Debug` masks passwords. An option that its engine
/// hasn't, or that the URL gives as well, is refused by [`open_with`](crate::open_with).
///
/// Parsers of configuration files like to quote the line that they refuse: keep a URL with a
/// password on a line of its own.
///
/// # Examples
///
/// ```
/// use alkstore::StoreConfig;
///
/// let text = r#"{ "url": "memory:", "lock_timeout": "500ms" }"#;
/// let config: StoreConfig = serde_json::from_str(text)?;
/// let same = StoreConfig::new("memory:").lock_timeout(std::time::Duration::from_millis(500));
/// assert_eq!(config, same);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The URL; its scheme names the engine.
    pub url: String,
    /// The most bytes of one payload. Default: 1 MiB.
    #[serde(default)]
    pub payload_limit: Option<usize>,
    /// How long a call waits for somebody else's transaction. Default: 5 s. A text such as
    /// `"500ms"` or `"1m 30s"` where it is deserialized.
    #[serde(default, deserialize_with = "duration")]
    pub lock_timeout: Option<Duration>,
    /// What a commit has survived, for `sqlite:` only: `"full"` or `"normal"` where it is
    /// deserialized. Default: full.
    #[serde(default)]
    pub synchronous: Option<Synchronous>,
    /// The schema that holds the store, for `postgres:` only. Default: `alkstore`.
    #[serde(default)]
    pub schema: Option<String>,
    /// How many connections the store holds at most, beside the one that listens; for
    /// `postgres:` only. Default: 10.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// How long the server may take to answer before its connection is given up, for `postgres:`
    /// only. Default: 30 s. A text where it is deserialized.
    #[serde(default, deserialize_with = "duration")]
    pub operation_timeout: Option<Duration>,
    /// Whether a pooler stands before the server that lends its connections for a transaction
    /// each, for `postgres:` only. Default: no.
    #[serde(default)]
    pub pooled: Option<bool>,
    /// Where the store listens, if not where it works: past a pooler. For `postgres:` only.
    #[serde(default)]
    pub listen_url: Option<String>,
}

impl StoreConfig {
    /// A configuration that says no more than its URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            payload_limit: None,
            lock_timeout: None,
            synchronous: None,
            schema: None,
            max_connections: None,
            operation_timeout: None,
            pooled: None,
            listen_url: None,
        }
    }

    /// What the variable `ALKSTORE_URL` of the environment says: the URL, with the options as its
    /// parameters.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where it isn't set, is empty or isn't UTF-8.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn doc() -> alkstore::Result<()> {
    /// let store = alkstore::open_with(alkstore::StoreConfig::from_env()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Self> {
        let refused = |value: &str, why| {
            let expected = format!("the URL of a store, for instance \"sqlite:app.db\"; {why}");
            Err(Error::invalid_argument(URL_VARIABLE, value, expected))
        };
        match env::var(URL_VARIABLE) {
            Ok(url) if url.is_empty() => refused("", "the variable is empty"),
            Ok(url) => Ok(Self::new(url)),
            Err(VarError::NotPresent) => refused("", "the variable isn't set"),
            // It isn't quoted: what is a password in it can't be told.
            Err(VarError::NotUnicode(_)) => refused("…", "the variable isn't UTF-8"),
        }
    }

    /// The most bytes of one payload.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = Some(bytes);
        self
    }

    /// How long a call waits for somebody else's transaction.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// What a commit has survived once it is answered.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = Some(synchronous);
        self
    }

    /// The schema that holds the store.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// How many connections the store holds at most, beside the one that listens.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// How long the server may take to answer before its connection is given up.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = Some(timeout);
        self
    }

    /// Whether a pooler stands before the server that lends its connections for a transaction
    /// each.
    #[must_use]
    pub fn pooled(mut self, pooled: bool) -> Self {
        self.pooled = Some(pooled);
        self
    }

    /// Where the store listens, if not where it works: past a pooler.
    #[must_use]
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }
}

impl StoreConfig {
    /// The options that are given beside the URL, with their values.
    #[cfg(any(feature = "mem", feature = "pg", feature = "sqlite-unbundled"))]
    fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
        fn shown<T: fmt::Debug>(value: &Option<T>) -> Option<String> {
            value.as_ref().map(|value| format!("{value:?}"))
        }
        let options = [
            ("payload_limit", shown(&self.payload_limit)),
            ("lock_timeout", shown(&self.lock_timeout)),
            ("synchronous", shown(&self.synchronous)),
            ("schema", self.schema.clone()),
            ("max_connections", shown(&self.max_connections)),
            ("operation_timeout", shown(&self.operation_timeout)),
            ("pooled", shown(&self.pooled)),
            ("listen_url", self.listen_url.as_deref().map(masked)),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// Refuses the options that an engine hasn't.
    #[cfg(any(feature = "mem", feature = "pg", feature = "sqlite-unbundled"))]
    pub(crate) fn only(&self, engine: &str, known: &[&str]) -> Result<()> {
        match self.given().find(|(name, _)| !known.contains(name)) {
            None => Ok(()),
            Some((name, value)) => {
                let listed = crate::url::listed(known);
                let expected = format!("nothing: {engine:?} has {listed}");
                Err(Error::invalid_argument(name, value, expected))
            }
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("url", &masked(&self.url))
            .field("payload_limit", &self.payload_limit)
            .field("lock_timeout", &self.lock_timeout)
            .field("synchronous", &self.synchronous)
            .field("schema", &self.schema)
            .field("max_connections", &self.max_connections)
            .field("operation_timeout", &self.operation_timeout)
            .field("pooled", &self.pooled)
            .field("listen_url", &self.listen_url.as_deref().map(masked))
            .finish()
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    match humantime::parse_duration(&text) {
        Ok(duration) => Ok(Some(duration)),
        Err(error) => Err(de::Error::custom(format_args!(
            "invalid duration {text:?}: {error}; write for instance \"500ms\" or \"5s\""
        ))),
    }
}

//! What a store is opened with, for an application's own configuration.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use crate::url::masked;

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

/// Which store to open, and how; a table of an application's own configuration.
///
/// Fields it doesn't know are refused, and `Debug` masks passwords. An option that its engine
/// hasn't, or that the URL gives as well, is refused by [`open_with`](crate::open_with).
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
}

impl StoreConfig {
    /// A configuration that says no more than its URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), payload_limit: None, lock_timeout: None, synchronous: None }
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
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("url", &masked(&self.url))
            .field("payload_limit", &self.payload_limit)
            .field("lock_timeout", &self.lock_timeout)
            .field("synchronous", &self.synchronous)
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

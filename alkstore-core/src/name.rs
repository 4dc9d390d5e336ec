//! Names: parsed once, so that no path reaches an engine with an unchecked one.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The longest name, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 255;

/// The prefix of shared names that belong to the store itself.
pub const RESERVED_PREFIX: &str = "__alkstore_";

/// How much of an offending value an error repeats.
const QUOTED_CHARS: usize = 300;

/// Quotes a value for an error's text: escaped, and cut where it is long.
pub(crate) fn quoted(value: &str) -> String {
    let mut kept: String = value.chars().take(QUOTED_CHARS).collect();
    if kept.len() < value.len() {
        kept.push('…');
    }
    format!("{kept:?}")
}

fn check(name: &str) -> Result<()> {
    let invalid = |reason| Err(Error::InvalidName { name: name.to_owned(), reason });
    if name.is_empty() {
        return invalid("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return invalid("it is longer than 255 bytes");
    }
    if name.chars().any(char::is_control) {
        return invalid("it holds a control character");
    }
    if name.starts_with(char::is_whitespace) || name.ends_with(char::is_whitespace) {
        return invalid("it begins or ends with white space");
    }
    Ok(())
}

fn check_shared(name: &str) -> Result<()> {
    check(name)?;
    check_prefix(name, RESERVED_PREFIX)
}

pub(crate) fn check_prefix(name: &str, prefix: &'static str) -> Result<()> {
    if name.starts_with(prefix) {
        return Err(Error::ReservedName { name: name.to_owned(), prefix });
    }
    Ok(())
}

macro_rules! names {
    ($($(#[$doc:meta])* $type:ident, $check:path;)*) => {$(
        $(#[$doc])*
        ///
        /// Cheap to clone; compared byte for byte.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Parses a name.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidName`] where it breaks the rule for names;
            /// [`Error::ReservedName`] where a shared name begins with `__alkstore_`.
            pub fn new(name: &str) -> Result<Self> {
                $check(name)?;
                Ok(Self(name.into()))
            }

            /// For engines: a name that was parsed before it was stored.
            #[must_use]
            pub fn stored(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

names! {
    /// The name of a queue.
    QueueName, check_shared;
    /// The name of a stream.
    StreamName, check_shared;
    /// The name of an outbox.
    OutboxName, check_shared;
    /// The name of a notify/listen channel.
    ChannelName, check_shared;
    /// The name of a lock.
    LockName, check_shared;
    /// The name of a schedule.
    ScheduleName, check_shared;
    /// A name that only its user gives meaning to: a worker id, an owner, a consumer, a unique
    /// key, an event key. The reserved prefix is allowed here.
    LocalName, check;
}

impl QueueName {
    const OUTBOX_PREFIX: &'static str = "__alkstore_outbox:";

    /// The queue behind an outbox. It is reserved, so that only the outbox reaches it.
    #[must_use]
    pub fn of_outbox(outbox: &OutboxName) -> Self {
        Self(format!("{}{outbox}", Self::OUTBOX_PREFIX).into())
    }

    /// Whether this is the queue behind an outbox: its defaults differ.
    #[must_use]
    pub fn is_outbox(&self) -> bool {
        self.0.starts_with(Self::OUTBOX_PREFIX)
    }
}

impl LockName {
    /// The lock that stands for leadership of the scheduler.
    #[must_use]
    pub fn scheduler() -> Self {
        Self("__alkstore_scheduler".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_escapes_and_cuts_what_it_quotes() {
        let error = QueueName::new("a\n\u{1b}[31m").unwrap_err().to_string();
        assert!(error.contains(r#""a\n\u{1b}[31m""#), "{error}");
        let error = QueueName::new(&"x".repeat(5_000)).unwrap_err().to_string();
        assert!(error.len() < 600, "{error}");
    }

    #[test]
    fn an_outbox_queue_may_be_longer_than_a_name() {
        let outbox = OutboxName::new(&"o".repeat(255)).unwrap();
        assert_eq!(QueueName::of_outbox(&outbox).as_str().len(), 273);
    }
}

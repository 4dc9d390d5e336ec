//! Payloads and headers: what travels with a job, an event or a message.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::error::{Error, Result};
use crate::name::{LocalName, ScheduleName, check_prefix};
use crate::time::Timestamp;

/// The size limit of a payload where the engine's options don't say otherwise: 1 MiB.
pub const DEFAULT_PAYLOAD_LIMIT: usize = 1024 * 1024;

/// How deep a payload's arrays and objects may be nested.
pub const MAX_DEPTH: usize = 127;

/// The most entries that headers may have.
pub const MAX_HEADERS: usize = 64;

/// The most bytes that the keys and values of headers may have together: 8 KiB.
pub const MAX_HEADER_BYTES: usize = 8 * 1024;

/// The prefix of header keys that belong to the store itself.
pub const RESERVED_HEADER_PREFIX: &str = "alkstore-";

/// A JSON document, kept byte for byte as it was given and parsed only by [`Payload::decode`].
///
/// Cheap to clone. It isn't `Serialize`, so that nothing encodes it a second time.
///
/// # Examples
///
/// ```
/// use alkstore_core::{IntoPayload, Payload};
///
/// let payload = Payload::from_json_text(r#"{ "to": "ada" }"#)?;
/// assert_eq!(payload.as_str(), r#"{ "to": "ada" }"#);
/// let numbers: Vec<u8> = (&[1, 2, 3]).into_payload()?.decode()?;
/// assert_eq!(numbers, [1, 2, 3]);
/// # Ok::<(), alkstore_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(Arc<str>);

impl Payload {
    /// Takes a JSON document as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] where the text isn't one JSON document or is nested deeper than 127.
    pub fn from_json_text(text: impl Into<Arc<str>>) -> Result<Self> {
        let text = text.into();
        serde_json::from_str::<IgnoredAny>(&text)?;
        check_depth(&text)?;
        Ok(Self(text))
    }

    /// For engines: a document that was checked before it was stored.
    #[must_use]
    pub fn stored(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The document's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its size in bytes; what the payload limit counts.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Parses the document.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] where it isn't a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_str(&self.0)?)
    }

    pub(crate) fn within(self, limit: usize) -> Result<Self> {
        match self.size() {
            size if size > limit => Err(Error::PayloadTooLarge { size, limit }),
            _ => Ok(self),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What can be sent: a [`Payload`], or a reference to anything that serializes to JSON.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent as it is",
    label = "neither a reference to what serializes nor a `Payload` by value",
    note = "give `&value` of what implements `Serialize`; a `Payload` goes by value, `payload.clone()`"
)]
pub trait IntoPayload {
    /// Encodes it.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] where it doesn't serialize, or nests deeper than 127.
    fn into_payload(self) -> Result<Payload>;
}

impl IntoPayload for Payload {
    fn into_payload(self) -> Result<Payload> {
        Ok(self)
    }
}

impl<T: Serialize + ?Sized> IntoPayload for &T {
    fn into_payload(self) -> Result<Payload> {
        let text = serde_json::to_string(self)?;
        check_depth(&text)?;
        Ok(Payload(text.into()))
    }
}

/// Walks the brackets outside of strings; the text is known to be JSON.
fn check_depth(text: &str) -> Result<()> {
    // Each level takes an opening and a closing byte.
    if text.len() <= 2 * MAX_DEPTH {
        return Ok(());
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(Error::Codec {
                        message: format!("nested deeper than {MAX_DEPTH} levels; flatten it"),
                        source: None,
                    });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// A small string map that travels with a job or an event: for trace context and the like.
///
/// At most 64 entries and 8 KiB of keys and values. Cheap to clone, ordered by key.
///
/// # Examples
///
/// ```
/// use alkstore_core::Headers;
///
/// let headers = Headers::new([("traceparent", "00-4bf9-00f0-01")])?;
/// assert_eq!(headers.get("traceparent"), Some("00-4bf9-00f0-01"));
/// # Ok::<(), alkstore_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers(Option<Arc<BTreeMap<String, String>>>);

impl Headers {
    /// The header that names the schedule a job was fired by.
    pub const SCHEDULE: &'static str = "alkstore-schedule";

    /// The header with the boundary a job was fired for, in milliseconds since 1970.
    pub const BOUNDARY: &'static str = "alkstore-boundary";

    /// Builds headers; of a key given twice the last value holds.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] for a key that breaks the rule for names,
    /// [`Error::ReservedName`] for one that begins with `alkstore-`,
    /// [`Error::InvalidArgument`] where there are too many or they are too large.
    pub fn new<K, V>(entries: impl IntoIterator<Item = (K, V)>) -> Result<Self>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let mut map = BTreeMap::new();
        for (key, value) in entries {
            let key = key.into();
            LocalName::new(&key)?;
            check_prefix(&key, RESERVED_HEADER_PREFIX)?;
            map.insert(key, value.into());
        }
        let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
        if map.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
            return Err(Error::invalid_argument(
                "headers",
                format_args!("{} entries of {bytes} bytes", map.len()),
                format!("at most {MAX_HEADERS} entries of {MAX_HEADER_BYTES} bytes in all"),
            ));
        }
        Ok(Self::stored(map))
    }

    /// For engines: headers that were checked before they were stored.
    #[must_use]
    pub fn stored(map: BTreeMap<String, String>) -> Self {
        Self((!map.is_empty()).then(|| Arc::new(map)))
    }

    /// For engines: these headers, and the store's own two for a job that a schedule fires.
    #[must_use]
    pub fn of_fire(&self, schedule: &ScheduleName, boundary: Timestamp) -> Self {
        let mut map: BTreeMap<_, _> = self.0.as_deref().cloned().unwrap_or_default();
        map.insert(Self::SCHEDULE.to_owned(), schedule.to_string());
        map.insert(Self::BOUNDARY.to_owned(), boundary.as_millis().to_string());
        Self::stored(map)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.as_ref()?.get(key).map(String::as_str)
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|map| map.iter()).map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn depth_has_one_limit_for_text_and_values() {
        assert!(Payload::from_json_text(nested(127)).is_ok());
        assert!(matches!(Payload::from_json_text(nested(128)), Err(Error::Codec { .. })));
        let mut value = serde_json::json!(0);
        for _ in 0..127 {
            value = serde_json::json!({ "\"[": value });
        }
        assert!((&value).into_payload().is_ok());
        assert!(matches!((&[value]).into_payload(), Err(Error::Codec { .. })));
    }

    #[test]
    fn brackets_inside_strings_are_no_depth() {
        let text = format!("\"{}\\\"{}\"", "[".repeat(400), "{".repeat(400));
        assert_eq!(Payload::from_json_text(text.clone()).unwrap().as_str(), text);
    }

    #[test]
    fn text_that_is_no_json_is_refused() {
        for text in ["", "{", "1 2", "nul", "\"\u{0}\"", "[1,]"] {
            assert!(matches!(Payload::from_json_text(text), Err(Error::Codec { .. })), "{text:?}");
        }
    }
}

//! The parameters of an engine's URL.

use std::collections::BTreeMap;
use std::time::Duration;

use alkstore_core::{Error, Result};
use percent_encoding::percent_decode_str;

use crate::url::{MASK, listed, masked_value};

#[cfg(feature = "sqlite-unbundled")]
use crate::Synchronous;

type Read<T> = fn(&'static str, &str) -> Result<T>;

/// Parameters that an engine knows, each given once.
pub(crate) struct Params(BTreeMap<&'static str, String>);

impl Params {
    pub(crate) fn parse(engine: &str, query: &str, known: &[&'static str]) -> Result<Self> {
        let mut params = BTreeMap::new();
        for pair in query.split('&').filter(|_| !query.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded("parameter", name)?;
            let Some(known) = known.iter().copied().find(|known| *known == name) else {
                let expected = format!("a parameter that {engine:?} has, {}", listed(known));
                // Of a password with a question mark that wasn't encoded, the rest is here.
                let shown = if query.contains('@') { MASK } else { name.as_str() };
                return Err(Error::invalid_argument("parameter", shown, expected));
            };
            let Ok(value) = percent_decode_str(value).decode_utf8() else {
                let value = masked_value(known, value);
                return Err(Error::invalid_argument(known, value, "percent-encoded UTF-8"));
            };
            if params.insert(known, value.into_owned()).is_some() {
                return Err(Error::invalid_argument("parameter", name, "each parameter once"));
            }
        }
        Ok(Self(params))
    }

    /// What the URL says of an option, or else the configuration.
    pub(crate) fn or_given<T>(
        &self,
        name: &'static str,
        given: Option<T>,
        read: Read<T>,
    ) -> Result<Option<T>> {
        let Some(text) = self.0.get(name) else { return Ok(given) };
        if given.is_some() {
            let expected = "it in the URL or beside it, not both";
            return Err(Error::invalid_argument(name, masked_value(name, text), expected));
        }
        read(name, text).map(Some)
    }

    pub(crate) fn size(name: &'static str, text: &str) -> Result<usize> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(bytes) if digits => at_least_one(name, bytes),
            _ => Err(Error::invalid_argument(
                name,
                text,
                "a whole number of bytes, for instance 2097152",
            )),
        }
    }

    pub(crate) fn duration(name: &'static str, text: &str) -> Result<Duration> {
        humantime::parse_duration(text).map_err(|error| {
            let expected = format!("a duration, for instance \"500ms\" or \"5s\" ({error})");
            Error::invalid_argument(name, text, expected)
        })
    }

    #[cfg(feature = "pg")]
    pub(crate) fn text(_: &'static str, text: &str) -> Result<String> {
        Ok(text.to_owned())
    }

    #[cfg(feature = "pg")]
    pub(crate) fn count(name: &'static str, text: &str) -> Result<u32> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(count) if digits => at_least_one(name, count),
            _ => Err(Error::invalid_argument(name, text, "a whole number, for instance 8")),
        }
    }

    #[cfg(feature = "pg")]
    pub(crate) fn yes_or_no(name: &'static str, text: &str) -> Result<bool> {
        text.parse().map_err(|_| Error::invalid_argument(name, text, "\"true\" or \"false\""))
    }

    #[cfg(feature = "sqlite-unbundled")]
    pub(crate) fn synchronous(name: &'static str, text: &str) -> Result<Synchronous> {
        match text {
            "full" => Ok(Synchronous::Full),
            "normal" => Ok(Synchronous::Normal),
            _ => Err(Error::invalid_argument(name, text, "\"full\" or \"normal\"")),
        }
    }
}

pub(crate) fn at_least_one<T: Default + PartialEq>(name: &'static str, number: T) -> Result<T> {
    if number == T::default() {
        return Err(Error::invalid_argument(name, 0, "at least 1"));
    }
    Ok(number)
}

pub(crate) fn decoded(argument: &'static str, text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Error::invalid_argument(argument, text, "percent-encoded UTF-8")),
    }
}

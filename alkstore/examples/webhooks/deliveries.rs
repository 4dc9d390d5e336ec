//! The deliveries that come in, from a file of one JSON object a line.

use std::path::Path;

use alkstore::prelude::*;
use axum::http::HeaderValue;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Failure;

const BUILT_IN: &str = include_str!("data/github-webhooks.jsonl");

/// One delivery as it came in; its body is kept byte for byte.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) event: String,
    pub(crate) delivery: String,
    pub(crate) body: Payload,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    event: String,
    delivery: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Reads them all, so that a bad line is found before anything is sent.
pub(crate) fn read(file: Option<&Path>, limit: Option<u32>) -> Result<Vec<Incoming>, Failure> {
    let Some(file) = file else { return parse("the deliveries", BUILT_IN, limit) };
    let name = file.display().to_string();
    let bytes = std::fs::read(file)
        .map_err(|error| Failure::Usage(format!("can't read the deliveries {name}: {error}")))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = bytes.iter().take(error.valid_up_to());
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        Failure::Usage(format!("{name}:{line}: it isn't UTF-8"))
    })?;
    parse(&name, text, limit)
}

fn parse(name: &str, text: &str, limit: Option<u32>) -> Result<Vec<Incoming>, Failure> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let incoming: Vec<_> = lines
        .map(|(index, line)| {
            parse_line(line).map_err(|why| {
                Failure::Usage(format!("{name}:{}: it is no delivery: {why}", index + 1))
            })
        })
        .take(limit.map_or(usize::MAX, |limit| limit as usize))
        .collect::<Result<_, _>>()?;
    if incoming.is_empty() {
        return Err(Failure::Usage(format!("{name}: there are no deliveries in it")));
    }
    Ok(incoming)
}

fn parse_line(line: &str) -> Result<Incoming, String> {
    let Line { event, delivery, body } =
        serde_json::from_str(line).map_err(|error| describe(&error))?;
    for (name, value) in [("event", &event), ("delivery", &delivery)] {
        let length = value.len();
        if !(1..=255).contains(&length) || HeaderValue::from_str(value).is_err() {
            return Err(format!("its {name} {value:?} can't be sent as a header"));
        }
    }
    let body = Payload::from_json_text(body.get()).map_err(|error| error.to_string())?;
    Ok(Incoming { event, delivery, body })
}

/// The library counts lines within the line.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    format!("{what} (column {})", error.column())
}

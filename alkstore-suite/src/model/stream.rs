//! What a stream does.

use std::collections::BTreeMap;

use super::answer::{EventView, Fault, StreamView};
use super::op::{EventInput, payload_text};

#[derive(Debug, Clone, Default)]
pub(super) struct Stream {
    pub(super) name: String,
    /// The last offset ever given.
    pub(super) head: i64,
    /// What remains, by ascending offset.
    pub(super) events: Vec<EventView>,
    pub(super) consumers: BTreeMap<String, i64>,
}

impl Stream {
    /// An event that has no place yet.
    pub(super) fn staged(now: i64, input: &EventInput) -> EventView {
        EventView {
            offset: 0,
            key: input.key.map(str::to_owned),
            payload: payload_text(input.payload),
            headers: Vec::new(),
            published_at: now,
        }
    }

    pub(super) fn append(&mut self, mut event: EventView) -> i64 {
        self.head += 1;
        event.offset = self.head;
        self.events.push(event);
        self.head
    }

    pub(super) fn read(&self, after: i64, limit: usize) -> Vec<EventView> {
        self.events.iter().filter(|event| event.offset > after).take(limit).cloned().collect()
    }

    pub(super) fn trim(&mut self, horizon: i64) -> u64 {
        let before = self.events.len();
        self.events.retain(|event| event.offset > horizon);
        (before - self.events.len()) as u64
    }

    pub(super) fn saved(&self, consumer: &str) -> i64 {
        self.consumers.get(consumer).copied().unwrap_or(0)
    }

    pub(super) fn save(&mut self, consumer: &str, offset: i64) -> Result<(), Fault> {
        if offset > self.head {
            return Err(Fault::InvalidArgument);
        }
        self.rewind(consumer, offset.max(self.saved(consumer)))
    }

    pub(super) fn rewind(&mut self, consumer: &str, offset: i64) -> Result<(), Fault> {
        if offset > self.head {
            return Err(Fault::InvalidArgument);
        }
        self.consumers.insert(consumer.to_owned(), offset);
        Ok(())
    }

    pub(super) fn is_known(&self) -> bool {
        self.head > 0 || !self.consumers.is_empty()
    }

    pub(super) fn view(&self) -> StreamView {
        let lag = |offset: i64| self.events.iter().filter(|event| event.offset > offset).count();
        StreamView {
            name: self.name.clone(),
            first: self.events.first().map_or(self.head + 1, |event| event.offset),
            last: self.head,
            count: self.events.len() as u64,
            consumers: self
                .consumers
                .iter()
                .map(|(name, offset)| (name.clone(), *offset, lag(*offset) as u64))
                .collect(),
        }
    }
}

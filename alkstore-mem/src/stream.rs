//! Streams.

use std::collections::{BTreeMap, VecDeque};

use alkstore_core::{
    ConsumerInfo, Event, EventSpec, LocalName, Offset, Result, StreamInfo, StreamName, StreamStore,
    Timestamp, Topic, beyond_head,
};
use async_trait::async_trait;

use crate::observe::Observed;
use crate::state::{State, View};
use crate::store::MemStore;
use crate::wake::{ALL, Wakes};

#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// The last event that was trimmed; the retained ones follow it.
    trimmed: i64,
    events: VecDeque<Event>,
    pub(crate) consumers: BTreeMap<LocalName, Offset>,
}

fn length(events: &VecDeque<Event>) -> i64 {
    i64::try_from(events.len()).unwrap_or(i64::MAX)
}

impl StreamState {
    fn head(&self) -> i64 {
        self.trimmed + length(&self.events)
    }

    /// How many retained events lie at or below an offset.
    fn retained_up_to(&self, offset: Offset) -> usize {
        let below = offset.get().saturating_sub(self.trimmed).clamp(0, length(&self.events));
        usize::try_from(below).unwrap_or(0)
    }

    /// A stream is known by what was ever published to it, or by a consumer.
    fn is_known(&self) -> bool {
        self.head() > 0 || !self.consumers.is_empty()
    }

    fn append(&mut self, spec: EventSpec, at: Timestamp) -> Offset {
        let offset = Offset::stored(self.head() + 1);
        self.events.push_back(Event::new(offset, spec, at.into()));
        offset
    }

    fn read(&self, after: Offset, limit: usize) -> Vec<Event> {
        let from = self.retained_up_to(after);
        self.events.range(from..).take(limit).cloned().collect()
    }

    fn trim(&mut self, horizon: Offset) -> VecDeque<Event> {
        let count = self.retained_up_to(horizon);
        let trimmed: VecDeque<_> = self.events.drain(..count).collect();
        self.trimmed += length(&trimmed);
        trimmed
    }

    fn info(&self, name: &StreamName) -> StreamInfo {
        let mut info = StreamInfo::new(
            name.as_str(),
            Offset::stored(self.trimmed),
            Offset::stored(self.head()),
        );
        info.consumers = self
            .consumers
            .iter()
            .map(|(consumer, &offset)| {
                let lag = self.events.len() - self.retained_up_to(offset);
                ConsumerInfo::new(consumer.as_str(), offset, lag as u64)
            })
            .collect();
        info
    }
}

/// Events take their places here, at once or at a transaction's commit.
pub(crate) fn place(
    state: &mut State,
    wakes: &mut Wakes,
    stream: &StreamName,
    events: impl IntoIterator<Item = (EventSpec, Timestamp)>,
) -> Vec<Offset> {
    let log = state.streams.entry(stream.clone()).or_default();
    let placed: Vec<_> = events.into_iter().map(|(spec, at)| log.append(spec, at)).collect();
    for event in log.events.iter().rev().take(placed.len()).rev() {
        state
            .tap
            .tell(|| Some(Observed::Published { stream: stream.clone(), event: event.clone() }));
    }
    if !placed.is_empty() {
        state.topics.wake(wakes, ALL, || Topic::Stream(stream.clone()));
    }
    placed
}

/// Gives the offsets, except inside a transaction, where there are none yet.
pub(crate) fn append_events(
    view: &mut View<'_>,
    stream: &StreamName,
    events: Vec<EventSpec>,
) -> Vec<Offset> {
    if events.is_empty() {
        return Vec::new();
    }
    let now = view.time.now;
    let events = events.into_iter().map(|event| (event, now));
    match &mut view.tx {
        Some(staged) => {
            staged.events.push((stream.clone(), events.collect()));
            Vec::new()
        }
        None => place(view.state, view.wakes, stream, events),
    }
}

pub(crate) fn read_events(
    view: &View<'_>,
    stream: &StreamName,
    after: Offset,
    limit: usize,
) -> Vec<Event> {
    view.state.streams.get(stream).map(|log| log.read(after, limit)).unwrap_or_default()
}

pub(crate) fn consumer_offset(
    view: &View<'_>,
    stream: &StreamName,
    consumer: &LocalName,
) -> Offset {
    let saved = view.state.streams.get(stream).and_then(|log| log.consumers.get(consumer));
    let staged = view.tx.as_ref().and_then(|staged| {
        staged
            .offsets
            .iter()
            .filter(|(s, c, _)| s == stream && c == consumer)
            .map(|(_, _, o)| o)
            .max()
    });
    saved.into_iter().chain(staged).max().copied().unwrap_or(Offset::START)
}

fn check_head(
    view: &View<'_>,
    stream: &StreamName,
    argument: &'static str,
    at: Offset,
) -> Result<()> {
    let head = Offset::stored(view.state.streams.get(stream).map_or(0, StreamState::head));
    if at > head { Err(beyond_head(argument, at, head)) } else { Ok(()) }
}

/// An offset that was checked takes effect here, at once or at a transaction's commit.
pub(crate) fn save(state: &mut State, stream: StreamName, consumer: LocalName, offset: Offset) {
    let saved = state.streams.entry(stream).or_default().consumers.entry(consumer);
    let saved = saved.or_insert(offset);
    *saved = offset.max(*saved);
}

pub(crate) fn store_offset(
    view: &mut View<'_>,
    stream: &StreamName,
    consumer: &LocalName,
    offset: Offset,
) -> Result<()> {
    check_head(view, stream, "offset", offset)?;
    let (stream, consumer) = (stream.clone(), consumer.clone());
    match &mut view.tx {
        Some(staged) => staged.offsets.push((stream, consumer, offset)),
        None => save(view.state, stream, consumer, offset),
    }
    Ok(())
}

#[async_trait]
impl StreamStore for MemStore {
    async fn append_events(
        &self,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        self.open.act(|view| append_events(view, stream, events))
    }

    async fn read_events(
        &self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        self.open.act(|view| read_events(view, stream, after, limit))
    }

    async fn trim_stream(&self, stream: &StreamName, horizon: Offset) -> Result<u64> {
        // The events are dropped outside of the lock.
        let trimmed = self.open.act(|view| {
            view.state.streams.get_mut(stream).map(|log| log.trim(horizon)).unwrap_or_default()
        })?;
        Ok(trimmed.len() as u64)
    }

    async fn stream_info(&self, stream: Option<&StreamName>) -> Result<Vec<StreamInfo>> {
        self.open.act(|view| match stream {
            Some(name) => {
                let unknown = || StreamState::default().info(name);
                vec![view.state.streams.get(name).map_or_else(unknown, |log| log.info(name))]
            }
            None => view
                .state
                .streams
                .iter()
                .filter(|(_, log)| log.is_known())
                .map(|(name, log)| log.info(name))
                .collect(),
        })
    }

    async fn consumer_offset(&self, stream: &StreamName, consumer: &LocalName) -> Result<Offset> {
        self.open.act(|view| consumer_offset(view, stream, consumer))
    }

    async fn store_offset(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.open.act(|view| store_offset(view, stream, consumer, offset))?
    }

    async fn rewind_consumer(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.open.act(|view| {
            check_head(view, stream, "offset", offset)?;
            let log = view.state.streams.entry(stream.clone()).or_default();
            log.consumers.insert(consumer.clone(), offset);
            Ok(())
        })?
    }

    async fn delete_consumer(&self, stream: &StreamName, consumer: &LocalName) -> Result<bool> {
        self.open.act(|view| {
            let Some(log) = view.state.streams.get_mut(stream) else { return false };
            let known = log.consumers.remove(consumer).is_some();
            if !log.is_known() {
                view.state.streams.remove(stream);
            }
            known
        })
    }
}

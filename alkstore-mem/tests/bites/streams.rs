//! Engines that break a rule of streams or of notify and listen.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alkstore_core::{
    ChannelName, EngineTx, Error, Event, EventSpec, Listener, ListenerLimits, ListenerSender,
    LocalName, Offset, Payload, Result, Store, StreamInfo, StreamName, async_trait,
};
use alkstore_suite::fault::{Layer, TxLayer, layered_tx};
use alkstore_suite::{Data, OpenOptions};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, yield_now};

use crate::harness::Noted;

/// A stream that was trimmed to its end begins at 1 again.
#[derive(Default)]
pub(crate) struct ReusesOffsets {
    begun: Mutex<HashMap<String, usize>>,
}

impl ReusesOffsets {
    fn present(&self, stream: &StreamName) -> StreamName {
        match self.begun.lock().get(stream.as_str()) {
            Some(times) => StreamName::stored(format!("{stream}~{times}")),
            None => stream.clone(),
        }
    }
}

#[async_trait]
impl Layer for ReusesOffsets {
    async fn append_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        inner.append_events(&self.present(stream), events).await
    }

    async fn read_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        inner.read_events(&self.present(stream), after, limit).await
    }

    async fn trim_stream(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        horizon: Offset,
    ) -> Result<u64> {
        let present = self.present(stream);
        let trimmed = inner.trim_stream(&present, horizon).await?;
        let info = inner.stream_info(Some(&present)).await?;
        if trimmed > 0 && info.iter().all(|info| info.count == 0) {
            *self.begun.lock().entry(stream.to_string()).or_default() += 1;
        }
        Ok(trimmed)
    }
}

/// Appends many events one by one.
pub(crate) struct AppendsOneByOne;

#[async_trait]
impl Layer for AppendsOneByOne {
    async fn append_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        let mut offsets = Vec::new();
        for event in events {
            offsets.extend(inner.append_events(stream, vec![event]).await?);
            yield_now().await;
        }
        Ok(offsets)
    }
}

/// Now and then a read doesn't see an event yet whose follower it sees: the event of a slower
/// writer whose place was taken earlier.
#[derive(Default)]
pub(crate) struct ShowsLate {
    reads: AtomicUsize,
    seen: Mutex<HashSet<(StreamName, Offset)>>,
}

#[async_trait]
impl Layer for ShowsLate {
    async fn read_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let mut events = inner.read_events(stream, after, limit).await?;
        let fresh = events.len() > 1
            && self.seen.lock().insert((stream.clone(), events[events.len() - 2].offset));
        if fresh && self.reads.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            events.remove(events.len() - 2);
        }
        Ok(events)
    }
}

/// A reader that goes on from a full page skips an event.
pub(crate) struct SkipsBetweenPages;

#[async_trait]
impl Layer for SkipsBetweenPages {
    async fn read_events(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let mut events = inner.read_events(stream, after, limit).await?;
        if limit == 256 && after.get() > 256 && events.len() > 1 {
            events.remove(0);
        }
        Ok(events)
    }
}

/// How a consumer's place goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Saving goes backward.
    Backward,
    /// Saving beyond the head is taken.
    BeyondHead,
    /// Rewinding beyond the head is taken.
    RewindBeyondHead,
    /// Rewinding goes forward only.
    ForwardOnly,
    /// Forgetting what was never known says that it was.
    ForgetsUnknown,
    /// Reading saves.
    SavesByItself,
}

/// Keeps a consumer's place badly.
pub(crate) struct LosesPlace(pub(crate) Place);

async fn head(inner: &dyn Store, stream: &StreamName) -> Result<Offset> {
    Ok(inner.stream_info(Some(stream)).await?.first().map_or(Offset::START, |info| info.last))
}

#[async_trait]
impl Layer for LosesPlace {
    async fn store_offset(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        match self.0 {
            Place::Backward => inner.rewind_consumer(stream, consumer, offset).await,
            Place::BeyondHead => {
                let offset = offset.min(head(inner, stream).await?);
                inner.store_offset(stream, consumer, offset).await
            }
            _ => inner.store_offset(stream, consumer, offset).await,
        }
    }

    async fn rewind_consumer(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        match self.0 {
            Place::ForwardOnly => inner.store_offset(stream, consumer, offset).await,
            Place::RewindBeyondHead => {
                let offset = offset.min(head(inner, stream).await?);
                inner.rewind_consumer(stream, consumer, offset).await
            }
            _ => inner.rewind_consumer(stream, consumer, offset).await,
        }
    }

    async fn delete_consumer(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<bool> {
        let known = inner.delete_consumer(stream, consumer).await?;
        Ok(known || self.0 == Place::ForgetsUnknown)
    }

    async fn consumer_offset(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        let offset = inner.consumer_offset(stream, consumer).await?;
        if self.0 == Place::SavesByItself {
            let head = head(inner, stream).await?;
            inner.store_offset(stream, consumer, head).await?;
        }
        Ok(offset)
    }
}

/// A trim that goes beyond the head is refused.
pub(crate) struct RefusesTrimBeyondHead;

#[async_trait]
impl Layer for RefusesTrimBeyondHead {
    async fn trim_stream(
        &self,
        inner: &dyn Store,
        stream: &StreamName,
        horizon: Offset,
    ) -> Result<u64> {
        if horizon > head(inner, stream).await? {
            return Err(Error::invalid_argument("horizon", horizon, "at most the head"));
        }
        inner.trim_stream(stream, horizon).await
    }
}

/// What a consumer has yet to read is counted with what was trimmed.
pub(crate) fn lag_counts_trimmed(streams: &mut Vec<StreamInfo>) {
    for stream in streams {
        for consumer in &mut stream.consumers {
            consumer.lag = (stream.last.get() - consumer.offset.get()).unsigned_abs();
        }
    }
}

/// How messages go wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fold {
    /// Equal messages of one transaction are one.
    EqualInTx,
    /// A message that is equal to the one before is dropped.
    EqualInARow,
    /// The messages of a transaction arrive backwards.
    Backwards,
    /// A transaction's messages are lost.
    Lost,
    /// A transaction's messages are sent before it commits.
    Early,
    /// A new listener hears the last message.
    Replay,
    /// A message is lost where it is large.
    LargeLost,
}

/// Sends messages badly.
pub(crate) struct FoldsMessages {
    fold: Fold,
    last: Mutex<HashMap<ChannelName, Payload>>,
}

impl FoldsMessages {
    pub(crate) fn new(fold: Fold) -> Self {
        Self { fold, last: Mutex::default() }
    }
}

#[async_trait]
impl Layer for FoldsMessages {
    async fn send_message(
        &self,
        inner: &dyn Store,
        channel: &ChannelName,
        payload: Payload,
    ) -> Result<()> {
        let before = self.last.lock().insert(channel.clone(), payload.clone());
        if self.fold == Fold::EqualInARow && before.as_ref() == Some(&payload)
            || self.fold == Fold::LargeLost && payload.size() >= 8_000
        {
            return Ok(());
        }
        inner.send_message(channel, payload).await
    }

    async fn open_listener(&self, inner: &dyn Store, channel: &ChannelName) -> Result<Listener> {
        let listener = inner.open_listener(channel).await?;
        let last = self.last.lock().get(channel).cloned();
        if self.fold == Fold::Replay
            && let Some(last) = last
        {
            inner.send_message(channel, last).await?;
        }
        Ok(listener)
    }

    async fn begin(&self, inner: &dyn Store) -> Result<Box<dyn EngineTx>> {
        let tx = inner.begin().await?;
        let store = inner.shared();
        Ok(layered_tx(tx, FoldsInTx { fold: self.fold, store, sent: Vec::new() }))
    }
}

struct FoldsInTx {
    fold: Fold,
    store: Arc<dyn Store>,
    sent: Vec<(ChannelName, Payload)>,
}

#[async_trait]
impl TxLayer for FoldsInTx {
    async fn send_message(
        &mut self,
        inner: &mut dyn EngineTx,
        channel: &ChannelName,
        payload: Payload,
    ) -> Result<()> {
        let message = (channel.clone(), payload.clone());
        match self.fold {
            Fold::EqualInTx if self.sent.contains(&message) => Ok(()),
            Fold::Lost => Ok(()),
            Fold::Backwards => {
                self.sent.push(message);
                Ok(())
            }
            Fold::Early => self.store.send_message(channel, payload).await,
            Fold::LargeLost if payload.size() >= 8_000 => Ok(()),
            _ => {
                self.sent.push(message);
                inner.send_message(channel, payload).await
            }
        }
    }

    async fn commit(self: Box<Self>, mut inner: Box<dyn EngineTx>) -> Result<()> {
        if self.fold == Fold::Backwards {
            for (channel, payload) in self.sent.into_iter().rev() {
                inner.send_message(&channel, payload).await?;
            }
        }
        inner.commit().await
    }
}

/// How a listener goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ear {
    /// Where it is full it drops the newest messages.
    DropsNewest,
    /// Where it is full it drops messages and doesn't say so.
    DropsQuietly,
    /// It holds any number of messages.
    Unbounded,
    /// It outlives the store.
    Outlives,
    /// One of several on a channel gets a message.
    OneOfMany,
}

/// Listens badly: what arrives goes through a second buffer, which a task fills.
pub(crate) struct ListensBadly {
    ear: Ear,
    data: Arc<Noted>,
    first: Mutex<HashMap<ChannelName, usize>>,
}

impl ListensBadly {
    pub(crate) fn layer(ear: Ear, data: Arc<Noted>) -> Arc<dyn Layer> {
        Arc::new(Self { ear, data, first: Mutex::default() })
    }
}

struct Pumping(AbortHandle);

impl Drop for Pumping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Passes on what one listener hears; ends where the other ends.
async fn pump(ear: Ear, most: usize, mut heard: Listener, mut end: Listener, to: ListenerSender) {
    let mut got = 0;
    loop {
        let message = tokio::select! {
            biased;
            message = heard.recv() => message,
            () = ended(&mut end), if ear != Ear::Outlives => None,
        };
        let Some(Ok(message)) = message else { break };
        got += 1;
        let waker = match ear {
            Ear::DropsNewest if got > most => to.lagged(),
            Ear::DropsQuietly if got > most => None,
            _ => to.send(message),
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    if let Some(waker) = to.end() {
        waker.wake();
    }
}

async fn ended(listener: &mut Listener) {
    while listener.recv().await.is_some() {}
}

#[async_trait]
impl Layer for ListensBadly {
    async fn open_listener(&self, inner: &dyn Store, channel: &ChannelName) -> Result<Listener> {
        let end = inner.open_listener(channel).await?;
        let all = ListenerLimits { messages: usize::MAX, bytes: usize::MAX };
        let options = OpenOptions { listener: Some(all), ..OpenOptions::default() };
        let store = self.data.open(options).await?;
        let heard = store.open_listener(channel).await?;
        let told = self.data.options(inner.store_id()).listener.unwrap_or_default();
        let most = told.messages;
        let nth = {
            let mut first = self.first.lock();
            let opened = first.entry(channel.clone()).or_default();
            *opened += 1;
            *opened
        };
        let ear = self.ear;
        let limits = match ear {
            Ear::DropsNewest | Ear::DropsQuietly | Ear::Unbounded => all,
            Ear::Outlives | Ear::OneOfMany => told,
        };
        Ok(Listener::new(channel.clone(), limits, |to| {
            let deaf = ear == Ear::OneOfMany && nth > 1;
            let task = tokio::spawn(async move {
                // It keeps the listener's own source open.
                let _store = store;
                if deaf {
                    let mut end = end;
                    ended(&mut end).await;
                    to.end().into_iter().for_each(std::task::Waker::wake);
                } else {
                    pump(ear, most, heard, end, to).await;
                }
            });
            Box::new(Pumping(task.abort_handle()))
        }))
    }
}

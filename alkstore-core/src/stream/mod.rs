//! Streams: append-only logs with consumers that remember their place.

mod consumer;
mod subscription;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::macros::{ids, setters};
use crate::name::{LocalName, StreamName};
use crate::payload::{Headers, IntoPayload, Payload};
use crate::store::Store;
use crate::tx::Tx;
use crate::wake::{Topic, one_result};

pub use consumer::Consumer;
pub use subscription::Subscription;

ids! {
    /// An event's place in its stream: 1, 2, 3, … without gaps, in commit order.
    Offset >= 0;
}

impl Offset {
    /// The place before the first event.
    pub const START: Self = Self(0);
}

/// What one event may say of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishOpts {
    /// A key, stored and returned; it neither orders nor deduplicates.
    pub key: Option<String>,
    /// Headers that travel with the event.
    pub headers: Headers,
}

setters!(PublishOpts {
    /// A key, stored and returned; it neither orders nor deduplicates.
    key: impl Into<String> => Some(key.into());
    /// Headers that travel with the event.
    headers: Headers => headers;
});

/// An event to be published with others in one call.
///
/// # Examples
///
/// ```
/// use alkstore_core::{NewEvent, PublishOpts};
///
/// let event = NewEvent::new(&"paid")?.opts(PublishOpts::new().key("order-7"));
/// # let _ = event;
/// # Ok::<(), alkstore_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NewEvent {
    payload: Payload,
    opts: PublishOpts,
}

impl NewEvent {
    /// An event with this payload and no options.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] where the payload doesn't encode.
    pub fn new(payload: impl IntoPayload) -> Result<Self> {
        Ok(Self { payload: payload.into_payload()?, opts: PublishOpts::default() })
    }

    /// Sets the event's options; they are checked when it is published.
    #[must_use]
    pub fn opts(mut self, opts: PublishOpts) -> Self {
        self.opts = opts;
        self
    }

    fn check(self, payload_limit: usize) -> Result<EventSpec> {
        Ok(EventSpec {
            key: self.opts.key.as_deref().map(LocalName::new).transpose()?,
            payload: self.payload.within(payload_limit)?,
            headers: self.opts.headers,
        })
    }
}

/// A checked event as an engine takes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EventSpec {
    /// Its key.
    pub key: Option<LocalName>,
    /// The payload, within the store's limit.
    pub payload: Payload,
    /// Its headers.
    pub headers: Headers,
}

impl EventSpec {
    /// For engines: an event that was checked before it was stored.
    #[must_use]
    pub fn stored(key: Option<LocalName>, payload: Payload, headers: Headers) -> Self {
        Self { key, payload, headers }
    }
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Its place.
    pub offset: Offset,
    /// Its key.
    pub key: Option<LocalName>,
    /// Its payload.
    pub payload: Payload,
    /// Its headers.
    pub headers: Headers,
    /// When it was published, or staged in a transaction.
    pub published_at: SystemTime,
}

impl Event {
    /// For engines: the event that a spec became.
    #[must_use]
    pub fn new(offset: Offset, spec: EventSpec, published_at: SystemTime) -> Self {
        let EventSpec { key, payload, headers } = spec;
        Self { offset, key, payload, headers, published_at }
    }
}

/// What a stream holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// The stream's name.
    pub name: String,
    /// The first retained event; the head plus one where there is none.
    pub first: Offset,
    /// The head: the last event ever published, 0 before the first.
    pub last: Offset,
    /// How many events are retained.
    pub count: u64,
    /// Its consumers, by name.
    pub consumers: Vec<ConsumerInfo>,
}

impl StreamInfo {
    /// For engines: a stream that retains the events after `trimmed` up to `last`.
    #[must_use]
    pub fn new(name: impl Into<String>, trimmed: Offset, last: Offset) -> Self {
        let count = last.0.abs_diff(trimmed.0);
        let first = Offset(trimmed.0.saturating_add(1));
        Self { name: name.into(), first, last, count, consumers: Vec::new() }
    }
}

/// How far a consumer has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerInfo {
    /// The consumer's name.
    pub name: String,
    /// The offset it saved last.
    pub offset: Offset,
    /// How many retained events come after it.
    pub lag: u64,
}

impl ConsumerInfo {
    /// For engines: a consumer and its place.
    #[must_use]
    pub fn new(name: impl Into<String>, offset: Offset, lag: u64) -> Self {
        Self { name: name.into(), offset, lag }
    }
}

/// The stream primitives of an engine.
#[async_trait]
pub trait StreamStore {
    /// Appends events, all or none; their offsets are consecutive.
    async fn append_events(
        &self,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>>;

    /// At most `limit` events strictly after an offset. Once a read returned offset n, nothing at
    /// or below n appears later.
    async fn read_events(
        &self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>>;

    /// Deletes the events up to the horizon and says how many.
    async fn trim_stream(&self, stream: &StreamName, horizon: Offset) -> Result<u64>;

    /// One stream, known or not; or every stream ever published to or with a consumer, by name.
    async fn stream_info(&self, stream: Option<&StreamName>) -> Result<Vec<StreamInfo>>;

    /// The offset a consumer saved; 0 where it never did.
    async fn consumer_offset(&self, stream: &StreamName, consumer: &LocalName) -> Result<Offset>;

    /// Saves an offset that isn't beyond the head; a smaller one than was saved changes nothing.
    async fn store_offset(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()>;

    /// Sets a consumer to any offset that isn't beyond the head.
    async fn rewind_consumer(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()>;

    /// Forgets a consumer and says whether it was known.
    async fn delete_consumer(&self, stream: &StreamName, consumer: &LocalName) -> Result<bool>;
}

/// An append-only log: an address, cheap to clone, that keeps the store open.
///
/// No reader ever skips an event: once a read returned offset n, nothing at or below n appears
/// later, whatever transactions were open.
///
/// # Examples
///
/// ```
/// use alkstore_core::{Offset, StoreExt};
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let orders = store.stream("orders")?;
/// orders.publish(&"order 7 paid").await?;
///
/// let billing = orders.consumer("billing")?;
/// for event in billing.read(100).await? {
///     println!("{} {:?}", event.offset, event.payload);
///     billing.save_offset(event.offset).await?;
/// }
/// assert!(billing.read(100).await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    store: Arc<dyn Store>,
    name: StreamName,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("name", &self.name).finish()
    }
}

impl Stream {
    pub(crate) fn new(store: Arc<dyn Store>, name: StreamName) -> Self {
        Self { store, name }
    }

    /// The engine itself: through the `Arc` each call would be boxed twice.
    fn engine(&self) -> &dyn Store {
        &*self.store
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Appends an event and returns its place.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`], [`Error::PayloadTooLarge`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has appended the event or not.
    pub fn publish(
        &self,
        payload: impl IntoPayload,
    ) -> impl Future<Output = Result<Offset>> + Send {
        self.publish_with(payload, PublishOpts::default())
    }

    /// Appends an event with options.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish); [`Error::InvalidName`] for the key.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has appended the event or not.
    pub fn publish_with(
        &self,
        payload: impl IntoPayload,
        opts: PublishOpts,
    ) -> impl Future<Output = Result<Offset>> + Send {
        let event = NewEvent::new(payload).map(|event| event.opts(opts));
        async move { one_result(self.publish_many(vec![event?]).await?) }
    }

    /// Appends events, all or none, at consecutive places.
    ///
    /// # Errors
    ///
    /// As [`publish_with`](Self::publish_with); nothing was appended then.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has appended all events or none.
    pub async fn publish_many(&self, events: Vec<NewEvent>) -> Result<Vec<Offset>> {
        let events = self.check(events)?;
        self.engine().append_events(&self.name, events).await
    }

    /// Appends an event when the transaction commits; it takes its place then, so there is no
    /// offset to return yet.
    ///
    /// # Errors
    ///
    /// As [`publish_with`](Self::publish_with); [`Error::InvalidArgument`] where the transaction
    /// is of another store.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged the event or not.
    pub fn publish_tx(
        &self,
        tx: &mut Tx<'_>,
        payload: impl IntoPayload,
        opts: PublishOpts,
    ) -> impl Future<Output = Result<()>> + Send {
        let event = NewEvent::new(payload).map(|event| event.opts(opts));
        async move { self.publish_many_tx(tx, vec![event?]).await }
    }

    /// Appends events when the transaction commits.
    ///
    /// # Errors
    ///
    /// As [`publish_tx`](Self::publish_tx).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged all events or none.
    pub async fn publish_many_tx(&self, tx: &mut Tx<'_>, events: Vec<NewEvent>) -> Result<()> {
        let events = self.check(events)?;
        tx.append_events(self.store.store_id(), &self.name, events).await
    }

    fn check(&self, events: Vec<NewEvent>) -> Result<Vec<EventSpec>> {
        let limit = self.store.limits().payload;
        events.into_iter().map(|event| event.check(limit)).collect()
    }

    /// At most `limit` events strictly after an offset. Where those were trimmed, it begins with
    /// the first that remains.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn read(&self, after: Offset, limit: usize) -> Result<Vec<Event>> {
        self.engine().read_events(&self.name, after, limit).await
    }

    /// As [`read`](Self::read), inside a transaction. It reads the committed log: what the
    /// transaction staged has no place yet and isn't shown.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the transaction is of another store, or what the engine
    /// meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn read_tx(
        &self,
        tx: &mut Tx<'_>,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        tx.read_events(self.store.store_id(), &self.name, after, limit).await
    }

    /// Deletes the events at and below the horizon and says how many. Offsets are never reused.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has deleted all of them or none.
    pub async fn trim_to(&self, horizon: Offset) -> Result<u64> {
        self.engine().trim_stream(&self.name, horizon).await
    }

    /// What the stream holds, and how far its consumers have come.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn info(&self) -> Result<StreamInfo> {
        one_result(self.engine().stream_info(Some(&self.name)).await?)
    }

    /// Forgets the offset that a consumer saved. `false` where it never saved one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has forgotten the consumer or not.
    pub async fn forget_consumer(&self, name: &str) -> Result<bool> {
        let consumer = LocalName::new(name)?;
        self.engine().delete_consumer(&self.name, &consumer).await
    }

    /// A live tail of everything strictly after an offset; it saves nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the offset lies beyond the head, or what the engine
    /// meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn subscribe(&self, after: Offset) -> Result<Subscription> {
        let watch = self.store.watch(Topic::Stream(self.name.clone())).await?;
        let head = self.info().await?.last;
        if after > head {
            return Err(beyond_head("after", after, head));
        }
        Ok(Subscription::new(self.store.weak(), self.name.clone(), after, watch))
    }

    /// A consumer of this stream, by name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`].
    pub fn consumer(&self, name: &str) -> Result<Consumer> {
        Ok(Consumer { stream: self.clone(), name: LocalName::new(name)? })
    }
}

/// For engines: the error of an offset that lies beyond the head of its stream.
#[must_use]
pub fn beyond_head(argument: &'static str, offset: Offset, head: Offset) -> Error {
    Error::invalid_argument(
        argument,
        offset,
        format!("at most {head}, the last event of the stream"),
    )
}

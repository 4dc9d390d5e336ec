//! Streams: append-only logs with consumers that remember their place.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use crate::error::{Error, Result};
use crate::macros::{ids, setters};
use crate::name::{LocalName, StreamName};
use crate::payload::{Headers, IntoPayload, Payload};
use crate::store::{Store, WeakStore};
use crate::tx::Tx;
use crate::wake::{Topic, Wait, Watch, one_result};

/// How many events a subscription reads at once.
const SUBSCRIPTION_PAGE: usize = 256;

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

/// A named reader of a stream whose place the store keeps: an address, cheap to clone.
///
/// Saving is explicit and never happens on drop. Save after the effect and an event may be seen
/// twice; save in the transaction of the effect and it is seen once.
#[derive(Debug, Clone)]
pub struct Consumer {
    stream: Stream,
    name: LocalName,
}

impl Consumer {
    /// The consumer's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The offset saved last; [`Offset::START`] where none ever was.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn offset(&self) -> Result<Offset> {
        self.stream.store.consumer_offset(&self.stream.name, &self.name).await
    }

    /// At most `limit` events strictly after the saved offset.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn read(&self, limit: usize) -> Result<Vec<Event>> {
        self.stream.read(self.offset().await?, limit).await
    }

    /// Saves how far this consumer has come; a smaller offset than was saved changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the offset lies beyond the head, or what the engine
    /// meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has saved the offset or not.
    pub async fn save_offset(&self, offset: Offset) -> Result<()> {
        self.stream.store.store_offset(&self.stream.name, &self.name, offset).await
    }

    /// [`save_offset`](Self::save_offset) when the transaction commits.
    ///
    /// # Errors
    ///
    /// As [`save_offset`](Self::save_offset); [`Error::InvalidArgument`] where the transaction is
    /// of another store.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged the offset or not.
    pub async fn save_offset_tx(&self, tx: &mut Tx<'_>, offset: Offset) -> Result<()> {
        let store = self.stream.store.store_id();
        tx.store_offset(store, &self.stream.name, &self.name, offset).await
    }

    /// Sets the saved offset to any place up to the head: the one way back. Subscriptions that
    /// are open go on from where they are.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the offset lies beyond the head, or what the engine
    /// meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has set the offset or not.
    pub async fn rewind(&self, offset: Offset) -> Result<()> {
        self.stream.store.rewind_consumer(&self.stream.name, &self.name, offset).await
    }

    /// Everything strictly after the saved offset, then live. Two subscriptions of one consumer
    /// both get every event.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn subscribe(&self) -> Result<Subscription> {
        let Stream { store, name } = &self.stream;
        let watch = store.watch(Topic::Stream(name.clone())).await?;
        Ok(Subscription::new(store.weak(), name.clone(), self.offset().await?, watch))
    }
}

/// A live tail of a stream. It ends when the store is closed, and doesn't keep it open.
///
/// Also a [`futures_core::Stream`] of the same items. A `next` that is dropped may leave a read
/// under way until it is polled again; a [`recv`](Self::recv) leaves none.
#[must_use = "a subscription yields nothing unless it is received from"]
pub struct Subscription {
    store: Arc<dyn WeakStore>,
    stream: StreamName,
    after: Offset,
    read: VecDeque<Event>,
    watch: Option<Box<dyn Watch>>,
    step: Step,
}

/// What a subscription that has nothing to yield is about.
enum Step {
    /// It has to look.
    Look,
    /// It reads, and keeps the store open meanwhile; no result where that is gone.
    Read(BoxFuture<'static, Option<Result<Vec<Event>>>>),
    /// It waits for a change.
    Wait(BoxFuture<'static, (Box<dyn Watch>, Result<()>)>),
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("stream", &self.stream)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    fn new(
        store: Arc<dyn WeakStore>,
        stream: StreamName,
        after: Offset,
        watch: Box<dyn Watch>,
    ) -> Self {
        Self { store, stream, after, read: VecDeque::new(), watch: Some(watch), step: Step::Look }
    }

    /// The next event; `None` once the store is closed or its last handle dropped. After an error
    /// it may be called again and goes on from the same place.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: `select!` and timeouts lose nothing.
    pub async fn recv(&mut self) -> Option<Result<Event>> {
        let receiving = Receiving(self);
        poll_fn(|cx| receiving.0.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            if !self.store.is_open() {
                return Poll::Ready(None);
            }
            if let Some(event) = self.read.pop_front() {
                self.after = event.offset;
                return Poll::Ready(Some(Ok(event)));
            }
            let outcome = match &mut self.step {
                Step::Look => {
                    let page = read_page(self.store.clone(), self.stream.clone(), self.after);
                    self.step = Step::Read(Box::pin(page));
                    continue;
                }
                Step::Read(page) => {
                    let page = ready!(page.as_mut().poll(cx));
                    self.step = Step::Look;
                    page.map(|events| events.map(|events| self.read = events.into()))
                }
                Step::Wait(wait) => {
                    let (watch, outcome) = ready!(wait.as_mut().poll(cx));
                    self.step = Step::Look;
                    self.watch = Some(watch);
                    if outcome.is_ok() {
                        continue;
                    }
                    Some(outcome)
                }
            };
            match outcome {
                None | Some(Err(Error::Closed)) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(())) if !self.read.is_empty() => {}
                Some(Ok(())) => {
                    let Some(watch) = self.watch.take() else { return Poll::Ready(None) };
                    self.step = Step::Wait(Box::pin(wait(watch)));
                }
            }
        }
    }
}

/// A `recv` under way. Dropped, it gives up a read, which would otherwise hold on to the store and
/// to a connection with nobody to poll it.
struct Receiving<'s>(&'s mut Subscription);

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if let Step::Read(_) = self.0.step {
            self.0.step = Step::Look;
        }
    }
}

async fn read_page(
    weak: Arc<dyn WeakStore>,
    stream: StreamName,
    after: Offset,
) -> Option<Result<Vec<Event>>> {
    let store = weak.upgrade()?;
    Some(store.read_events(&stream, after, SUBSCRIPTION_PAGE).await)
}

async fn wait(mut watch: Box<dyn Watch>) -> (Box<dyn Watch>, Result<()>) {
    let outcome = watch.changed(Wait::default()).await;
    (watch, outcome)
}

impl futures_core::Stream for Subscription {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(cx)
    }
}

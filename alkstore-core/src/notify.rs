//! Notify and listen: messages to whoever listens now.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::name::ChannelName;
use crate::payload::Payload;

/// How many messages a listener holds where the engine's options don't say otherwise.
pub const DEFAULT_LISTENER_MESSAGES: usize = 1024;

/// How many bytes of payload a listener holds where the engine's options don't say otherwise.
pub const DEFAULT_LISTENER_BYTES: usize = 16 * 1024 * 1024;

/// A message that was sent to a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The channel it was sent to.
    pub channel: ChannelName,
    /// Its payload.
    pub payload: Payload,
}

impl Message {
    /// For engines: a message that arrived.
    #[must_use]
    pub fn new(channel: ChannelName, payload: Payload) -> Self {
        Self { channel, payload }
    }
}

/// The notify primitives of an engine.
#[async_trait]
pub trait NotifyStore {
    /// Sends a message to every listener of the channel; never folded with an equal one.
    async fn send_message(&self, channel: &ChannelName, payload: Payload) -> Result<()>;

    /// Opens a listener: it gets every message whose commit comes after this returned.
    async fn open_listener(&self, channel: &ChannelName) -> Result<Listener>;
}

/// How much a listener holds before it drops the oldest messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerLimits {
    /// At most so many messages, at least 1.
    pub messages: usize,
    /// At most so many bytes of payload; one larger message is kept alone.
    pub bytes: usize,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self { messages: DEFAULT_LISTENER_MESSAGES, bytes: DEFAULT_LISTENER_BYTES }
    }
}

#[derive(Debug, Default)]
struct Buffer {
    messages: VecDeque<Message>,
    bytes: usize,
    /// Messages dropped since the last item, where there were any; 0 if their number is unknown.
    missed: Option<u64>,
    ended: bool,
    waker: Option<Waker>,
}

impl Buffer {
    fn push(&mut self, message: Message, limits: ListenerLimits) {
        self.bytes += message.payload.size();
        self.messages.push_back(message);
        while self.messages.len() > 1
            && (self.messages.len() > limits.messages || self.bytes > limits.bytes)
        {
            if let Some(dropped) = self.messages.pop_front() {
                self.bytes -= dropped.payload.size();
                self.missed = Some(match self.missed {
                    Some(0) => 0,
                    missed => missed.unwrap_or(0).saturating_add(1),
                });
            }
        }
    }

    fn pop(&mut self) -> Option<Result<Message>> {
        if let Some(missed) = self.missed.take() {
            return Some(Err(Error::Lagged { missed }));
        }
        let message = self.messages.pop_front()?;
        self.bytes -= message.payload.size();
        Some(Ok(message))
    }
}

#[derive(Debug)]
struct Shared {
    limits: ListenerLimits,
    buffer: Mutex<Buffer>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        // Nothing panics while it is held, so that a poisoned buffer is a whole one.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end of a [`Listener`]. Nothing here waits: a slow listener never slows a notifier.
#[derive(Debug, Clone)]
pub struct ListenerSender(Arc<Shared>);

impl ListenerSender {
    /// Puts a message into the buffer and returns who waits for it, to be woken once the engine
    /// holds no lock.
    #[must_use = "wake it"]
    pub fn send(&self, message: Message) -> Option<Waker> {
        let mut buffer = self.0.lock();
        buffer.push(message, self.0.limits);
        buffer.waker.take()
    }

    /// Says that messages are missing here and nobody knows how many.
    #[must_use = "wake it"]
    pub fn lagged(&self) -> Option<Waker> {
        let mut buffer = self.0.lock();
        buffer.missed = Some(0);
        buffer.waker.take()
    }

    /// Ends the listener.
    #[must_use = "wake it"]
    pub fn end(&self) -> Option<Waker> {
        let mut buffer = self.0.lock();
        *buffer = Buffer { ended: true, waker: buffer.waker.take(), ..Buffer::default() };
        buffer.waker.take()
    }
}

/// What an engine wants dropped with a listener: its place in a registry.
type Registration = Box<dyn Send + Sync>;

/// An open ear on a channel. It ends when the store is closed, and doesn't keep it open.
///
/// It holds 1024 messages or 16 MiB, unless the store was opened with other limits. Beyond that
/// the oldest are dropped and the next item is one [`Error::Lagged`], then come those retained.
///
/// Also a [`futures_core::Stream`] of the same items.
///
/// # Examples
///
/// ```
/// use alkstore_core::StoreExt;
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let mut deploys = store.listen("deploys").await?;
/// store.notify("deploys", &"v7 is out").await?;
/// while let Some(message) = deploys.recv().await {
///     println!("{:?}", message?.payload);
/// #   break;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a listener yields nothing unless it is received from"]
pub struct Listener {
    channel: ChannelName,
    shared: Arc<Shared>,
    _registration: Registration,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl Listener {
    /// For engines: a listener and the end that feeds it. `register` makes what is dropped with
    /// the listener.
    pub fn new(
        channel: ChannelName,
        limits: ListenerLimits,
        register: impl FnOnce(ListenerSender) -> Registration,
    ) -> Self {
        let limits = ListenerLimits { messages: limits.messages.max(1), ..limits };
        let shared = Arc::new(Shared { limits, buffer: Mutex::default() });
        let registration = register(ListenerSender(shared.clone()));
        Self { channel, shared, _registration: registration }
    }

    /// The channel it listens on.
    #[must_use]
    pub fn channel(&self) -> &str {
        self.channel.as_str()
    }

    /// The next message; `None` once the store is closed or its last handle dropped. After an
    /// error it may be called again.
    ///
    /// # Errors
    ///
    /// [`Error::Lagged`] where messages are missing, or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: `select!` and timeouts lose nothing.
    pub async fn recv(&mut self) -> Option<Result<Message>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
        let mut buffer = self.shared.lock();
        if buffer.ended {
            return Poll::Ready(None);
        }
        if let Some(item) = buffer.pop() {
            return Poll::Ready(Some(item));
        }
        match &mut buffer.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl futures_core::Stream for Listener {
    type Item = Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(cx)
    }
}

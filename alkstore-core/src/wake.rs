//! Waiting: how a waiter learns that it is worth looking again.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, select};

use crate::error::{Error, Result};
use crate::name::{LockName, QueueName, StreamName};
use crate::stop::StopToken;
use crate::time::Timestamp;

/// What a waiter waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// A job of the queue became claimable, or the queue was resumed.
    Queue(QueueName),
    /// An event was published to the stream.
    Stream(StreamName),
    /// The lock was released.
    Lock(LockName),
    /// A schedule was added, changed, removed, paused or resumed.
    Schedules,
}

/// How long a waiter waits where no wake comes; the earlier of the two where both are given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    /// Until this instant on the engine's clock.
    pub until: Option<Timestamp>,
    /// For this long on the engine's clock.
    pub within: Option<Duration>,
}

/// The waiting primitives of an engine.
///
/// Wakes are hints: an engine never misses one, sends it once the commit is visible, and may send
/// one for nothing. A waiter watches first and looks then, so that nothing falls between.
#[async_trait]
pub trait WakeStore {
    /// Begins to watch a topic: every change that becomes visible after this returned ends the
    /// next [`Watch::changed`].
    ///
    /// A wake may go to one watcher of the topic alone, as long as one that is dropped before it
    /// waited again passes its wake on.
    async fn watch(&self, topic: Topic) -> Result<Box<dyn Watch>>;

    /// Waits on the engine's clock; [`Error::Closed`] once the store is closed.
    async fn sleep(&self, duration: Duration) -> Result<()>;
}

/// A watch on a [`Topic`]. It doesn't keep the store alive.
#[async_trait]
pub trait Watch: Send {
    /// Returns after a change since the watch began or since this last returned, after the wait
    /// given, after the engine's safety poll, or for no reason; [`Error::Closed`] once the store
    /// is closed or its last handle dropped. Cancel-safe.
    async fn changed(&mut self, wait: Wait) -> Result<()>;
}

/// A pause that doubles from a first to a longest length.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// For a waiter that sees due work it can't take.
    pub(crate) const LOOK_AGAIN: Self =
        Self::new(Duration::from_millis(50), Duration::from_secs(1));

    /// For a loop that goes on after a fault.
    pub(crate) const FAULT: Self = Self::new(Duration::from_millis(50), Duration::from_secs(5));

    const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.longest);
        now
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Awaits the future unless the token stops first: `None` then, the future dropped.
pub(crate) async fn unless_stopped<T>(
    stop: &StopToken,
    future: impl Future<Output = T> + Send,
) -> Option<T> {
    let (stopped, future) = (std::pin::pin!(stop.stopped()), std::pin::pin!(future));
    match select(stopped, future).await {
        Either::Left(((), _)) => None,
        Either::Right((value, _)) => Some(value),
    }
}

/// The one error of an engine that answered a batch with the wrong number of results.
pub(crate) fn one_result<T>(mut results: Vec<T>) -> Result<T> {
    match (results.pop(), results.is_empty()) {
        (Some(result), true) => Ok(result),
        _ => Err(Error::engine("the engine answered one item with another number of results")),
    }
}

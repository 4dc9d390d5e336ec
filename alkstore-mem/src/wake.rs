//! Wakes: who waits for what, and how they hear of it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use alkstore_core::{Error, Result, Topic, Wait, WakeStore, Watch};
use async_trait::async_trait;
use futures_util::future::{Either, select};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::clock::Reading;
use crate::state::Shared;
use crate::store::MemStore;

/// The topics that somebody watches.
///
/// Work that one waiter can take wakes one: an enqueue doesn't wake a thousand idle workers. That
/// misses nothing because a watch that ends wakes the next one, which then looks for itself and
/// learns the next instant at which work falls due.
#[derive(Debug, Default)]
pub(crate) struct Topics(HashMap<Topic, Watched>);

#[derive(Debug)]
struct Watched {
    notify: Arc<Notify>,
    watchers: usize,
}

impl Topics {
    /// Whether nobody waits for anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn enter(&mut self, topic: Topic) -> Arc<Notify> {
        let watched = self
            .0
            .entry(topic)
            .or_insert_with(|| Watched { notify: Arc::new(Notify::new()), watchers: 0 });
        watched.watchers += 1;
        watched.notify.clone()
    }

    fn leave(&mut self, topic: &Topic) -> bool {
        let Some(watched) = self.0.get_mut(topic) else { return false };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            self.0.remove(topic);
            return false;
        }
        true
    }

    /// Lets so many watchers of a topic look again, once the lock is released.
    pub(crate) fn wake(&self, wakes: &mut Wakes, count: usize, topic: impl FnOnce() -> Topic) {
        if self.is_empty() || count == 0 {
            return;
        }
        if let Some(watched) = self.0.get(&topic()) {
            let all = count >= watched.watchers;
            wakes.watchers.push((watched.notify.clone(), if all { ALL } else { count }));
        }
    }

    /// Lets all watchers of all topics look again.
    pub(crate) fn wake_everyone(&self, wakes: &mut Wakes) {
        wakes.watchers.extend(self.0.values().map(|watched| (watched.notify.clone(), ALL)));
    }
}

/// All watchers of a topic.
pub(crate) const ALL: usize = usize::MAX;

/// Wakes that are due once the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    watchers: Vec<(Arc<Notify>, usize)>,
    listeners: Vec<Waker>,
}

impl Wakes {
    pub(crate) fn listener(&mut self, waker: Option<Waker>) {
        self.listeners.extend(waker);
    }

    pub(crate) fn fire(self) {
        for (notify, count) in self.watchers {
            if count == ALL {
                notify.notify_waiters();
            } else {
                (0..count).for_each(|_| notify.notify_one());
            }
        }
        self.listeners.into_iter().for_each(Waker::wake);
    }
}

/// Whether a store is closed, and how its waiters hear of it.
#[derive(Debug, Default)]
pub(crate) struct CloseSignal {
    closed: AtomicBool,
    notify: Notify,
}

impl CloseSignal {
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) async fn closed(&self) {
        let mut notified = std::pin::pin!(self.notify.notified());
        notified.as_mut().enable();
        if !self.is_closed() {
            notified.await;
        }
    }

    /// Awaits the future unless the store is closed first.
    pub(crate) async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let (closed, future) = (std::pin::pin!(self.closed()), std::pin::pin!(future));
        match select(closed, future).await {
            Either::Left(_) => Err(Error::Closed),
            Either::Right((value, _)) => Ok(value),
        }
    }
}

struct MemWatch {
    shared: Arc<Shared>,
    close: Arc<CloseSignal>,
    safety_poll: Option<Duration>,
    topic: Topic,
    notify: Arc<Notify>,
    notified: Pin<Box<OwnedNotified>>,
}

/// A wait that begins now: whatever is sent from here on ends it.
fn armed(notify: &Arc<Notify>) -> Pin<Box<OwnedNotified>> {
    let mut notified = Box::pin(notify.clone().notified_owned());
    notified.as_mut().enable();
    notified
}

#[async_trait]
impl Watch for MemWatch {
    async fn changed(&mut self, wait: Wait) -> Result<()> {
        if self.close.is_closed() {
            return Err(Error::Closed);
        }
        let Self { shared, close, notify, notified, .. } = self;
        let reading = Reading::of(&*shared.clock);
        let within = wait.within.into_iter().chain(self.safety_poll).min();
        let until = wait.until.into_iter().chain(within.map(|d| reading.after(d))).min();
        let timer = async {
            match until {
                Some(instant) => shared.clock.sleep_until(instant).await,
                None => std::future::pending().await,
            }
        };
        let woken = async {
            notified.as_mut().await;
            // Armed before the caller looks again, so that no wake falls between.
            *notified = armed(notify);
        };
        close.unless_closed(select(std::pin::pin!(woken), std::pin::pin!(timer))).await.map(drop)
    }
}

impl Drop for MemWatch {
    fn drop(&mut self) {
        let others = self.shared.state.lock().topics.leave(&self.topic);
        if others && matches!(self.topic, Topic::Queue(_) | Topic::Lock(_)) {
            self.notify.notify_one();
        }
    }
}

#[async_trait]
impl WakeStore for MemStore {
    async fn watch(&self, topic: Topic) -> Result<Box<dyn Watch>> {
        let open = &self.open;
        let notify = open.act(|view| view.state.topics.enter(topic.clone()))?;
        Ok(Box::new(MemWatch {
            shared: open.shared.clone(),
            close: open.close.clone(),
            safety_poll: open.options.safety_poll,
            topic,
            notified: armed(&notify),
            notify,
        }))
    }

    async fn sleep(&self, duration: Duration) -> Result<()> {
        let clock = &self.open.shared.clock;
        let until = Reading::of(&**clock).after(duration);
        self.open.close.unless_closed(clock.sleep_until(until)).await
    }
}

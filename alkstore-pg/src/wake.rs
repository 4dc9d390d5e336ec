//! Wakes: who waits for what in this process, and how they hear of it.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use alkstore_core::{
    Error, LockName, QueueName, Result, StreamName, Topic, Wait, WakeStore, Watch,
};
use async_trait::async_trait;
use futures_util::future::{Either, select};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::clock::{LONGEST_SLEEP, pause};
use crate::store::{Open, PgStore};

/// The topic that a wake names, as the schema's functions write it.
pub(crate) fn topic(text: &str) -> Option<Topic> {
    let (kind, name) = text.split_at_checked(1)?;
    Some(match kind {
        "q" => Topic::Queue(QueueName::stored(name)),
        "s" => Topic::Stream(StreamName::stored(name)),
        "l" => Topic::Lock(LockName::stored(name)),
        "c" => Topic::Schedules,
        _ => return None,
    })
}

/// The topics that somebody watches.
///
/// Work that one waiter can take wakes one in each process: an enqueue doesn't wake a thousand
/// idle workers. That misses nothing because whoever was woken and takes a job wakes the next one,
/// which then looks for itself and learns the next instant at which work falls due, and so does a
/// watch that ends.
#[derive(Debug, Default)]
pub(crate) struct Topics(HashMap<Topic, Watched>);

#[derive(Debug)]
struct Watched {
    notify: Arc<Notify>,
    watchers: usize,
}

impl Topics {
    fn enter(&mut self, topic: Topic) -> Arc<Notify> {
        let watched = self
            .0
            .entry(topic)
            .or_insert_with(|| Watched { notify: Arc::new(Notify::new()), watchers: 0 });
        watched.watchers += 1;
        watched.notify.clone()
    }

    /// One watcher less; whether others are left.
    fn leave(&mut self, topic: &Topic) -> bool {
        let Some(watched) = self.0.get_mut(topic) else { return false };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            self.0.remove(topic);
            return false;
        }
        true
    }

    /// Something of a topic has changed.
    pub(crate) fn wake(&self, topic: &Topic) {
        if let Some(watched) = self.0.get(topic) {
            match topic {
                Topic::Queue(_) => watched.notify.notify_one(),
                _ => watched.notify.notify_waiters(),
            }
        }
    }

    /// Lets all watchers of all topics look again.
    pub(crate) fn wake_everyone(&self) {
        self.0.values().for_each(|watched| watched.notify.notify_waiters());
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
        let mut notified = pin!(self.notify.notified());
        notified.as_mut().enable();
        if !self.is_closed() {
            notified.await;
        }
    }

    /// Ends when the store has been closed for so long.
    pub(crate) async fn closed_for(&self, grace: Duration) {
        self.closed().await;
        pause(grace).await;
    }

    /// Awaits the future unless the store is closed first.
    pub(crate) async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        match select(pin!(self.closed()), pin!(future)).await {
            Either::Left(_) => Err(Error::Closed),
            Either::Right((value, _)) => Ok(value),
        }
    }
}

struct PgWatch {
    open: Weak<Open>,
    close: Arc<CloseSignal>,
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

impl PgWatch {
    /// How long to wait where no wake comes.
    fn longest(&self, wait: Wait) -> Result<Option<Duration>> {
        let open = self.open.upgrade().ok_or(Error::Closed)?;
        open.usable()?;
        let until = wait.until.map(|at| open.clock.until(at).min(LONGEST_SLEEP));
        Ok(until.into_iter().chain(wait.within).chain(open.safety_poll()).min())
    }
}

#[async_trait]
impl Watch for PgWatch {
    async fn changed(&mut self, wait: Wait) -> Result<()> {
        let longest = self.longest(wait)?;
        let Self { close, notify, notified, .. } = self;
        let timer = async {
            match longest {
                // Rounded up: a server's millisecond may have to begin first.
                Some(rest) => pause(rest + Duration::from_millis(1)).await,
                None => std::future::pending().await,
            }
        };
        let woken = async {
            notified.as_mut().await;
            // Armed before the caller looks again, so that no wake falls between.
            *notified = armed(notify);
        };
        close.unless_closed(select(pin!(woken), pin!(timer))).await.map(drop)
    }
}

impl Drop for PgWatch {
    fn drop(&mut self) {
        let Some(open) = self.open.upgrade() else { return };
        let others = open.topics.lock().leave(&self.topic);
        if others && matches!(self.topic, Topic::Queue(_)) {
            self.notify.notify_one();
        }
    }
}

#[async_trait]
impl WakeStore for PgStore {
    async fn watch(&self, topic: Topic) -> Result<Box<dyn Watch>> {
        let open = &self.open;
        open.usable()?;
        let notify = open.topics.lock().enter(topic.clone());
        let watch = PgWatch {
            open: Arc::downgrade(open),
            close: open.close.clone(),
            topic,
            notified: armed(&notify),
            notify,
        };
        open.listening.begun(open).await?;
        Ok(Box::new(watch))
    }

    async fn sleep(&self, duration: Duration) -> Result<()> {
        let open = &self.open;
        open.close.unless_closed(open.clock.sleep(duration)).await
    }
}

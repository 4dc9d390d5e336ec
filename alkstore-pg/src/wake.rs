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
/// idle workers. That misses nothing because whoever was woken and takes as many jobs as it may
/// wakes the next one, and so does a watch that ends before it has looked, or while it waits for an
/// instant, unless somebody has taken something since. Who takes fewer has left
/// nothing; that the next one looks soon is for what nobody tells of: the instant at which work
/// falls due, and claims whose transaction ends with its connection.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    watched: HashMap<Topic, Watched>,
    /// How often a watch was told or learned something, of all topics.
    wakes: u64,
}

#[derive(Debug)]
struct Watched {
    notify: Arc<Notify>,
    watchers: usize,
    /// The last of those moments after which somebody has taken something.
    looked: u64,
    /// Whether somebody is about to be told to look.
    soon: bool,
}

/// How soon a waiter looks for what nobody tells of, after somebody else took all there was.
const SOON: Duration = Duration::from_millis(20);

impl Topics {
    fn enter(&mut self, topic: Topic) -> Arc<Notify> {
        let new = || Watched { notify: Arc::default(), watchers: 0, looked: 0, soon: false };
        let watched = self.watched.entry(topic).or_insert_with(new);
        watched.watchers += 1;
        watched.notify.clone()
    }

    fn leave(&mut self, topic: &Topic) {
        if let Some(watched) = self.watched.get_mut(topic) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                self.watched.remove(topic);
            }
        }
    }

    /// A watch has been told, or has learned for what to wait: a number for that moment.
    fn reached(&mut self) -> u64 {
        self.wakes += 1;
        self.wakes
    }

    /// Whether nobody has taken something since such a moment.
    fn is_unseen(&self, topic: &Topic, wake: u64) -> bool {
        self.watched.get(topic).is_some_and(|watched| watched.looked < wake)
    }

    /// The last such moment before now.
    pub(crate) fn last_wake(&self) -> u64 {
        self.wakes
    }

    /// Somebody has looked and taken something, and lets the next one look.
    pub(crate) fn looked(&mut self, topic: &Topic, wake: u64) {
        if let Some(watched) = self.watched.get_mut(topic) {
            watched.looked = watched.looked.max(wake);
        }
    }

    /// Something of a topic has changed.
    pub(crate) fn wake(&self, topic: &Topic) {
        if let Some(watched) = self.watched.get(topic) {
            match topic {
                Topic::Queue(_) => watched.notify.notify_one(),
                _ => watched.notify.notify_waiters(),
            }
        }
    }

    /// Whether to wake a watch soon; nobody is, or somebody else does, where not.
    fn is_to_wake_soon(&mut self, topic: &Topic) -> bool {
        self.watched
            .get_mut(topic)
            .is_some_and(|watched| !std::mem::replace(&mut watched.soon, true))
    }

    fn wake_now(&mut self, topic: &Topic) {
        if let Some(watched) = self.watched.get_mut(topic) {
            watched.soon = false;
        }
        self.wake(topic);
    }

    /// Lets all watchers of all topics look again.
    pub(crate) fn wake_everyone(&self) {
        self.watched.values().for_each(|watched| watched.notify.notify_waiters());
    }
}

impl Open {
    /// Lets a watch of a topic look again soon.
    pub(crate) fn wake_soon(self: &Arc<Self>, topic: Topic) {
        if self.topics.lock().is_to_wake_soon(&topic) {
            let open = self.clone();
            self.spawn(async move {
                pause(SOON).await;
                open.topics.lock().wake_now(&topic);
            });
        }
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
    /// Since when it may be the only one that knows of a wake, or of what it waits for.
    owes: Option<u64>,
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
        let Self { open, close, notify, notified, owes, .. } = self;
        let reached = || open.upgrade().map(|open| open.topics.lock().reached());
        let knows = wait.until.is_some() || wait.within.is_some();
        *owes = if knows { reached() } else { None };
        let timer = async {
            match longest {
                // Rounded up: a server's millisecond may have to begin first.
                Some(rest) => pause(rest + Duration::from_millis(1)).await,
                None => std::future::pending().await,
            }
        };
        let told = async {
            notified.as_mut().await;
            // Armed before the caller looks again, so that no wake falls between.
            *notified = armed(notify);
            *owes = reached();
        };
        close.unless_closed(select(pin!(told), pin!(timer))).await.map(drop)
    }
}

impl Drop for PgWatch {
    fn drop(&mut self) {
        let Some(open) = self.open.upgrade() else { return };
        let mut topics = open.topics.lock();
        topics.leave(&self.topic);
        let unseen = self.owes.is_some_and(|wake| topics.is_unseen(&self.topic, wake));
        if unseen && matches!(self.topic, Topic::Queue(_)) {
            topics.wake(&self.topic);
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
            owes: None,
        };
        open.listening.begun(open).await?;
        Ok(Box::new(watch))
    }

    async fn sleep(&self, duration: Duration) -> Result<()> {
        let open = &self.open;
        open.close.unless_closed(open.clock.sleep(duration)).await
    }
}

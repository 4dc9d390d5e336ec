//! Wakes: who waits for what in this process, and how they hear of it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use alkstore_core::{Error, Result, Timestamp, Topic, Wait, WakeStore, Watch};
use async_trait::async_trait;
use futures_util::future::{Either, select};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::clock::{Clock, Reading};
use crate::hub::Hub;
use crate::store::SqliteStore;

/// All watchers of a topic.
pub(crate) const ALL: usize = usize::MAX;

/// What a write has to tell once it is committed.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    wakes: HashMap<Topic, usize>,
    sooner: HashMap<Topic, i64>,
    /// Messages were sent.
    pub(crate) messages: bool,
}

impl Effects {
    /// So many watchers of a topic have to look again.
    pub(crate) fn wake(&mut self, topic: Topic, count: usize) {
        if count > 0 {
            let wakes = self.wakes.entry(topic).or_default();
            *wakes = wakes.saturating_add(count);
        }
    }

    /// Something of a topic falls due at this instant, which may be earlier than all its watchers
    /// know of.
    pub(crate) fn sooner(&mut self, topic: Topic, at: i64) {
        let sooner = self.sooner.entry(topic).or_insert(at);
        *sooner = at.min(*sooner);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        other.wakes.into_iter().for_each(|(topic, count)| self.wake(topic, count));
        other.sooner.into_iter().for_each(|(topic, at)| self.sooner(topic, at));
        self.messages |= other.messages;
    }
}

/// The topics that somebody watches.
///
/// Work that one waiter can take wakes one: an enqueue doesn't wake a thousand idle workers. That
/// misses nothing because a watch that ends wakes the next one, which then looks for itself and
/// learns the next instant at which work falls due.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    watched: HashMap<Topic, Watched>,
    last: u64,
}

#[derive(Debug)]
struct Watched {
    notify: Arc<Notify>,
    watchers: usize,
    /// Until when those wait who wait until an instant.
    until: HashMap<u64, i64>,
}

impl Topics {
    fn enter(&mut self, topic: Topic) -> (u64, Arc<Notify>) {
        self.last += 1;
        let watched = self.watched.entry(topic).or_insert_with(|| Watched {
            notify: Arc::new(Notify::new()),
            watchers: 0,
            until: HashMap::new(),
        });
        watched.watchers += 1;
        (self.last, watched.notify.clone())
    }

    fn leave(&mut self, topic: &Topic, number: u64) -> bool {
        let Some(watched) = self.watched.get_mut(topic) else { return false };
        watched.until.remove(&number);
        watched.watchers -= 1;
        if watched.watchers == 0 {
            self.watched.remove(topic);
            return false;
        }
        true
    }

    fn waits(&mut self, topic: &Topic, number: u64, until: Option<i64>) {
        let Some(watched) = self.watched.get_mut(topic) else { return };
        match until {
            Some(until) => watched.until.insert(number, until),
            None => watched.until.remove(&number),
        };
    }

    /// What a committed write has to tell.
    fn told(&self, effects: &Effects) -> Vec<Wake> {
        let mut wakes = Vec::new();
        if self.watched.is_empty() {
            return wakes;
        }
        for (topic, &count) in &effects.wakes {
            if let Some(watched) = self.watched.get(topic) {
                wakes.push(watched.wake(count));
            }
        }
        for (topic, at) in &effects.sooner {
            if let Some(watched) = self.watched.get(topic)
                && !watched.until.values().any(|until| until <= at)
            {
                wakes.push(watched.wake(1));
            }
        }
        wakes
    }

    fn everyone(&self) -> Vec<Wake> {
        self.watched.values().map(|watched| watched.wake(ALL)).collect()
    }
}

impl Hub {
    /// Wakes those whom a committed write concerns.
    pub(crate) fn wake(&self, effects: &Effects) {
        let wakes = self.topics.lock().told(effects);
        wakes.into_iter().for_each(Wake::send);
    }

    /// Lets all watchers of all topics look again.
    pub(crate) fn wake_everyone(&self) {
        let wakes = self.topics.lock().everyone();
        wakes.into_iter().for_each(Wake::send);
    }
}

/// A wake that is still to be sent: whoever is woken may run on the spot, and must find no lock
/// held.
struct Wake {
    notify: Arc<Notify>,
    /// How many; everybody where there is no number.
    count: Option<usize>,
}

impl Wake {
    fn send(self) {
        match self.count {
            None => self.notify.notify_waiters(),
            Some(count) => (0..count).for_each(|_| self.notify.notify_one()),
        }
    }
}

impl Watched {
    fn wake(&self, count: usize) -> Wake {
        let count = (count < self.watchers).then_some(count);
        Wake { notify: self.notify.clone(), count }
    }
}

/// Whether a store is closed, and how its waiters hear of it.
#[derive(Debug, Default)]
pub(crate) struct CloseSignal {
    closed: AtomicBool,
    notify: Notify,
    /// A transaction of the store has let the writer go.
    pub(crate) lease_ended: Notify,
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

struct SqliteWatch {
    hub: Arc<Hub>,
    clock: Arc<dyn Clock>,
    close: Arc<CloseSignal>,
    safety_poll: Option<Duration>,
    topic: Topic,
    number: u64,
    notify: Arc<Notify>,
    notified: Pin<Box<OwnedNotified>>,
}

/// A wait that begins now: whatever is sent from here on ends it.
fn armed(notify: &Arc<Notify>) -> Pin<Box<OwnedNotified>> {
    let mut notified = Box::pin(notify.clone().notified_owned());
    notified.as_mut().enable();
    notified
}

/// Says until when a watcher waits, for as long as it does.
struct Waiting<'w> {
    hub: &'w Hub,
    topic: &'w Topic,
    number: u64,
}

impl<'w> Waiting<'w> {
    fn begin(hub: &'w Hub, topic: &'w Topic, number: u64, until: Option<Timestamp>) -> Self {
        hub.topics.lock().waits(topic, number, until.map(Timestamp::as_millis));
        Self { hub, topic, number }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.hub.topics.lock().waits(self.topic, self.number, None);
    }
}

#[async_trait]
impl Watch for SqliteWatch {
    async fn changed(&mut self, wait: Wait) -> Result<()> {
        if self.close.is_closed() {
            return Err(Error::Closed);
        }
        self.hub.usable()?;
        let Self { hub, clock, close, notify, notified, topic, number, .. } = self;
        let reading = Reading::of(&**clock);
        let within = wait.within.into_iter().chain(self.safety_poll).min();
        let within = within.map(|d| Timestamp::from_millis(reading.after(d)));
        let until = wait.until.into_iter().chain(within).min();
        let waiting = Waiting::begin(hub, topic, *number, until);
        let timer = async {
            match until {
                Some(instant) => clock.sleep_until(instant).await,
                None => std::future::pending().await,
            }
        };
        let woken = async {
            notified.as_mut().await;
            // Armed before the caller looks again, so that no wake falls between.
            *notified = armed(notify);
        };
        close.unless_closed(select(std::pin::pin!(woken), std::pin::pin!(timer))).await?;
        drop(waiting);
        self.hub.usable()
    }
}

impl Drop for SqliteWatch {
    fn drop(&mut self) {
        let others = self.hub.topics.lock().leave(&self.topic, self.number);
        if others && matches!(self.topic, Topic::Queue(_) | Topic::Lock(_)) {
            self.notify.notify_one();
        }
    }
}

#[async_trait]
impl WakeStore for SqliteStore {
    async fn watch(&self, topic: Topic) -> Result<Box<dyn Watch>> {
        let open = &self.open;
        open.usable()?;
        let (number, notify) = open.hub.topics.lock().enter(topic.clone());
        Ok(Box::new(SqliteWatch {
            hub: open.hub.clone(),
            clock: open.options.clock.clone(),
            close: open.close.clone(),
            safety_poll: open.options.safety_poll,
            topic,
            number,
            notified: armed(&notify),
            notify,
        }))
    }

    async fn sleep(&self, duration: Duration) -> Result<()> {
        let clock = &self.open.options.clock;
        let until = Timestamp::from_millis(Reading::of(&**clock).after(duration));
        self.open.close.unless_closed(clock.sleep_until(until)).await
    }
}

//! Notify and listen.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use alkstore_core::{
    ChannelName, Error, Listener, ListenerSender, Message, NotifyStore, Payload, Result, StoreId,
};
use async_trait::async_trait;

use crate::observe::Observed;
use crate::state::{Shared, View};
use crate::store::MemStore;
use crate::wake::Wakes;

/// The listeners that are open, by channel.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    channels: HashMap<ChannelName, Vec<Open>>,
    last: u64,
}

#[derive(Debug)]
struct Open {
    number: u64,
    store: StoreId,
    sender: ListenerSender,
}

impl Listeners {
    fn send(&self, message: &Message, wakes: &mut Wakes) {
        for listener in self.channels.get(&message.channel).into_iter().flatten() {
            wakes.listener(listener.sender.send(message.clone()));
        }
    }

    pub(crate) fn end_all_of(&mut self, store: StoreId, wakes: &mut Wakes) {
        self.channels.retain(|_, listeners| {
            for ended in listeners.extract_if(.., |listener| listener.store == store) {
                wakes.listener(ended.sender.end());
            }
            !listeners.is_empty()
        });
    }

    fn add(&mut self, channel: ChannelName, store: StoreId, sender: ListenerSender) -> u64 {
        self.last += 1;
        let number = self.last;
        self.channels.entry(channel).or_default().push(Open { number, store, sender });
        number
    }

    fn remove(&mut self, channel: &ChannelName, number: u64) -> Option<Open> {
        let listeners = self.channels.get_mut(channel)?;
        // They stand in the order of their numbers.
        let place = listeners.binary_search_by_key(&number, |listener| listener.number).ok()?;
        let removed = listeners.remove(place);
        if listeners.is_empty() {
            self.channels.remove(channel);
        }
        Some(removed)
    }
}

/// A listener's place among the others; it is given up with the listener.
struct Registration {
    shared: Weak<Shared>,
    channel: ChannelName,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let removed = shared.lock().listeners.remove(&self.channel, self.number);
            // With it goes the waker of whoever waited, and maybe a task that has to reach the
            // state in turn: the lock is released by now.
            drop(removed);
        }
    }
}

pub(crate) fn send_message(view: &mut View<'_>, channel: &ChannelName, payload: Payload) {
    let message = Message::new(channel.clone(), payload);
    match &mut view.tx {
        Some(staged) => staged.messages.push(message),
        None => send(view, &message),
    }
}

/// A message goes out here, at once or at a transaction's commit.
pub(crate) fn send(view: &mut View<'_>, message: &Message) {
    view.state.listeners.send(message, view.wakes);
    view.state.tap.tell(|| Some(Observed::Notified(message.clone())));
}

#[async_trait]
impl NotifyStore for MemStore {
    async fn send_message(&self, channel: &ChannelName, payload: Payload) -> Result<()> {
        self.open.act(|view| send_message(view, channel, payload))
    }

    async fn open_listener(&self, channel: &ChannelName) -> Result<Listener> {
        let open = &self.open;
        let mut registered: Result<u64> = Err(Error::Closed);
        let listener = Listener::new(channel.clone(), open.options.listener, |sender| {
            registered =
                open.act(|view| view.state.listeners.add(channel.clone(), open.id, sender));
            Box::new(registered.as_ref().ok().map(|&number| Registration {
                shared: Arc::downgrade(&open.shared),
                channel: channel.clone(),
                number,
            }))
        });
        registered.map(|_| listener)
    }
}

//! Notify and listen.

use std::sync::Arc;

use alkstore_core::{ChannelName, Error, Listener, ListenerSender, NotifyStore, Payload, Result};
use async_trait::async_trait;

use crate::error::Outcome;
use crate::sql::Sql;
use crate::store::{Open, PgStore};

/// The listeners that are open on a store.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    senders: Vec<ListenerSender>,
}

/// Listeners that were taken out of the registry, whose lock is released by now.
pub(crate) struct Ended(Vec<ListenerSender>);

impl Listeners {
    pub(crate) fn take_all(&mut self) -> Ended {
        Ended(std::mem::take(&mut self.senders))
    }
}

impl Ended {
    pub(crate) fn end(self) {
        for sender in self.0 {
            if let Some(waker) = sender.end() {
                waker.wake();
            }
        }
    }
}

/// A piece of a message arrived.
pub(crate) fn heard(_open: &Arc<Open>, _text: &str) {}

/// The listening connection was lost and is back: messages may be missing.
pub(crate) fn lost(_open: &Arc<Open>) {}

/// Sends a message when the statement's transaction commits.
pub(crate) async fn send_message(
    _sql: &mut Sql<'_>,
    _channel: &ChannelName,
    _payload: &Payload,
) -> Outcome<()> {
    Err(Error::engine("notify is on its way").into())
}

#[async_trait]
impl NotifyStore for PgStore {
    async fn send_message(&self, channel: &ChannelName, payload: Payload) -> Result<()> {
        let channel = channel.clone();
        self.open
            .write(move |mut sql| {
                let (channel, payload) = (channel.clone(), payload.clone());
                Box::pin(async move { send_message(&mut sql, &channel, &payload).await })
            })
            .await
    }

    async fn open_listener(&self, _channel: &ChannelName) -> Result<Listener> {
        self.open.usable()?;
        self.open.listening.begun(&self.open).await?;
        Err(Error::engine("listen is on its way"))
    }
}

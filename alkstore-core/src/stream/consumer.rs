//! Consumers: readers whose place the store keeps.

use super::{Event, Offset, Stream, Subscription};
use crate::error::Result;
use crate::name::LocalName;
use crate::tx::Tx;
use crate::wake::Topic;

/// A named reader of a stream whose place the store keeps: an address, cheap to clone.
///
/// Saving is explicit and never happens on drop. Save after the effect and an event may be seen
/// twice; save in the transaction of the effect and it is seen once.
#[derive(Debug, Clone)]
pub struct Consumer {
    pub(super) stream: Stream,
    pub(super) name: LocalName,
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
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the offset lies beyond the head, or what the engine
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
    /// As [`save_offset`](Self::save_offset); [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the transaction is
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
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the offset lies beyond the head, or what the engine
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

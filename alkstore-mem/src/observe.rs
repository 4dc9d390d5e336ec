//! Who hears what happens to the data, for tests of applications.

use std::fmt;
use std::sync::Arc;

use alkstore_core::{Event, JobRecord, Message, QueueName, StreamName};

/// Something that happened to the data of a memory store, once it was visible to everybody.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Observed {
    /// A job was added, as it was at that instant; a schedule's too.
    Enqueued(JobRecord),
    /// An event took its place.
    Published {
        /// The stream.
        stream: StreamName,
        /// The event.
        event: Event,
    },
    /// A message was sent, whether somebody listened or not.
    Notified(Message),
    /// Somebody asked a queue for work, and got it or not.
    Asked(QueueName),
}

/// Hears what happens to the data of a memory store, in order.
pub trait Observer: Send + Sync + fmt::Debug + 'static {
    /// Takes note. It is called inside of the operation: it mustn't wait, nor call the store.
    fn observe(&self, observed: Observed);
}

/// Where the state tells its observer, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Tap(pub(crate) Option<Arc<dyn Observer>>);

impl Tap {
    pub(crate) fn tell(&self, observed: impl FnOnce() -> Option<Observed>) {
        if let Some(observer) = &self.0 {
            observed().into_iter().for_each(|observed| observer.observe(observed));
        }
    }
}

//! The audit: a consumer of the stream that stops in the middle and goes on where it had stopped.

use std::time::Duration;

use alkstore::prelude::*;
use tokio::sync::watch;

use super::Failure;
use super::screen::Screen;

const CONSUMER: &str = "audit";

/// For how long nobody audits.
const REST: Duration = Duration::from_millis(300);

/// What the audit saw.
#[derive(Debug)]
pub(crate) struct Audit {
    /// Its offset before the run.
    pub(crate) began_after: Offset,
    /// What it had handled when it stopped.
    pub(crate) stopped_after: Offset,
    /// Where it went on: what it had saved.
    pub(crate) resumed_after: Offset,
    /// Every event it handled, in the order in which it did.
    pub(crate) handled: Vec<Event>,
}

impl Audit {
    /// Follows the stream until it has handled the head that `published` tells in the end, and
    /// stops in between when it has handled `halfway` events.
    pub(crate) async fn run(
        stream: &Stream,
        halfway: usize,
        mut published: watch::Receiver<Option<Offset>>,
        screen: &Screen,
    ) -> Result<Self, Failure> {
        let consumer = stream.consumer(CONSUMER)?;
        let mut last = consumer.offset().await?;
        let mut audit = Self {
            began_after: last,
            stopped_after: last,
            resumed_after: last,
            handled: Vec::new(),
        };

        let mut events = consumer.subscribe().await?;
        while let Some(event) = next(&mut events, last, &mut published).await? {
            // It stops with an event in hand that it hasn't handled: that one comes again.
            if audit.handled.len() >= halfway {
                break;
            }
            last = event.offset;
            audit.handle(&consumer, event).await?;
        }
        drop((events, consumer));
        audit.stopped_after = last;
        screen.say(&format!("audit: stops after event {last}"));
        tokio::time::sleep(REST).await;

        let consumer = stream.consumer(CONSUMER)?;
        last = consumer.offset().await?;
        audit.resumed_after = last;
        screen.say(&format!("audit: goes on after event {last}"));
        let mut events = consumer.subscribe().await?;
        while let Some(event) = next(&mut events, last, &mut published).await? {
            last = event.offset;
            audit.handle(&consumer, event).await?;
        }
        Ok(audit)
    }

    async fn handle(&mut self, consumer: &Consumer, event: Event) -> Result<(), Failure> {
        let offset = event.offset;
        self.handled.push(event);
        Ok(consumer.save_offset(offset).await?)
    }
}

/// The next event, or `None` once everything published was seen.
async fn next(
    events: &mut Subscription,
    last: Offset,
    published: &mut watch::Receiver<Option<Offset>>,
) -> Result<Option<Event>, Failure> {
    let all_seen = |head: &Option<Offset>| head.is_some_and(|head| last >= head);
    tokio::select! {
        event = events.recv() => Ok(event.transpose()?),
        // The publisher leaves once it has told the head, and there may be more to see.
        true = async { published.wait_for(all_seen).await.is_ok() } => Ok(None),
    }
}

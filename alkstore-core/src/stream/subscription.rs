//! Subscriptions: live tails of streams.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;

use super::{Event, Offset};
use crate::error::{Error, Result};
use crate::name::StreamName;
use crate::store::WeakStore;
use crate::wake::{Wait, Watch};

/// How many events a subscription reads at once.
const SUBSCRIPTION_PAGE: usize = 256;

/// A live tail of a stream. It ends when the store is closed, and doesn't keep it open.
///
/// Also a [`futures_core::Stream`] of the same items. A `next` that is dropped may leave a read
/// under way until it is polled again; a [`recv`](Self::recv) leaves none.
#[must_use = "a subscription yields nothing unless it is received from"]
pub struct Subscription {
    store: Arc<dyn WeakStore>,
    stream: StreamName,
    after: Offset,
    read: VecDeque<Event>,
    watch: Option<Box<dyn Watch>>,
    step: Step,
}

/// What a subscription that has nothing to yield is about.
enum Step {
    /// It has to look.
    Look,
    /// It reads, and keeps the store open meanwhile; no result where that is gone.
    Read(BoxFuture<'static, Option<Result<Vec<Event>>>>),
    /// It waits for a change.
    Wait(BoxFuture<'static, (Box<dyn Watch>, Result<()>)>),
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("stream", &self.stream)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    pub(super) fn new(
        store: Arc<dyn WeakStore>,
        stream: StreamName,
        after: Offset,
        watch: Box<dyn Watch>,
    ) -> Self {
        Self { store, stream, after, read: VecDeque::new(), watch: Some(watch), step: Step::Look }
    }

    /// The next event; `None` once the store is closed or its last handle dropped. After an error
    /// it may be called again and goes on from the same place.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: `select!` and timeouts lose nothing.
    pub async fn recv(&mut self) -> Option<Result<Event>> {
        let receiving = Receiving(self);
        poll_fn(|cx| receiving.0.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let polled = self.poll_open(cx);
        if matches!(polled, Poll::Ready(None)) {
            // A watch may hold on to the data of the store, and events to their payloads.
            (self.read, self.watch, self.step) = (VecDeque::new(), None, Step::Look);
        }
        polled
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            if !self.store.is_open() {
                return Poll::Ready(None);
            }
            if let Some(event) = self.read.pop_front() {
                self.after = event.offset;
                return Poll::Ready(Some(Ok(event)));
            }
            let outcome = match &mut self.step {
                Step::Look => {
                    let page = read_page(self.store.clone(), self.stream.clone(), self.after);
                    self.step = Step::Read(Box::pin(page));
                    continue;
                }
                Step::Read(page) => {
                    let page = ready!(page.as_mut().poll(cx));
                    self.step = Step::Look;
                    page.map(|events| events.map(|events| self.read = events.into()))
                }
                Step::Wait(wait) => {
                    let (watch, outcome) = ready!(wait.as_mut().poll(cx));
                    self.step = Step::Look;
                    self.watch = Some(watch);
                    if outcome.is_ok() {
                        continue;
                    }
                    Some(outcome)
                }
            };
            match outcome {
                None | Some(Err(Error::Closed)) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(())) if !self.read.is_empty() => {}
                Some(Ok(())) => {
                    let Some(watch) = self.watch.take() else { return Poll::Ready(None) };
                    self.step = Step::Wait(Box::pin(wait(watch)));
                }
            }
        }
    }
}

/// A `recv` under way. Dropped, it gives up a read, which would otherwise hold on to the store and
/// to a connection with nobody to poll it.
struct Receiving<'s>(&'s mut Subscription);

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if let Step::Read(_) = self.0.step {
            self.0.step = Step::Look;
        }
    }
}

async fn read_page(
    weak: Arc<dyn WeakStore>,
    stream: StreamName,
    after: Offset,
) -> Option<Result<Vec<Event>>> {
    let store = weak.upgrade()?;
    Some(store.read_events(&stream, after, SUBSCRIPTION_PAGE).await)
}

async fn wait(mut watch: Box<dyn Watch>) -> (Box<dyn Watch>, Result<()>) {
    let outcome = watch.changed(Wait::default()).await;
    (watch, outcome)
}

impl futures_core::Stream for Subscription {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(cx)
    }
}

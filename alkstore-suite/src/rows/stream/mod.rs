//! Rows of docs/architecture/stream.md.

use alkstore_core::{Event, Offset, Subscription};

use crate::cx::Cx;

mod consumer;
mod log;
mod subscription;
mod trim;
mod tx;

pub(crate) use consumer::*;
pub(crate) use log::*;
pub(crate) use subscription::*;
pub(crate) use trim::*;
pub(crate) use tx::*;

fn at(offset: i64) -> Offset {
    Offset::try_from(offset).unwrap()
}

/// The offsets of events.
fn places(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.offset.get()).collect()
}

/// The payloads of events, which are all text.
fn texts(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| event.payload.decode().unwrap()).collect()
}

/// The next event of a subscription, which has to come.
async fn next(cx: &Cx, subscription: &mut Subscription) -> Event {
    cx.within(subscription.recv()).await.expect("the subscription goes on").unwrap()
}

/// Sees that a subscription has nothing to yield.
async fn assert_quiet(cx: &Cx, subscription: &mut Subscription) {
    let item = cx.briefly(&mut Box::pin(subscription.recv())).await;
    assert!(item.is_none(), "{item:?}");
}

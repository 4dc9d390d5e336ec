//! What the types of the application surface promise the compiler.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use alkstore::*;
use static_assertions::{assert_impl_all, assert_not_impl_any, assert_obj_safe};

assert_obj_safe!(Store);
assert_impl_all!(Arc<dyn Store>: Store, StoreExt, Clone, Send, Sync);

// Addresses are cheap to clone.
assert_impl_all!(Queue: Clone, Send, Sync, Unpin);
assert_impl_all!(Stream: Clone, Send, Sync, Unpin);
assert_impl_all!(Consumer: Clone, Send, Sync, Unpin);
assert_impl_all!(Outbox: Clone, Send, Sync, Unpin);
assert_impl_all!(StopToken: Clone, Default, Send, Sync);
assert_impl_all!(Delivery: Clone, Send, Sync);

// Possessions aren't.
assert_impl_all!(Job: Send);
assert_impl_all!(Lock: Send);
assert_impl_all!(Tx<'static>: Send);
assert_not_impl_any!(Job: Clone);
assert_not_impl_any!(Lock: Clone);
assert_not_impl_any!(Tx<'static>: Clone);

assert_impl_all!(Listener: futures_util::Stream<Item = Result<Message>>, Send, Unpin);
assert_impl_all!(Subscription: futures_util::Stream<Item = Result<Event>>, Send, Unpin);

// Nothing encodes a payload a second time.
assert_impl_all!(Payload: IntoPayload, Clone, Send, Sync);
assert_not_impl_any!(Payload: serde::Serialize);
assert_impl_all!(Headers: Clone, Send, Sync);

assert_impl_all!(Error: std::error::Error, Send, Sync);
assert_impl_all!(EnqueueOpts: Default, Clone);
assert_impl_all!(QueueOpts: Default, Clone);
assert_impl_all!(PublishOpts: Default, Clone);
assert_impl_all!(OutboxOpts: Default, Clone);
assert_impl_all!(ScheduleOpts: Default, Clone);
assert_impl_all!(JobFilter: Default, Clone);
assert_impl_all!(StoreConfig: Clone, Send, Sync);

fn send<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn every_future_is_send_on_dyn_too() -> Result<()> {
    let store = send(open("memory:")).await?;
    let (queue, stream, outbox) = (store.queue("q")?, store.stream("s")?, store.outbox("o")?);
    let borrowed = String::from("borrowed from the caller");

    let id = send(store.with_tx(|tx| {
        Box::pin(async {
            send(stream.publish_tx(tx, &borrowed, PublishOpts::new())).await?;
            send(outbox.enqueue_tx(tx, &borrowed, OutboxOpts::new())).await?;
            send(tx.notify_tx("c", &borrowed)).await?;
            send(queue.enqueue_tx(tx, &borrowed, EnqueueOpts::new())).await
        })
    }))
    .await?;
    let mut job = send(queue.next("w")).await?;
    assert_eq!(job.id(), id);
    send(job.heartbeat(Duration::from_secs(60))).await?;
    send(job.ack()).await?;

    let mut events = send(stream.subscribe(Offset::START)).await?;
    let event = send(events.recv()).await.expect("the store is open")?;
    assert_eq!(event.payload.decode::<String>()?, borrowed);

    let delivered = send(outbox.run_once("w", async |delivery| {
        assert_eq!(delivery.decode::<String>()?, borrowed);
        Ok::<_, Error>(())
    }))
    .await?;
    assert!(delivered);

    let mut lock = send(store.lock("l", "me", Duration::from_secs(60))).await?;
    send(lock.renew(Duration::from_secs(60))).await?;
    send(lock.release()).await?;
    send(store.schedule("s", "@every 1h", "q", &(), ScheduleOpts::new())).await?;
    send(store.maintain()).await?;
    send(store.close()).await
}

//! Behind a pooler that lends connections for a transaction: pgbouncer with `pool_mode =
//! transaction`. The whole suite runs there too, in conformance.rs.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

#[path = "support/bouncer.rs"]
mod bouncer;

use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, Offset, PublishOpts, ScheduleOpts, StopToken, StoreExt};
use alkstore_pg::{PgStore, PgStoreBuilder};
use alkstore_suite::pg::Cluster;
use bouncer::Bouncer;

const LONG: Duration = Duration::from_secs(60);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it comes within a minute")
}

fn pooled(bouncer: &Bouncer, schema: &str) -> PgStoreBuilder {
    PgStore::builder(&bouncer.url).schema(schema).pooled(true).safety_poll(None)
}

/// Two connections of the server for forty of clients: each transaction may come to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_connections_serve_many_clients() {
    let bouncer = Bouncer::start("few", 2);
    let schema = Cluster::shared().fresh_schema();
    let open = || pooled(&bouncer, &schema).listen_url(Cluster::shared().url()).max_connections(5);
    let mut tasks = Vec::new();
    for label in 0..8 {
        let store = open().connect().await.unwrap();
        tasks.push(tokio::spawn(async move {
            let (queue, stream) = (store.queue("q").unwrap(), store.stream("s").unwrap());
            for round in 0..8 {
                let mut tx = store.begin_tx().await.unwrap();
                queue.enqueue_tx(&mut tx, &round, EnqueueOpts::new()).await.unwrap();
                stream.publish_tx(&mut tx, &round, PublishOpts::new()).await.unwrap();
                tx.commit().await.unwrap();
                let mut jobs = queue.claim_batch("w", 3).await.unwrap();
                for result in queue.ack_batch(&mut jobs).await.unwrap() {
                    result.unwrap();
                }
                let held = store.lock(&format!("l {}", label % 2), "o", LONG).await.unwrap();
                stream.read(Offset::START, 10).await.unwrap();
                held.release().await.unwrap();
            }
            store.close().await.unwrap();
        }));
    }
    for task in tasks {
        within(task).await.unwrap();
    }
    let store = open().connect().await.unwrap();
    assert_eq!(store.stream("s").unwrap().info().await.unwrap().last.get(), 64);
}

#[tokio::test]
async fn a_store_that_listens_past_the_pooler_is_woken() {
    let schema = Cluster::shared().fresh_schema();
    let store = pooled(Bouncer::shared(), &schema).listen_url(Cluster::shared().url());
    let store = store.connect().await.unwrap();
    let mut listener = store.listen("c").await.unwrap();
    let queue = store.queue("q").unwrap();
    let waiting = tokio::spawn(async move { queue.next("w").await });
    tokio::task::yield_now().await;
    store.notify("c", &1).await.unwrap();
    assert_eq!(within(listener.recv()).await.unwrap().unwrap().payload.as_str(), "1");
    store.queue("q").unwrap().enqueue(&1).await.unwrap();
    within(waiting).await.unwrap().unwrap().ack().await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_store_that_only_has_the_pooler_polls() {
    let schema = Cluster::shared().fresh_schema();
    let store = pooled(Bouncer::shared(), &schema).connect().await.unwrap();
    let other = pooled(Bouncer::shared(), &schema).connect().await.unwrap();
    let queue = store.queue("q").unwrap();
    let waiting = tokio::spawn(async move { queue.next("w").await });
    let mut events = store.stream("s").unwrap().subscribe(Offset::START).await.unwrap();
    let held = other.lock("l", "other", LONG).await.unwrap();
    let locking = store.clone();
    let locked = tokio::spawn(async move { locking.lock("l", "o", LONG).await });
    let (stop, scheduling) = (StopToken::new(), store.clone());
    let stopped = stop.clone();
    let scheduler = tokio::spawn(async move { scheduling.run_schedules(stopped).await });
    tokio::task::yield_now().await;
    other.queue("q").unwrap().enqueue(&1).await.unwrap();
    other.stream("s").unwrap().publish(&1).await.unwrap();
    held.release().await.unwrap();
    within(waiting).await.unwrap().unwrap().ack().await.unwrap();
    within(events.recv()).await.unwrap().unwrap();
    within(locked).await.unwrap().unwrap().release().await.unwrap();
    other.schedule("s", "@every 1s", "ticks", &1, ScheduleOpts::new()).await.unwrap();
    within(other.queue("ticks").unwrap().next("w")).await.unwrap().ack().await.unwrap();
    stop.stop();
    within(scheduler).await.unwrap().unwrap();
    // What can't be had is said, not waited for in vain.
    let error = store.listen("c").await.expect_err("nothing would ever arrive");
    assert!(
        matches!(&error, Error::Engine { message, .. } if message.contains("listen_url")),
        "{error:?}"
    );
    store.close().await.unwrap();
}

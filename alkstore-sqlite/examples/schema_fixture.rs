//! Writes the file that later versions of the schema are tested with: one of everything, as this
//! version stores it. Run it once for each version of the schema, and keep what it writes.
#![allow(clippy::unwrap_used, reason = "a tool of the maintainers")]

use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Headers, NewEvent, Offset, OutboxOpts, QueueOpts, Result, ScheduleOpts, StoreExt,
};
use alkstore_sqlite::SqliteStore;
use alkstore_sqlite::rusqlite::Connection;

const FAR: Duration = Duration::from_secs(3_000 * 86_400);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap();
    // Small pages keep the file small.
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA page_size = 512; CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        .unwrap();
    drop(conn);

    let store = SqliteStore::open(&path).await?;
    let opts = QueueOpts::new().visibility_timeout(FAR).max_attempts(7).dead_retention(FAR);
    let queue = store.queue_with("work", opts)?;
    queue.enqueue(&"fails").await?;
    queue.claim("w").await?.unwrap().fail("broken").await?;
    queue.enqueue(&"is held").await?;
    let _held = queue.claim("w").await?.unwrap();
    let headers = Headers::new([("traceparent", "00-4bf9")])?;
    let opts = EnqueueOpts::new().priority(5).unique_key("k").headers(headers).expires(FAR);
    queue.enqueue_with(&"is ready", opts).await?;
    queue.enqueue_with(&"is delayed", EnqueueOpts::new().delay(FAR)).await?;
    store.queue("resting")?.pause().await?;
    store.outbox("mails")?.enqueue(&"mail", OutboxOpts::new()).await?;

    let stream = store.stream("log")?;
    let events = (1..=3).map(|n| NewEvent::new(&n)).collect::<Result<_>>()?;
    stream.publish_many(events).await?;
    stream.trim_to(Offset::try_from(1)?).await?;
    stream.consumer("reader")?.save_offset(Offset::try_from(2)?).await?;
    store.notify("bell", &"rung").await?;
    store.lock("lock", "me", FAR).await?.release().await?;
    store.schedule("nightly", "@every 1d", "work", &"tonight", ScheduleOpts::new()).await?;
    store.close().await
}

//! Jobs, event streams, notifications, locks, schedules and an outbox in one store, with
//! transactions across all of them, on the engine that a URL names.
//!
//! [`open`] takes the URL, and [`StoreExt`] leads from the store to everything else. What it
//! leads to ([`Queue`], [`Stream`], [`Lock`], …) knows no engine and behaves the same on each.
//!
//! ```
//! use alkstore::prelude::*;
//!
//! #[tokio::main]
//! async fn main() -> alkstore::Result<()> {
//!     let store = alkstore::open("memory:").await?;
//!     let (orders, receipts) = (store.stream("orders")?, store.queue("receipts")?);
//!
//!     // Both happen, or neither does.
//!     let mut tx = store.begin_tx().await?;
//!     orders.publish_tx(&mut tx, &"order 7 paid", PublishOpts::new()).await?;
//!     receipts.enqueue_tx(&mut tx, &"ada@example.org", EnqueueOpts::new()).await?;
//!     tx.commit().await?;
//!
//!     // A worker waits for a job, does it, and says that it is done.
//!     let mut job = receipts.next("worker-1").await?;
//!     println!("a receipt for {}, attempt {}", job.decode::<String>()?, job.attempt());
//!     job.ack().await?;
//!
//!     store.close().await
//! }
//! ```
//!
//! # Engines
//!
//! | URL | Feature | |
//! |---|---|---|
//! | `memory:` | `mem`, by default | in this process only, gone when it ends: for tests and for trying out |
//! | `sqlite:app.db` | `sqlite`, by default | in a file, for all processes of one machine: what returned `Ok` is on the disk |
//! | `postgres://host/db` | `pg`, by default | in a schema of a database, for any number of hosts |
//!
//! All take the parameters `payload_limit` (bytes of one payload, 1048576 by default) and
//! `lock_timeout` (how long a call waits for somebody else's transaction, 5 s by default):
//! `memory:?payload_limit=2097152&lock_timeout=500ms`. `sqlite:` has `synchronous` beside them:
//! `full`, the default, or `normal`, which is faster and may lose the last commits when the power
//! fails. `postgres:` has `schema` (`alkstore`), `max_connections` (10, and one that listens),
//! `operation_timeout` (30 s), `pooled` and `listen_url`, and passes `sslmode` and its like on to
//! the driver. [`StoreConfig`] has them as fields.
//!
//! What follows `sqlite:` is the path, relative or absolute, and percent-encoded where a `?` or a
//! `%` belongs to it: `sqlite:/var/lib/app.db?synchronous=normal`. The application's own tables
//! may be in the same file: [`SqliteTx`] runs SQL in the store's transaction, and
//! [`SqliteStore::attach`] takes part in one of the application's.
//!
//! A Postgres store lives in a schema of its own, beside the application's tables: [`PgTx`] gives
//! the connection of the store's transaction, and [`PgStore::attach`] takes part in one of the
//! application's. TLS is a feature: `pg-rustls-ring` or `pg-rustls-aws-lc`.
//!
//! The feature `sqlite` compiles SQLite in; `sqlite-unbundled` alone links the system's library,
//! which has to be 3.51.3 or newer.

mod config;
#[cfg(all(
    doctest,
    feature = "pg",
    feature = "sqlite-unbundled",
    feature = "testing",
    feature = "worker"
))]
mod guide;
#[cfg(feature = "mem")]
mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
mod open;
#[cfg(any(feature = "mem", feature = "pg", feature = "sqlite-unbundled"))]
mod params;
#[cfg(feature = "pg")]
mod postgres;
pub mod prelude;
#[cfg(feature = "sqlite-unbundled")]
mod sqlite;
#[cfg(feature = "testing")]
pub mod testing;
mod url;
#[cfg(feature = "worker")]
pub mod worker;

pub use alkstore_core::{
    BoxError, BoxFuture, ChannelName, Consumer, ConsumerInfo, DEFAULT_LISTENER_BYTES,
    DEFAULT_LISTENER_MESSAGES, DEFAULT_PAGE, DEFAULT_PAYLOAD_LIMIT, DeadSelection, Delivery,
    EnqueueOpts, Error, Event, Headers, IntoPayload, Job, JobFilter, JobId, JobRecord, JobState,
    Limits, Listener, ListenerLimits, LocalName, Lock, LockInfo, LockName, MAX_DEPTH,
    MAX_ERROR_BYTES, MAX_FIRES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_LEASE, MAX_NAME_BYTES,
    Maintenance, Message, NewEvent, NewJob, Offset, Outbox, OutboxName, OutboxOpts, Payload,
    PublishOpts, Queue, QueueName, QueueOpts, QueueStats, RESERVED_HEADER_PREFIX, RESERVED_PREFIX,
    Result, Retried, Schedule, ScheduleName, ScheduleOpts, StopToken, Store, StoreExt, StoreId,
    Stream, StreamInfo, StreamName, Subscription, Tx,
};
#[cfg(feature = "mem")]
pub use alkstore_mem::MemStore;
#[cfg(feature = "pg")]
pub use alkstore_pg::{PgStore, PgTx, sqlx};
#[cfg(feature = "sqlite-unbundled")]
pub use alkstore_sqlite::{SqliteAttached, SqliteStore, SqliteTx, rusqlite};

pub use config::{StoreConfig, Synchronous};
pub use open::{open, open_with};
#[cfg(feature = "worker")]
pub use worker::{HandlerOpts, JobContext, Outcome, Worker};

/// The first program of the repository's front page compiles.
#[cfg(all(doctest, feature = "sqlite-unbundled"))]
#[doc = include_str!("../../README.md")]
mod readme {}

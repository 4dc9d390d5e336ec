//! The SQLite engine of alkstore: durable, embedded, for many processes on one machine.
//!
//! A store is one file, which may be the application's own database: its tables begin with
//! `alkstore_`. What was answered `Ok` is on the disk; operations that wait at the same time share
//! one commit. Any number of processes may open the file, and wake one another.
//!
//! It needs a tokio runtime with timers to wait on.
//!
//! # Examples
//!
//! ```
//! use alkstore_core::StoreExt;
//! use alkstore_sqlite::SqliteStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> alkstore_core::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("app.db");
//! let store = SqliteStore::open(&path).await?;
//! store.queue("emails")?.enqueue(&"hello").await?;
//! assert_eq!(store.queue("emails")?.stats().await?.ready, 1);
//! # store.close().await
//! # }
//! ```

mod acquire;
mod attach;
mod clock;
mod group;
mod hub;
mod lease;
mod lock;
mod migrate;
mod notify;
#[cfg(test)]
mod plans;
mod queue;
mod reader;
mod schedule;
mod sql;
mod store;
mod stream;
mod tx;
mod wake;
mod watch;
mod writer;

pub use attach::SqliteAttached;
pub use clock::{Clock, WallClock};
pub use rusqlite;
pub use store::{Durability, SqliteData, SqliteStore, SqliteStoreBuilder};
pub use tx::SqliteTx;

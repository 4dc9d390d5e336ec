//! The Postgres engine of alkstore: durable, shared, for many processes on many hosts.
//!
//! A store is one schema of a database, which may be the application's own. Time is the server's:
//! what the clocks of its clients show changes nothing. Work can be staged in a transaction
//! together with the application's own SQL, whoever began it.
//!
//! It needs a tokio runtime with I/O and timers.
//!
//! TLS is a feature, as the driver has it: `tls-rustls-ring-webpki`, `tls-rustls-ring-native-roots`
//! or `tls-rustls-aws-lc-rs`. In a build without one `sslmode=require` and stronger are refused.
//!
//! # Examples
//!
//! ```no_run
//! use alkstore_core::StoreExt;
//! use alkstore_pg::PgStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> alkstore_core::Result<()> {
//! let store = PgStore::connect("postgres://app@localhost/app").await?;
//! store.queue("emails")?.enqueue(&"hello").await?;
//! assert_eq!(store.queue("emails")?.stats().await?.ready, 1);
//! # store.close().await
//! # }
//! ```

mod acquire;
mod address;
mod attach;
mod clock;
mod error;
mod gather;
mod listen;
mod lock;
mod migrate;
mod notify;
mod pool;
mod queue;
mod schedule;
mod sql;
mod store;
mod stream;
mod tx;
mod wake;

pub use sqlx;
pub use store::{PgData, PgStore, PgStoreBuilder};
pub use tx::PgTx;

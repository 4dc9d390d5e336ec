//! The memory engine of alkstore.
//!
//! It is what tests run on, what works in a browser, and the executable reference of the
//! contract: small enough to be read, with everything behind one lock that is never held over an
//! await. It needs no threads and no driver, and runs on a current-thread runtime and on
//! `wasm32-unknown-unknown`. Waiting with the default clock needs tokio's timer outside of wasm.
//!
//! # Examples
//!
//! ```
//! use alkstore_core::StoreExt;
//! use alkstore_mem::MemStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> alkstore_core::Result<()> {
//! let store = MemStore::new();
//! store.queue("emails")?.enqueue(&"hello").await?;
//! assert_eq!(store.queue("emails")?.stats().await?.ready, 1);
//! # Ok(())
//! # }
//! ```

mod clock;
mod lock;
mod notify;
mod observe;
mod queue;
mod schedule;
mod state;
mod store;
mod stream;
mod tx;
mod wake;

pub use clock::{Clock, ManualClock, SystemClock};
pub use observe::{Observed, Observer};
pub use store::{MemData, MemStore, MemStoreBuilder};

//! What an engine provides so that the suite can judge it.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{BoxFuture, Error, ListenerLimits, Result, Store, Timestamp};
use async_trait::async_trait;

/// What an engine declares of itself. What it declares is asserted, what it doesn't declare is
/// asserted to be absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Data outlives the last handle on it.
    pub durable: bool,
    /// Other processes can open the same data: it has a [`Data::location`].
    pub multi_process: bool,
    /// A panic unwinds, so that it can be caught.
    pub unwinds: bool,
    /// An open transaction that has written keeps every other writer waiting.
    pub one_writer: bool,
    /// An open transaction keeps every other call of its own store waiting: the store has one
    /// connection.
    pub one_connection: bool,
}

impl Capabilities {
    pub(crate) fn has(&self, need: &str) -> bool {
        match need {
            "durable" => self.durable,
            "multi_process" => self.multi_process,
            "unwinds" => self.unwinds,
            "one_writer" => self.one_writer,
            "one_connection" => self.one_connection,
            other => panic!("a row needs the unknown capability {other:?}"),
        }
    }
}

/// How a row opens a store; what isn't set is the engine's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The most bytes of one payload.
    pub payload_limit: Option<usize>,
    /// How long a call waits for somebody else's transaction.
    pub lock_timeout: Option<Duration>,
    /// How much a listener holds.
    pub listener: Option<ListenerLimits>,
    /// Whether waiters look again from time to time without a wake. The suite leaves it off, so
    /// that a broken wake can't hide behind it.
    pub safety_poll: bool,
}

/// A column of the suite: one engine, on one runtime.
///
/// Time stands still but for [`Data::advance`], so that a row can hit an instant exactly.
#[async_trait]
pub trait StoreFactory: Send + Sync + 'static {
    /// What the engine declares.
    fn capabilities(&self) -> Capabilities;

    /// Fresh data that nothing else sees; what it takes is freed when it is dropped.
    async fn fresh(&self) -> Arc<dyn Data>;

    /// Runs a future beside the row, on the runtime that runs the row.
    fn spawn(&self, future: BoxFuture<'static, ()>);

    /// Waits in real time.
    async fn sleep(&self, duration: Duration);

    /// Whether a call that waits for somebody's transaction counts the time in real time, so that
    /// the clock needn't be moved to end it.
    fn waits_in_real_time(&self) -> bool {
        false
    }

    /// How long a row waits, in real time, for what has to happen before it fails.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

/// Data of an engine, with a clock of its own.
#[async_trait]
pub trait Data: Send + Sync + 'static {
    /// Opens a store on the data, closed independently of every other.
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>>;

    /// Moves the clock of every store on the data and wakes every waiter, for no reason.
    async fn advance(&self, by: Duration);

    /// What the clock shows.
    async fn now(&self) -> Timestamp;

    /// The same store, but each of its next ticks fails with one of these errors, in order.
    fn with_failing_ticks(&self, store: Arc<dyn Store>, errors: Vec<Error>) -> Arc<dyn Store> {
        crate::fault::failing_ticks(store, errors)
    }

    /// What another process opens to reach the same data.
    fn location(&self) -> Option<String> {
        None
    }
}

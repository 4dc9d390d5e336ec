//! Opening and closing, and how an operation reaches the state.

use std::sync::{Arc, Weak};
use std::time::Duration;

use alkstore_core::{
    Error, Limits, ListenerLimits, MaintenancePage, Result, Store, StoreBase, StoreId, WeakStore,
};
use async_trait::async_trait;
use futures_util::future::select;

use crate::clock::{Clock, Reading, SystemClock};
use crate::observe::Observer;
use crate::state::{Blocked, Shared, View};
use crate::tx::Staged;
use crate::wake::{CloseSignal, Wakes};
use crate::{lock, queue};

const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_SAFETY_POLL: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) listener: ListenerLimits,
    pub(crate) lock_timeout: Duration,
    pub(crate) safety_poll: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            listener: ListenerLimits::default(),
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            safety_poll: Some(DEFAULT_SAFETY_POLL),
        }
    }
}

/// How a memory store is opened.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use alkstore_mem::MemStore;
///
/// let store = MemStore::builder()
///     .payload_limit(64 * 1024)
///     .lock_timeout(Duration::from_secs(1))
///     .build();
/// # let _ = store;
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "call build() to open the store"]
pub struct MemStoreBuilder {
    options: Options,
    clock: Option<Arc<dyn Clock>>,
    observer: Option<Arc<dyn Observer>>,
}

impl MemStoreBuilder {
    /// The most bytes of one payload. Default: 1 MiB.
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.options.limits.payload = bytes;
        self
    }

    /// How much a listener holds before it drops the oldest messages. Default: 1024 messages or
    /// 16 MiB.
    pub fn listener_limits(mut self, limits: ListenerLimits) -> Self {
        self.options.listener = limits;
        self
    }

    /// How long a call waits for somebody else's transaction before it is
    /// [`Error::Unavailable`]. Default: 5 s.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.options.lock_timeout = timeout;
        self
    }

    /// How often a waiter looks again without being woken; `None` turns it off. It is a net
    /// beneath the wakes, which miss nothing. At least 1 ms; default: 30 s.
    pub fn safety_poll(mut self, every: Option<Duration>) -> Self {
        // Without a pause a waiter would look again and again and let nothing else run.
        self.options.safety_poll = every.map(|every| every.max(Duration::from_millis(1)));
        self
    }

    /// Where the store reads time. Default: a [`SystemClock`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Who hears what happens to the data. Default: nobody.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Opens a store of its own.
    #[must_use]
    pub fn build(self) -> MemStore {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        MemStore::open(Arc::new(Shared::new(clock, self.observer)), self.options)
    }
}

/// A store in memory, cheap to clone. It is gone with its last handle.
///
/// # Examples
///
/// ```
/// use alkstore_core::StoreExt;
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let again = store.reopen();
/// store.queue("q")?.enqueue(&1).await?;
/// store.close().await?;
/// assert_eq!(again.queue("q")?.stats().await?.ready, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MemStore {
    pub(crate) open: Arc<Open>,
}

/// One open of a store, shared by its clones.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: StoreId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
    pub(crate) close: Arc<CloseSignal>,
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemStore {
    /// A store of its own, with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A store of its own, with options.
    pub fn builder() -> MemStoreBuilder {
        MemStoreBuilder::default()
    }

    /// A further open on the same data, with the same options, closed independently.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self::open(self.open.shared.clone(), self.open.options)
    }

    /// A way back to the data that doesn't keep them.
    #[must_use]
    pub fn data(&self) -> MemData {
        MemData(Arc::downgrade(&self.open.shared))
    }

    fn open(shared: Arc<Shared>, options: Options) -> Self {
        let (id, close) = (StoreId::new(), Arc::new(CloseSignal::default()));
        Self { open: Arc::new(Open { id, shared, options, close }) }
    }
}

/// The data of a memory store, for tests that open them several times. It doesn't keep them: they
/// are gone with the last store on them.
#[derive(Debug, Clone)]
pub struct MemData(Weak<Shared>);

impl MemData {
    /// A further open on the data with the options of a builder, while there is a store on them.
    /// They keep their clock and their observer.
    #[must_use]
    pub fn open(&self, builder: MemStoreBuilder) -> Option<MemStore> {
        Some(MemStore::open(self.0.upgrade()?, builder.options))
    }

    /// Wakes everything that waits on the data, for no reason: a test that moves the clock may
    /// want every waiter to look again.
    pub fn wake_all(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut wakes = Wakes::default();
        shared.lock().topics.wake_everyone(&mut wakes);
        wakes.fire();
    }
}

impl Open {
    /// Runs an operation on the state, at one instant, and wakes afterwards.
    pub(crate) fn act<T>(&self, operation: impl FnOnce(&mut View<'_>) -> T) -> Result<T> {
        self.act_in(None, operation)
    }

    /// As [`act`](Self::act), inside a transaction or not.
    pub(crate) fn act_in<T>(
        &self,
        tx: Option<&mut Staged>,
        operation: impl FnOnce(&mut View<'_>) -> T,
    ) -> Result<T> {
        let mut wakes = Wakes::default();
        let time = Reading::of(&*self.shared.clock);
        let result = {
            let mut state = self.shared.lock();
            // Looked at under the lock: after a close nothing is written.
            if self.close.is_closed() {
                return Err(Error::Closed);
            }
            operation(&mut View { state: &mut state, time, wakes: &mut wakes, tx })
        };
        wakes.fire();
        Ok(result)
    }

    /// Runs an operation that may have to wait for somebody else's transaction, for at most the
    /// lock timeout.
    pub(crate) async fn act_unblocked<T>(
        &self,
        mut tx: Option<&mut Staged>,
        mut operation: impl FnMut(&mut View<'_>) -> Result<T, Blocked>,
    ) -> Result<T> {
        // Nearly always nothing is in the way.
        if let Ok(value) = self.act_in(tx.as_deref_mut(), &mut operation)? {
            return Ok(value);
        }
        let (clock, timeout) = (&*self.shared.clock, self.options.lock_timeout);
        let limit = Reading::of(clock).after(timeout);
        loop {
            let mut ended = std::pin::pin!(self.shared.tx_ended.notified());
            ended.as_mut().enable();
            if let Ok(value) = self.act_in(tx.as_deref_mut(), &mut operation)? {
                return Ok(value);
            }
            if Reading::of(clock).now >= limit {
                return Err(Error::unavailable(format!(
                    "an open transaction held what this call needs for longer than the lock timeout of {timeout:?}"
                )));
            }
            let timer = clock.sleep_until(limit);
            self.close.unless_closed(select(ended, timer)).await?;
        }
    }

    pub(crate) fn close_now(&self) {
        let mut wakes = Wakes::default();
        {
            let mut state = self.shared.lock();
            self.close.close();
            state.listeners.end_all_of(self.id, &mut wakes);
            lock::give_up_leadership(&mut state, &mut wakes, self.id);
        }
        self.close.wake();
        wakes.fire();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close_now();
    }
}

struct WeakMemStore {
    open: Weak<Open>,
    close: Arc<CloseSignal>,
}

impl WeakStore for WeakMemStore {
    fn upgrade(&self) -> Option<Arc<dyn Store>> {
        let open = self.open.upgrade()?;
        (!open.close.is_closed()).then(|| Arc::new(MemStore { open }) as Arc<dyn Store>)
    }

    fn is_open(&self) -> bool {
        !self.close.is_closed()
    }
}

#[async_trait]
impl StoreBase for MemStore {
    fn store_id(&self) -> StoreId {
        self.open.id
    }

    fn limits(&self) -> Limits {
        self.open.options.limits
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn weak(&self) -> Arc<dyn WeakStore> {
        let open = Arc::downgrade(&self.open);
        Arc::new(WeakMemStore { open, close: self.open.close.clone() })
    }

    async fn maintain_page(&self) -> Result<MaintenancePage> {
        self.open.act(queue::maintain)
    }

    async fn shut_down(&self) -> Result<()> {
        self.open.close_now();
        Ok(())
    }
}

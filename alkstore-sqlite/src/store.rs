//! Opening and closing, and how an operation reaches the file.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use alkstore_core::{
    Error, Limits, ListenerLimits, LockRef, MaintenancePage, Result, Store, StoreBase, StoreId,
    WeakStore,
};
use async_trait::async_trait;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::clock::{Clock, Reading, WallClock, pause};
use crate::hub::Hub;
use crate::lease::LeaseGuard;
use crate::sql::{Outcome, Write};
use crate::wake::CloseSignal;
use crate::writer::{Place, Size, Turn};
use crate::{notify, queue};

const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_SAFETY_POLL: Duration = Duration::from_secs(30);

/// What a commit has survived once it is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The end of the process and the loss of power: `synchronous=FULL`.
    #[default]
    Full,
    /// The end of the process; the last commits may be gone after a loss of power:
    /// `synchronous=NORMAL`.
    Normal,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) listener: ListenerLimits,
    pub(crate) lock_timeout: Duration,
    pub(crate) safety_poll: Option<Duration>,
    pub(crate) durability: Durability,
    pub(crate) clock: Arc<dyn Clock>,
}

/// How a SQLite store is opened.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use alkstore_core::StoreExt;
/// use alkstore_sqlite::{Durability, SqliteStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("app.db");
/// let store = SqliteStore::builder(&path)
///     .durability(Durability::Normal)
///     .lock_timeout(Duration::from_secs(1))
///     .open()
///     .await?;
/// # store.close().await
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "call open() to open the store"]
pub struct SqliteStoreBuilder {
    path: PathBuf,
    options: Options,
}

impl SqliteStoreBuilder {
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
    /// beneath the wakes, which miss nothing. At least 1 ms. Default: 30 s.
    pub fn safety_poll(mut self, every: Option<Duration>) -> Self {
        self.options.safety_poll = every.map(|every| every.max(Duration::from_millis(1)));
        self
    }

    /// What a commit has survived once it is answered. Of several stores that one process has
    /// open on a file, the most careful one counts. Default: [`Durability::Full`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Where the store reads time. Default: a [`WallClock`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options.clock = clock;
        self
    }

    /// Opens the store; makes the file and its tables where they aren't there yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the path names no file, [`Error::Unavailable`] where
    /// somebody else holds the file for too long, [`Error::Engine`] where it can't be used: it
    /// isn't a database, can't be written, or was made by a newer version.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped, nothing stays open.
    pub async fn open(self) -> Result<SqliteStore> {
        let Self { path, options } = self;
        let text = path.to_string_lossy();
        let no_file = text.ends_with(std::path::is_separator) || text.contains('\0');
        if text.is_empty() || no_file || text.starts_with(':') || text.starts_with("file:") {
            return Err(Error::invalid_argument(
                "path",
                &text,
                "the path of a file; for a store in memory use the memory engine",
            ));
        }
        let (answer, answered) = oneshot::channel();
        let opening = move || {
            let hub = Hub::enter(&path, options.durability);
            // Where nobody waits any longer, the store is dropped here, and leaves again.
            drop(answer.send(hub.map(|hub| SqliteStore::new(hub, options))));
        };
        let thread = std::thread::Builder::new().name("alkstore-open".to_owned());
        let thread = thread.spawn(opening).map_err(|error| Error::Engine {
            message: "the thread that opens the file can't be started".to_owned(),
            source: Some(Box::new(error)),
        })?;
        let opened = answered.await;
        // It has answered and is about to return; a panic leaves no answer.
        let _ = thread.join();
        opened.unwrap_or_else(|_| Err(Error::engine("the opening of the file broke off")))
    }
}

/// A store in a SQLite file, cheap to clone.
///
/// # Examples
///
/// ```
/// use alkstore_core::StoreExt;
/// use alkstore_sqlite::SqliteStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("app.db");
/// let store = SqliteStore::open(&path).await?;
/// store.queue("q")?.enqueue(&1).await?;
/// store.close().await?;
///
/// let again = SqliteStore::open(&path).await?;
/// assert_eq!(again.queue("q")?.stats().await?.ready, 1);
/// # again.close().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pub(crate) open: Arc<Open>,
}

/// One open of a store, shared by its clones.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: StoreId,
    pub(crate) hub: Arc<Hub>,
    pub(crate) options: Options,
    pub(crate) close: Arc<CloseSignal>,
    /// The scheduler's lease, where a runner of this store took it.
    pub(crate) leadership: Mutex<Option<LockRef>>,
    left: AtomicBool,
}

impl SqliteStore {
    /// Opens a store with the default options.
    ///
    /// # Errors
    ///
    /// See [`SqliteStoreBuilder::open`].
    ///
    /// # Cancel safety
    ///
    /// See [`SqliteStoreBuilder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open().await
    }

    /// A store to be opened with options.
    pub fn builder(path: impl AsRef<Path>) -> SqliteStoreBuilder {
        let options = Options {
            limits: Limits::default(),
            listener: ListenerLimits::default(),
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            safety_poll: Some(DEFAULT_SAFETY_POLL),
            durability: Durability::default(),
            clock: Arc::new(WallClock),
        };
        SqliteStoreBuilder { path: path.as_ref().to_owned(), options }
    }

    fn new(hub: Arc<Hub>, options: Options) -> Self {
        let (id, close) = (StoreId::new(), Arc::default());
        let (leadership, left) = (Mutex::new(None), AtomicBool::new(false));
        Self { open: Arc::new(Open { id, hub, options, close, leadership, left }) }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.open.hub.path
    }

    /// A way back to the data that doesn't keep the store open.
    #[must_use]
    pub fn data(&self) -> SqliteData {
        SqliteData(Arc::downgrade(&self.open.hub))
    }
}

/// The data of a SQLite store, for tests that move its clock or count its commits. It doesn't keep the store open.
#[derive(Debug, Clone)]
pub struct SqliteData(Weak<Hub>);

impl SqliteData {
    /// Wakes everything in this process that waits on the data, for no reason: a test that moves
    /// the clock may want every waiter to look again.
    pub fn wake_all(&self) {
        if let Some(hub) = self.0.upgrade() {
            hub.wake_everyone();
        }
    }

    /// How many transactions of stores of this process were committed: those of operations that
    /// waited together are one.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.0.upgrade().map_or(0, |hub| hub.commits.load(Ordering::Relaxed))
    }
}

impl Open {
    /// An error where the store is closed or the file can't be used any longer.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.close.is_closed() {
            return Err(Error::Closed);
        }
        self.hub.usable()
    }

    pub(crate) fn reading(&self) -> Reading {
        Reading::of(&*self.options.clock)
    }

    /// Runs a write, and answers once it is durable.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        size: Size,
        run: impl FnMut(&mut Write<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.usable()?;
        let (answer, answered) = oneshot::channel();
        let answering = move |result| drop(answer.send(result));
        let (hub, clock) = (&self.hub, self.options.clock.clone());
        let (place, turn) = hub.writer.write(hub, clock, (size, run), answering)?;
        self.take(turn, &place).await;
        self.answer(place, answered).await
    }

    /// Takes the caller's turn to serve what waits.
    pub(crate) async fn take(&self, turn: Turn, place: &Place) {
        if turn == Turn::Own {
            let mut others_ran = false;
            let others = poll_fn(|context| {
                if std::mem::replace(&mut others_ran, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            });
            others.await;
            self.hub.writer.see_to(&self.hub, place);
        }
    }

    /// Leases the writer for a transaction.
    pub(crate) async fn lease(&self) -> Result<LeaseGuard> {
        self.usable()?;
        let (answer, answered) = oneshot::channel();
        let place = self.hub.writer.lease(self.close.clone(), answer)?;
        self.answer(place, answered).await
    }

    /// Waits for an answer, and for its turn no longer than the lock timeout.
    pub(crate) async fn answer<T>(
        &self,
        place: Place,
        mut answered: oneshot::Receiver<Result<T>>,
    ) -> Result<T> {
        let timeout = self.options.lock_timeout;
        loop {
            let (timer, closed) = (pin!(pause(timeout)), pin!(self.close.closed()));
            match select(&mut answered, select(timer, closed)).await {
                Either::Left((answer, _)) => return answer.unwrap_or_else(|_| self.gone()),
                // Behind others of its kind it waits on: nobody holds it up.
                Either::Right((Either::Left(_), _)) if !self.hub.writer.is_held() => {}
                Either::Right((Either::Left(_), _)) if place.give_up() => {
                    return Err(Error::unavailable(format!(
                        "somebody else's transaction held {} for longer than the lock timeout of {timeout:?}",
                        self.hub.path.display()
                    )));
                }
                Either::Right((Either::Right(_), _)) if place.give_up() => {
                    return Err(Error::Closed);
                }
                Either::Right(_) => break,
            }
        }
        // It is being done, so that only its outcome is an answer.
        answered.await.unwrap_or_else(|_| self.gone())
    }

    /// Why there is no answer.
    pub(crate) fn gone<T>(&self) -> Result<T> {
        self.usable().and(Err(Error::Closed))
    }

    /// A short read, on the calling thread unless the file is locked as a whole.
    pub(crate) async fn peek<T: Send + 'static>(
        &self,
        read: impl Fn(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.usable()?;
        self.hub.returns.all_arrived().await;
        // The write connection has at hand what it has written; the others read that anew.
        if let Some(found) = self.hub.writer.glance(&read) {
            return Ok(found);
        }
        match self.hub.read_here(&read) {
            Err(failure) if failure.is_busy() => self.read(read).await,
            outcome => outcome.map_err(|failure| self.hub.error(failure)),
        }
    }

    /// A read that may take long, on a thread of the engine's own.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.usable()?;
        self.hub.returns.all_arrived().await;
        let (answer, answered) = oneshot::channel();
        let hub = self.hub.clone();
        let job = Box::new(move |conn: Outcome<&Connection>| {
            let outcome = conn.and_then(read);
            drop(answer.send(outcome.map_err(|failure| hub.error(failure))));
        });
        self.hub.readers.there(self.hub.alive(), job)?;
        answered.await.unwrap_or_else(|_| self.gone())
    }

    fn close_now(&self) {
        if self.left.swap(true, Ordering::SeqCst) {
            return;
        }
        self.close.close();
        notify::end_all_of(&self.hub, self.id);
        self.give_up_leadership();
        self.hub.leave(self.options.durability);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close_now();
    }
}

struct WeakSqliteStore {
    open: Weak<Open>,
    close: Arc<CloseSignal>,
}

impl WeakStore for WeakSqliteStore {
    fn upgrade(&self) -> Option<Arc<dyn Store>> {
        let open = self.open.upgrade()?;
        (!open.close.is_closed()).then(|| Arc::new(SqliteStore { open }) as Arc<dyn Store>)
    }

    fn is_open(&self) -> bool {
        !self.close.is_closed()
    }
}

#[async_trait]
impl StoreBase for SqliteStore {
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
        Arc::new(WeakSqliteStore { open, close: self.open.close.clone() })
    }

    async fn maintain_page(&self) -> Result<MaintenancePage> {
        self.open.write(Size::Any, queue::maintain).await
    }

    async fn shut_down(&self) -> Result<()> {
        let open = &self.open;
        open.close_now();
        if open.hub.is_left() {
            open.hub.ended().await;
        } else {
            open.hub.writer.lease_ended(&open.close).await;
        }
        Ok(())
    }
}

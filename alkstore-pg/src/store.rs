//! Opening and closing, and how an operation reaches the server.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use alkstore_core::{
    BoxFuture, Error, JobId, Limits, ListenerLimits, LockRef, MaintenancePage, Result, Settlement,
    Store, StoreBase, StoreId, WeakStore,
};
use async_trait::async_trait;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::acquire::Returns;
use crate::address;
use crate::clock::{Clock, pause};
use crate::error::{Outcome, Stage};
use crate::gather::Gather;
use crate::listen::Listening;
use crate::migrate;
use crate::notify::Listeners;
use crate::pool::{Conn, Pool, PoolOptions};
use crate::queue::{self, Answer, Floors, NewRow};
use crate::sql::{Sql, Texts};
use crate::wake::{CloseSignal, Topics};

const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_SAFETY_POLL: Duration = Duration::from_secs(30);
const DEFAULT_CONNECTIONS: u32 = 10;
const DEFAULT_SCHEMA: &str = "alkstore";

/// How long a server may take to let a connection in.
const CONNECT: Duration = Duration::from_secs(5);

/// How often a waiter looks for itself where nothing wakes it.
const POLL: Duration = Duration::from_millis(250);

/// How long what is under way may go on when the store is closed.
const GRACE: Duration = Duration::from_millis(200);

/// How often work is done again that another transaction was in the way of.
const TRIES: u32 = 8;

/// The longest identifier that Postgres keeps whole.
const MAX_IDENTIFIER: usize = 63;

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) listener: ListenerLimits,
    pub(crate) lock_timeout: Duration,
    pub(crate) operation_timeout: Duration,
    pub(crate) safety_poll: Option<Duration>,
    pub(crate) max_connections: u32,
    pub(crate) schema: String,
    /// Where it listens, if not where it works.
    pub(crate) listen_url: Option<String>,
    /// A pooler stands in between that lends a server's connection for a transaction.
    pub(crate) pooled: bool,
}

impl Options {
    /// How long the server may wait for a lock, and work on a statement, in milliseconds: less than
    /// it may take to answer, so that it is the server that says what took too long.
    pub(crate) fn server_timeouts(&self) -> (String, String) {
        let lock = self.lock_timeout.min(self.operation_timeout.mul_f32(0.8));
        (millis(lock), millis(self.operation_timeout.mul_f32(0.9)))
    }
}

/// How a Postgres store is opened.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use alkstore_core::StoreExt;
/// use alkstore_pg::PgStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = PgStore::builder("postgres://app@localhost/app")
///     .schema("jobs")
///     .max_connections(20)
///     .lock_timeout(Duration::from_secs(1))
///     .connect()
///     .await?;
/// # store.close().await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "call connect() to open the store"]
pub struct PgStoreBuilder {
    url: String,
    options: Options,
}

impl fmt::Debug for PgStoreBuilder {
    // The URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStoreBuilder")
            .field("schema", &self.options.schema)
            .field("max_connections", &self.options.max_connections)
            .field("pooled", &self.options.pooled)
            .finish_non_exhaustive()
    }
}

impl PgStoreBuilder {
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

    /// How long a call waits for somebody else's transaction, or for a connection of the pool,
    /// before it is [`Error::Unavailable`]. Default: 5 s.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.options.lock_timeout = timeout;
        self
    }

    /// How long the server may take to answer before its connection is given up: a read is then
    /// [`Error::Unavailable`], a write [`Error::CommitUnknown`]. Default: 30 s.
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.options.operation_timeout = timeout;
        self
    }

    /// How often a waiter looks again without being woken; `None` turns it off. It is a net
    /// beneath the wakes, which miss nothing. Default: 30 s.
    pub fn safety_poll(mut self, every: Option<Duration>) -> Self {
        self.options.safety_poll = every;
        self
    }

    /// How many connections the store holds at most, at least 1, beside the one that listens.
    /// Default: 10.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.options.max_connections = connections.max(1);
        self
    }

    /// The schema that holds the store. Default: `alkstore`.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.options.schema = name.into();
        self
    }

    /// For a server behind a pooler that lends its connections for a transaction each, as
    /// PgBouncer does with `pool_mode = transaction`: no statement stays prepared, and each
    /// operation is a transaction. Such a pooler passes no wakes on, so that waiters poll unless
    /// there is a [`listen_url`](Self::listen_url). Default: off.
    pub fn pooled(mut self, pooled: bool) -> Self {
        self.options.pooled = pooled;
        self
    }

    /// Where the store listens, if not where it works: past a pooler. Default: the store's URL.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.options.listen_url = Some(url.into());
        self
    }

    /// Opens the store; makes its schema and what is in it where they aren't there yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the URL can't be read, asks for what isn't supported (TLS
    /// in a build without it, a parameter that the driver doesn't know) or the schema's name is
    /// none; [`Error::Unavailable`] where the server isn't to be had; [`Error::Engine`] where it
    /// refuses the login, TLS with it fails, the role lacks privileges, or the schema was made by a
    /// newer version.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped, nothing stays open.
    pub async fn connect(self) -> Result<PgStore> {
        let Self { url, options } = self;
        check_schema(&options.schema)?;
        let work = connect_options("url", &url, &options, options.pooled)?;
        let listen = match (&options.listen_url, options.pooled) {
            (Some(url), _) => Some(connect_options("listen_url", url, &options, false)?),
            (None, false) => Some(work.clone()),
            (None, true) => None,
        };
        let texts = Texts::new(&options.schema, !options.pooled);
        let pool = Pool::new(
            work,
            PoolOptions {
                max: options.max_connections,
                wait: options.lock_timeout,
                connect: options.operation_timeout.min(CONNECT),
            },
        );
        let mut conn = pool.acquire().await?;
        let opening = migrate::open(&mut conn, &texts);
        let opened = match timeout(options.operation_timeout.max(migrate::PATIENCE), opening).await
        {
            Ok(opened) => opened.map_err(|failure| failure.into_error(Stage::Harmless))?,
            Err(_) => {
                return Err(Error::unavailable(
                    "the server didn't answer while the store was opened",
                ));
            }
        };
        conn.put_back();
        Ok(PgStore {
            open: Arc::new(Open {
                id: StoreId::new(),
                identity: opened.identity,
                texts,
                pool,
                clock: Clock::new(opened.us),
                topics: Mutex::default(),
                listeners: Mutex::default(),
                listening: Listening::new(listen),
                close: Arc::default(),
                returns: Returns::default(),
                floors: Floors::default(),
                inserts: queue::inserts(),
                acks: queue::acks(),
                leadership: Mutex::new(None),
                tasks: TaskTracker::new(),
                runtime: Handle::current(),
                left: AtomicBool::new(false),
                options,
            }),
        })
    }
}

fn check_schema(name: &str) -> Result<()> {
    let is_fine = !name.is_empty()
        && name.len() <= MAX_IDENTIFIER
        && !name.contains(char::is_control)
        // They would end a function's text, and stand for something else in a statement's.
        && !name.contains("$$")
        && !name.contains(['{', '}'])
        && !name.starts_with("pg_");
    if is_fine {
        return Ok(());
    }
    Err(Error::invalid_argument(
        "schema",
        name,
        "a name of 1 to 63 bytes without control characters, braces and \"$$\" that doesn't begin with \"pg_\"",
    ))
}

fn millis(duration: Duration) -> String {
    duration.as_millis().clamp(1, i32::MAX.unsigned_abs().into()).to_string()
}

fn connect_options(
    argument: &'static str,
    url: &str,
    options: &Options,
    pooled: bool,
) -> Result<PgConnectOptions> {
    let parsed = address::read(argument, url)?;
    let parsed = match parsed.get_application_name() {
        None => parsed.application_name("alkstore"),
        Some(_) => parsed,
    };
    let parsed = parsed.disable_statement_logging();
    if pooled {
        return Ok(parsed);
    }
    let (lock_timeout, statement_timeout) = options.server_timeouts();
    Ok(parsed.options([
        ("lock_timeout", lock_timeout),
        ("statement_timeout", statement_timeout),
        ("jit", "off".to_owned()),
        // Whatever the role's default is.
        ("default_transaction_read_only", "off".to_owned()),
    ]))
}

/// A store in a schema of a Postgres database, cheap to clone.
///
/// # Examples
///
/// ```no_run
/// use alkstore_core::StoreExt;
/// use alkstore_pg::PgStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = PgStore::connect("postgres://app@localhost/app").await?;
/// store.queue("q")?.enqueue(&1).await?;
/// # store.close().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PgStore {
    pub(crate) open: Arc<Open>,
}

/// One open of a store, shared by its clones.
pub(crate) struct Open {
    pub(crate) id: StoreId,
    /// Tells the schema from every other.
    pub(crate) identity: i64,
    pub(crate) options: Options,
    pub(crate) texts: Texts,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Clock,
    pub(crate) topics: Mutex<Topics>,
    pub(crate) listeners: Mutex<Listeners>,
    pub(crate) listening: Listening,
    pub(crate) close: Arc<CloseSignal>,
    pub(crate) returns: Returns,
    pub(crate) floors: Floors,
    pub(crate) inserts: Gather<NewRow, JobId>,
    pub(crate) acks: Gather<Settlement, Answer>,
    /// The scheduler's lease, where a runner of this store took it.
    pub(crate) leadership: Mutex<Option<LockRef>>,
    tasks: TaskTracker,
    runtime: Handle,
    left: AtomicBool,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("id", &self.id)
            .field("schema", &self.texts.schema)
            .finish_non_exhaustive()
    }
}

impl PgStore {
    /// Opens a store with the default options.
    ///
    /// # Errors
    ///
    /// See [`PgStoreBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// See [`PgStoreBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// A store to be opened with options.
    pub fn builder(url: &str) -> PgStoreBuilder {
        let options = Options {
            limits: Limits::default(),
            listener: ListenerLimits::default(),
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            operation_timeout: DEFAULT_OPERATION_TIMEOUT,
            safety_poll: Some(DEFAULT_SAFETY_POLL),
            max_connections: DEFAULT_CONNECTIONS,
            schema: DEFAULT_SCHEMA.to_owned(),
            listen_url: None,
            pooled: false,
        };
        PgStoreBuilder { url: url.to_owned(), options }
    }

    /// The schema that holds the store.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.open.texts.schema
    }

    /// A way back to the store that doesn't keep it open.
    #[must_use]
    pub fn data(&self) -> PgData {
        PgData(Arc::downgrade(&self.open))
    }
}

/// A Postgres store, for tests that move its clock. It doesn't keep the store open.
#[derive(Debug, Clone)]
pub struct PgData(Weak<Open>);

impl PgData {
    /// Says what the server's clock shows, which is taken to stand still from now on, and wakes
    /// everything that waits on the store, for no reason: it may want to look again.
    pub fn set_clock(&self, micros_since_1970: i64) {
        if let Some(open) = self.0.upgrade() {
            open.clock.stand_still(micros_since_1970);
            open.topics.lock().wake_everyone();
        }
    }
}

/// Work on a connection, to be done again where another transaction was in the way.
pub(crate) trait Work<T>:
    for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send + Sync
{
}

impl<T, F> Work<T> for F where F: for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send + Sync {}

impl Open {
    /// An error where the store is closed.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.close.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// How long a waiter that nothing wakes waits at most.
    pub(crate) fn safety_poll(&self) -> Option<Duration> {
        if self.listening.is_possible() {
            self.options.safety_poll
        } else {
            Some(self.options.safety_poll.map_or(POLL, |poll| poll.min(POLL)))
        }
    }

    /// Runs something beside the callers, to its end or to that of the store.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let close = self.close.clone();
        let bounded = async move {
            let ended = pin!(close.closed_for(GRACE));
            select(pin!(future), ended).await;
        };
        drop(self.tasks.spawn_on(bounded, &self.runtime));
    }

    /// Runs a statement that writes, and answers once it is committed.
    pub(crate) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send + Sync + 'static,
    ) -> Result<T> {
        self.run(Stage::Sent, work).await
    }

    /// Runs a statement that reads.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send + Sync + 'static,
    ) -> Result<T> {
        self.run(Stage::Harmless, work).await
    }

    /// Beside the caller, so that its connection is left clean where the caller is dropped.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        stage: Stage,
        work: impl for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send + Sync + 'static,
    ) -> Result<T> {
        self.usable()?;
        self.returns.all_arrived().await;
        let (answer, answered) = oneshot::channel();
        let open = self.clone();
        self.spawn(async move {
            drop(answer.send(open.on_connection(stage, &work).await));
        });
        answered.await.unwrap_or(Err(Error::Closed))
    }

    /// Does work on a connection of the pool; again where another transaction was in the way.
    pub(crate) async fn on_connection<T>(&self, stage: Stage, work: &impl Work<T>) -> Result<T> {
        self.on_this(self.pool.acquire().await?, stage, work).await
    }

    /// As [`on_connection`](Self::on_connection), with a connection to begin with.
    pub(crate) async fn on_this<T>(
        &self,
        mut conn: Conn,
        stage: Stage,
        work: &impl Work<T>,
    ) -> Result<T> {
        let mut tries = 1;
        loop {
            let done = timeout(self.options.operation_timeout, self.once(&mut conn, work)).await;
            let failure = match done {
                Ok(Ok(value)) => {
                    conn.put_back();
                    return Ok(value);
                }
                Ok(Err(failure)) => failure,
                Err(_) => {
                    conn.discard();
                    return Err(self.stalled(stage));
                }
            };
            if failure.breaks_connection() {
                conn.discard();
            } else {
                conn.put_back();
            }
            if !failure.is_repeated() || tries == TRIES {
                return Err(failure.into_error(stage));
            }
            pause(Duration::from_millis(fastrand::u64(1..=10 * u64::from(tries)))).await;
            tries += 1;
            conn = self.pool.acquire().await?;
        }
    }

    async fn once<T>(&self, conn: &mut Conn, work: &impl Work<T>) -> Outcome<T> {
        if !self.options.pooled {
            return work(Sql { conn: conn.get(), texts: &self.texts }).await;
        }
        crate::tx::begin(conn.get(), self, None).await?;
        match work(Sql { conn: conn.get(), texts: &self.texts }).await {
            Ok(value) => {
                crate::tx::commit(conn.get()).await?;
                Ok(value)
            }
            Err(failure) => {
                crate::tx::rollback(conn.get()).await?;
                Err(failure)
            }
        }
    }

    /// The server didn't answer in time.
    pub(crate) fn stalled(&self, stage: Stage) -> Error {
        let message = format!(
            "the server didn't answer within the operation timeout of {:?}",
            self.options.operation_timeout
        );
        match stage {
            Stage::Harmless => Error::unavailable(message),
            Stage::Sent => Error::commit_unknown(message),
        }
    }

    fn close_now(&self) {
        if self.left.swap(true, Ordering::SeqCst) {
            return;
        }
        self.close.close();
        self.listeners.lock().take_all().end();
        self.topics.lock().wake_everyone();
        self.tasks.close();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close_now();
        drop(self.pool.close_now());
    }
}

struct WeakPgStore {
    open: Weak<Open>,
    close: Arc<CloseSignal>,
}

impl WeakStore for WeakPgStore {
    fn upgrade(&self) -> Option<Arc<dyn Store>> {
        let open = self.open.upgrade()?;
        (!open.close.is_closed()).then(|| Arc::new(PgStore { open }) as Arc<dyn Store>)
    }

    fn is_open(&self) -> bool {
        !self.close.is_closed()
    }
}

#[async_trait]
impl StoreBase for PgStore {
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
        Arc::new(WeakPgStore { open, close: self.open.close.clone() })
    }

    async fn maintain_page(&self) -> Result<MaintenancePage> {
        self.open.write(|mut sql| Box::pin(async move { queue::maintain(&mut sql).await })).await
    }

    async fn shut_down(&self) -> Result<()> {
        let open = &self.open;
        if !open.close.is_closed() {
            open.give_up_leadership();
        }
        open.close_now();
        open.tasks.wait().await;
        open.pool.close().await;
        Ok(())
    }
}

/// Awaits a future unless the signal comes first.
pub(crate) async fn unless<T>(
    signal: impl Future<Output = ()> + Send,
    future: impl Future<Output = T> + Send,
) -> Option<T> {
    match select(pin!(signal), pin!(future)).await {
        Either::Left(_) => None,
        Either::Right((value, _)) => Some(value),
    }
}

//! Transactions: a lease of the writer, from the first call that needs it until the end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use alkstore_core::{
    ChannelName, EngineTx, Error, Event, EventSpec, JobId, JobRecord, JobSpec, LocalName, Offset,
    Payload, QueueName, QueueOpts, Result, Settled, Settlement, StreamName, TxStore,
};
use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::clock::Reading;
use crate::lease::{Ended, Lease, LeaseGuard};
use crate::sql::{self, Heads, Outcome, Write};
use crate::store::{Open, SqliteStore};
use crate::wake::Effects;
use crate::{notify, queue, stream};

/// A SQLite store's transaction, reached by [`Tx::engine`](alkstore_core::Tx::engine) for the
/// application's own SQL.
///
/// It holds the file's one write lock from the first write on: while it is open, write through it.
///
/// # Examples
///
/// ```
/// use alkstore_core::{EnqueueOpts, StoreExt};
/// use alkstore_sqlite::{SqliteStore, SqliteTx};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.db");
/// let store = SqliteStore::open(&path).await?;
/// let receipts = store.queue("receipts")?;
///
/// let mut tx = store.begin_tx().await?;
/// let sql = tx.engine::<SqliteTx>().expect("this store's transaction");
/// sql.run(|conn| {
///     conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
///     conn.execute("INSERT INTO orders (total) VALUES (42)", [])
/// })
/// .await??;
/// receipts.enqueue_tx(&mut tx, &"order 1", EnqueueOpts::new()).await?;
/// tx.commit().await?;
/// # store.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct SqliteTx {
    open: Arc<Open>,
    lease: Option<LeaseGuard>,
    /// Why only a rollback is left.
    failed: Option<String>,
}

impl std::fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteTx")
            .field("open", &self.open)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// What a closure of the application left: its value, or the panic that has to go on where it was
/// called.
type Caught<T> = std::result::Result<T, Box<dyn Any + Send>>;

const BY_ITSELF: &str = "the application's own SQL ended the transaction by itself";

impl SqliteTx {
    /// Runs the application's own SQL in this transaction, on a thread where it may block.
    ///
    /// The closure must not commit, roll back or begin a transaction: afterwards nothing but a
    /// rollback would be left. Savepoints are fine.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where somebody else writes for longer than the lock timeout,
    /// [`Error::Engine`] where the transaction is over, [`Error::Closed`].
    ///
    /// # Panics
    ///
    /// Where the closure does; nothing but a rollback is left then.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the closure has run or not.
    pub async fn run<T: Send + 'static>(
        &mut self,
        run: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T> {
        let (ran, same) = self
            .call(move |lease| {
                let mark = sql::run(lease.conn, "SAVEPOINT alkstore_run", []);
                if let Err(error) = mark {
                    return Err(lease.hub.error(error.into()));
                }
                let ran: Caught<T> = catch_unwind(AssertUnwindSafe(|| run(lease.conn)));
                // The mark is gone where the transaction isn't the same any longer.
                let same = !lease.conn.is_autocommit()
                    && sql::run(lease.conn, "RELEASE alkstore_run", []).is_ok();
                Ok((ran, same))
            })
            .await??;
        if !same {
            self.failed = Some(BY_ITSELF.to_owned());
        }
        match ran {
            Ok(value) if same => Ok(value),
            Ok(_) => Err(Error::engine(BY_ITSELF)),
            Err(panic) => {
                self.failed.get_or_insert_with(|| "the application's own SQL panicked".to_owned());
                resume_unwind(panic)
            }
        }
    }

    fn usable(&self) -> Result<()> {
        self.open.usable()?;
        match &self.failed {
            None => Ok(()),
            Some(why) => {
                Err(Error::engine(format!("the transaction can only be rolled back: {why}")))
            }
        }
    }

    /// Runs something on the leased connection, and leases it first where that is still to do.
    async fn call<T: Send + 'static>(
        &mut self,
        run: impl FnOnce(&mut Lease<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        self.usable()?;
        let lease = match &self.lease {
            Some(lease) => lease,
            None => {
                let lease = self.open.lease().await?;
                self.lease.insert(lease)
            }
        };
        let (answer, answered) = oneshot::channel();
        let called = lease.call(Box::new(move |lease| {
            drop(answer.send(run(lease)));
            Ended::No
        }));
        match called {
            Ok(()) => answered.await.or_else(|_| self.over()),
            Err(_) => self.over(),
        }
    }

    /// The transaction is over, whatever ended it.
    fn over<T>(&self) -> Result<T> {
        self.open.usable()?;
        Err(Error::engine("the transaction is over; it was rolled back"))
    }

    /// Stages an operation; where it fails it is undone alone.
    async fn stage<T: Send + 'static>(
        &mut self,
        run: impl FnOnce(&mut Write<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let clock = self.open.options.clock.clone();
        let staged = self
            .call(move |lease| {
                let time = Reading::of(&*clock);
                let staged = stage(lease.conn, time, lease.effects, lease.heads, run);
                staged.map_err(|failure| lease.hub.error(failure))
            })
            .await?;
        if let Err(error @ (Error::Unavailable { .. } | Error::Engine { .. })) = &staged {
            self.failed = Some(error.to_string());
        }
        staged
    }

    /// Reads inside the transaction; before it has begun there is nothing of its own to see.
    async fn look<T: Send + 'static>(
        &mut self,
        read: impl Fn(&Connection, Option<&Heads>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        if self.lease.is_none() {
            self.usable()?;
            return self.open.read(move |conn| read(conn, None)).await;
        }
        self.call(move |lease| {
            read(lease.conn, Some(lease.heads)).map_err(|failure| lease.hub.error(failure))
        })
        .await?
    }

    /// Ends the lease, and waits until that is done.
    async fn end<T: Send + 'static>(
        &mut self,
        run: impl FnOnce(&mut Lease<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let lease = self.lease.take()?;
        let (answer, answered) = oneshot::channel();
        let called = lease.call(Box::new(move |lease| {
            drop(answer.send(run(lease)));
            Ended::Yes
        }));
        called.ok()?;
        answered.await.ok()
    }
}

/// Runs a staged operation, which is undone alone where it fails.
pub(crate) fn stage<T>(
    conn: &Connection,
    time: Reading,
    effects: &mut Effects,
    heads: &mut Heads,
    run: impl FnOnce(&mut Write<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let mut own = Effects::default();
    let staged = sql::savepoint(conn, || {
        run(&mut Write { conn, time, effects: &mut own, heads: Some(heads) })
    })?;
    effects.extend(own);
    Ok(staged)
}

#[async_trait]
impl EngineTx for SqliteTx {
    async fn insert_jobs(
        &mut self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let (queue, opts, hub) = (queue.clone(), opts.clone(), self.open.hub.clone());
        self.stage(move |write| hub.ids.insert_jobs(write, &queue, &opts, &jobs)).await
    }

    async fn settle_job(&mut self, item: Settlement) -> Result<Settled> {
        self.stage(move |write| Ok(queue::settle_job(write, &item)??)).await
    }

    async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        let (queue, now) = (queue.clone(), self.open.reading().now);
        self.look(move |conn, _| queue::find_job(conn, &queue, id, now)).await
    }

    async fn append_events(&mut self, stream: &StreamName, events: Vec<EventSpec>) -> Result<()> {
        let stream = stream.clone();
        self.stage(move |write| stream::append_events(write, &stream, &events).map(drop)).await
    }

    async fn read_events(
        &mut self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let stream = stream.clone();
        self.look(move |conn, heads| stream::read_events(conn, heads, &stream, after, limit)).await
    }

    async fn consumer_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.look(move |conn, _| stream::consumer_offset(conn, &stream, &consumer)).await
    }

    async fn store_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.stage(move |write| stream::store_offset(write, &stream, &consumer, offset)).await
    }

    async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()> {
        let channel = channel.clone();
        self.stage(move |write| notify::send_message(write, &channel, &payload)).await
    }

    fn engine(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        self.usable()?;
        if self.lease.is_none() {
            return Ok(());
        }
        match self.end(|lease| lease.commit()).await {
            Some(committed) => committed,
            None => self.over(),
        }
    }

    async fn rollback(mut self: Box<Self>) -> Result<()> {
        // Without an answer the connection was let go, and rolled back with that.
        self.end(|lease| lease.rollback()).await;
        Ok(())
    }
}

#[async_trait]
impl TxStore for SqliteStore {
    async fn begin(&self) -> Result<Box<dyn EngineTx>> {
        self.open.usable()?;
        Ok(Box::new(SqliteTx { open: self.open.clone(), lease: None, failed: None }))
    }
}

//! Transactions: a connection of the pool, from begin to end. Everything staged in one is staged in
//! the database, so that nothing has to be remembered here.

use std::any::Any;
use std::sync::Arc;

use alkstore_core::{
    BoxFuture, ChannelName, EngineTx, Error, Event, EventSpec, JobId, JobRecord, JobSpec,
    LocalName, Offset, Payload, QueueName, QueueOpts, Result, Settled, Settlement, StreamName,
    TxStore,
};
use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgTransactionManager};
use sqlx::{AssertSqlSafe, Connection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::acquire::Return;
use crate::error::{Outcome, Stage};
use crate::pool::Conn;
use crate::sql::Sql;
use crate::store::{Open, PgStore};
use crate::{notify, queue, stream};

/// It doesn't ask for a transaction that writes: a server that stands by would refuse to begin one,
/// and it can be read.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

const ASSERT: &str = "SELECT {s}.assert_tx($1)";

/// Begins a transaction that says what it is, whatever the role's defaults are.
pub(crate) async fn begin_plain(conn: &mut PgConnection) -> Outcome<()> {
    let begun = conn.begin_with(BEGIN).await?;
    // It would roll back when it is dropped; from here on the connection knows where it is.
    std::mem::forget(begun);
    Ok(())
}

/// Begins a transaction with the store's timeouts where the connection hasn't got them, and with a
/// mark that ends with it.
pub(crate) async fn begin(conn: &mut PgConnection, open: &Open, mark: Option<&str>) -> Outcome<()> {
    let mut text = BEGIN.to_owned();
    if open.options.pooled {
        let (lock, statement) = open.options.server_timeouts();
        text += &format!("; SET LOCAL lock_timeout = {lock}");
        text += &format!("; SET LOCAL statement_timeout = {statement}");
    }
    if let Some(mark) = mark {
        text += &format!("; SET LOCAL alkstore.tx = '{mark}'");
    }
    let begun = conn.begin_with(AssertSqlSafe(text)).await?;
    std::mem::forget(begun);
    Ok(())
}

pub(crate) async fn commit(conn: &mut PgConnection) -> Outcome<()> {
    // The driver's own, which keeps its count of savepoints.
    Ok(PgTransactionManager::commit(conn).await?)
}

pub(crate) async fn rollback(conn: &mut PgConnection) -> Outcome<()> {
    Ok(PgTransactionManager::rollback(conn).await?)
}

/// A Postgres store's transaction, reached by [`Tx::engine`](alkstore_core::Tx::engine) for the
/// application's own SQL.
///
/// # Examples
///
/// ```no_run
/// use alkstore_core::{EnqueueOpts, StoreExt};
/// use alkstore_pg::{PgStore, PgTx, sqlx};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PgStore::connect("postgres://app@localhost/app").await?;
/// let receipts = store.queue("receipts")?;
///
/// let mut tx = store.begin_tx().await?;
/// let conn = tx.engine::<PgTx>().ok_or("another engine's transaction")?.connection();
/// sqlx::query("INSERT INTO orders (total) VALUES ($1)").bind(42).execute(conn).await?;
/// receipts.enqueue_tx(&mut tx, &"order 1", EnqueueOpts::new()).await?;
/// tx.commit().await?;
/// # store.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct PgTx {
    /// Taken by commit, rollback and drop.
    inside: Option<Inside<Conn>>,
}

impl std::fmt::Debug for PgTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgTx").finish_non_exhaustive()
    }
}

impl PgTx {
    /// The transaction's connection, for the application's own SQL.
    ///
    /// Don't commit or roll back by it: afterwards nothing but a rollback would be left.
    /// Savepoints, and sqlx's nested transactions, are fine. A statement that fails aborts the
    /// whole transaction unless a savepoint comes before it.
    pub fn connection(&mut self) -> &mut PgConnection {
        let inside = self.inside();
        inside.touched = true;
        inside.conn.get()
    }

    fn inside(&mut self) -> &mut Inside<Conn> {
        match &mut self.inside {
            Some(inside) => inside,
            None => unreachable!("it is taken together with the transaction"),
        }
    }
}

impl Drop for PgTx {
    fn drop(&mut self) {
        if let Some(inside) = self.inside.take() {
            inside.roll_back();
        }
    }
}

impl AsMut<PgConnection> for Conn {
    fn as_mut(&mut self) -> &mut PgConnection {
        self.get()
    }
}

/// A transaction as its operations see it, whoever began it.
pub(crate) struct Inside<C> {
    pub(crate) conn: C,
    pub(crate) open: Arc<Open>,
    /// Tells this transaction from every other on the connection; none where it isn't the store's.
    pub(crate) mark: Option<String>,
    /// The application had the connection in its hands.
    pub(crate) touched: bool,
    /// A call was dropped before its answer came.
    pub(crate) pending: bool,
}

impl<C: AsMut<PgConnection> + Send> Inside<C> {
    /// Runs an operation in the transaction.
    async fn run<T: Send>(
        &mut self,
        work: impl for<'c> FnOnce(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send,
    ) -> Result<T> {
        self.open.usable()?;
        let open = self.open.clone();
        let settled = async {
            self.catch_up().await?;
            self.pending = true;
            let outcome = work(Sql { conn: self.conn.as_mut(), texts: &open.texts }).await;
            self.pending = false;
            outcome
        };
        let bounded = timeout(open.options.operation_timeout, settled);
        match open.close.unless_closed(bounded).await? {
            Ok(outcome) => outcome.map_err(|failure| failure.into_error(Stage::Harmless)),
            Err(_) => Err(open.stalled(Stage::Harmless)),
        }
    }

    /// Takes what a dropped call left to be read, and sees to it that the transaction is still
    /// the same one.
    async fn catch_up(&mut self) -> Outcome<()> {
        if self.pending {
            self.conn.as_mut().ping().await?;
            self.pending = false;
        }
        if self.touched {
            self.same().await?;
            self.touched = false;
        }
        Ok(())
    }

    /// Whether it is the transaction that the store began, and nothing has aborted it.
    async fn same(&mut self) -> Outcome<()> {
        let Some(mark) = self.mark.clone() else { return Ok(()) };
        let conn = self.conn.as_mut();
        if PgTransactionManager::get_transaction_depth(conn) == 0 {
            let over = "the application's own SQL ended the transaction by itself";
            return Err(Error::engine(over).into());
        }
        let mut sql = Sql { conn, texts: &self.open.texts };
        let statement = sql.query(ASSERT).bind(mark);
        sql.one(statement).await?;
        Ok(())
    }
}

impl Inside<Conn> {
    /// Rolls back beside the caller; what comes after finds it rolled back.
    fn roll_back(self) -> oneshot::Receiver<()> {
        let (done, rolled_back) = oneshot::channel();
        let under_way = Return::begin(&self.open);
        let open = self.open.clone();
        open.spawn(async move {
            let Self { mut conn, open, .. } = self;
            let limit = open.options.operation_timeout;
            match timeout(limit, end(conn.get())).await {
                Ok(Ok(())) => conn.put_back(),
                _ => drop(conn),
            }
            drop(under_way);
            let _ = done.send(());
        });
        rolled_back
    }

    async fn commit(mut self) -> Result<()> {
        let open = self.open.clone();
        let limit = open.options.operation_timeout;
        let checked = timeout(limit, async {
            if self.pending {
                self.conn.get().ping().await?;
                self.pending = false;
            }
            self.same().await
        });
        let checked = match checked.await {
            Ok(checked) => checked.map_err(|failure| failure.into_error(Stage::Harmless)),
            Err(_) => Err(open.stalled(Stage::Harmless)),
        };
        if let Err(error) = checked {
            let _ = self.roll_back().await;
            return Err(error);
        }
        match timeout(limit, commit(self.conn.get())).await {
            Ok(Ok(())) => {
                self.conn.put_back();
                Ok(())
            }
            Ok(Err(failure)) => Err(failure.into_error(Stage::Sent)),
            Err(_) => Err(open.stalled(Stage::Sent)),
        }
    }
}

/// Rolls back to before the outermost transaction that the connection knows of.
async fn end(conn: &mut PgConnection) -> Outcome<()> {
    conn.ping().await.or_else(|error| match error {
        // The answer to a call that was dropped.
        sqlx::Error::Database(_) => Ok(()),
        error => Err(error),
    })?;
    while PgTransactionManager::get_transaction_depth(conn) > 0 {
        rollback(conn).await?;
    }
    Ok(())
}

/// The operations of a transaction, over what holds its connection.
macro_rules! engine_tx {
    (impl for $type:ty { $($others:tt)* }) => {
        #[async_trait]
        impl EngineTx for $type {
        async fn insert_jobs(
            &mut self,
            queue: &QueueName,
            opts: &QueueOpts,
            jobs: Vec<JobSpec>,
        ) -> Result<Vec<JobId>> {
            let (queue, opts) = (queue.clone(), opts.clone());
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move {
                        let rows = queue::rows(&queue, &opts, jobs)?;
                        queue::insert_jobs(&mut sql, &rows).await
                    })
                })
                .await
        }

        async fn settle_job(&mut self, item: Settlement) -> Result<Settled> {
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move { queue::settle_job(&mut sql, &item).await })
                })
                .await
        }

        async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
            let queue = queue.clone();
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move { queue::find_job(&mut sql, &queue, id).await })
                })
                .await
        }

        async fn append_events(
            &mut self,
            stream: &StreamName,
            events: Vec<EventSpec>,
        ) -> Result<()> {
            let stream = stream.clone();
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move { stream::stage_events(&mut sql, &stream, &events).await })
                })
                .await
        }

        async fn read_events(
            &mut self,
            stream: &StreamName,
            after: Offset,
            limit: usize,
        ) -> Result<Vec<Event>> {
            let stream = stream.clone();
            self.inside()
                .run(move |mut sql| {
                    Box::pin(
                        async move { stream::read_events(&mut sql, &stream, after, limit).await },
                    )
                })
                .await
        }

        async fn consumer_offset(
            &mut self,
            stream: &StreamName,
            consumer: &LocalName,
        ) -> Result<Offset> {
            let (stream, consumer) = (stream.clone(), consumer.clone());
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move {
                        stream::consumer_offset(&mut sql, &stream, &consumer).await
                    })
                })
                .await
        }

        async fn store_offset(
            &mut self,
            stream: &StreamName,
            consumer: &LocalName,
            offset: Offset,
        ) -> Result<()> {
            let (stream, consumer) = (stream.clone(), consumer.clone());
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move {
                        stream::store_offset(&mut sql, &stream, &consumer, offset).await
                    })
                })
                .await
        }

        async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()> {
            let channel = channel.clone();
            self.inside()
                .run(move |mut sql| {
                    Box::pin(async move {
                        notify::send_message(&mut sql, &channel, &payload).await
                    })
                })
                .await
        }

            $($others)*
        }
    };
}

engine_tx! { impl for PgTx {
    fn engine(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        let Some(inside) = self.inside.take() else { return Ok(()) };
        inside.open.usable()?;
        let (answer, answered) = oneshot::channel();
        let open = inside.open.clone();
        // Beside the caller: once begun it comes to its end.
        open.spawn(async move { drop(answer.send(inside.commit().await)) });
        answered.await.unwrap_or_else(|_| {
            Err(Error::commit_unknown("the store was closed during the commit"))
        })
    }

    async fn rollback(mut self: Box<Self>) -> Result<()> {
        if let Some(inside) = self.inside.take() {
            // Without an answer the connection was closed, and rolled back with that.
            let _ = inside.roll_back().await;
        }
        Ok(())
    }
}}

/// The application's own transaction on its own connection, while the store is attached to it.
pub(crate) struct Attached<'c>(pub(crate) Inside<&'c mut PgConnection>);

impl<'c> Attached<'c> {
    fn inside(&mut self) -> &mut Inside<&'c mut PgConnection> {
        &mut self.0
    }
}

engine_tx! { impl for Attached<'_> {
    fn engine(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// It is the application's to commit.
    async fn commit(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        Err(Error::invalid_argument(
            "tx",
            "a transaction that the application began",
            "a rollback by who began it; drop this handle",
        ))
    }
}}

#[async_trait]
impl TxStore for PgStore {
    async fn begin(&self) -> Result<Box<dyn EngineTx>> {
        let inside = self.open.begin().await?;
        Ok(Box::new(PgTx { inside: Some(inside) }))
    }
}

/// A transaction on its way to who began it.
struct Begun(Option<Inside<Conn>>);

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(inside) = self.0.take() {
            drop(inside.roll_back());
        }
    }
}

impl Open {
    async fn begin(self: &Arc<Self>) -> Result<Inside<Conn>> {
        self.usable()?;
        self.returns.all_arrived().await;
        let (answer, answered) = oneshot::channel();
        let open = self.clone();
        self.spawn(async move {
            let begun = open.clone().begin_here().await;
            drop(answer.send(begun.map(|inside| Begun(Some(inside)))));
        });
        let mut begun = answered.await.unwrap_or(Err(Error::Closed))?;
        begun.0.take().ok_or_else(|| Error::engine("a transaction was handed over twice"))
    }

    async fn begin_here(self: Arc<Self>) -> Result<Inside<Conn>> {
        let mark = format!("{:016x}", fastrand::u64(..));
        let mut tries = 0;
        loop {
            let mut conn = self.pool.acquire().await?;
            let limit = self.options.operation_timeout;
            let failure = match timeout(limit, begin(conn.get(), &self, Some(&mark))).await {
                Ok(Ok(())) => {
                    let (touched, pending) = (false, false);
                    return Ok(Inside { conn, open: self, mark: Some(mark), touched, pending });
                }
                Ok(Err(failure)) => failure,
                Err(_) => return Err(self.stalled(Stage::Harmless)),
            };
            tries += 1;
            let lost = failure.breaks_connection();
            conn.discard();
            // One that lay idle may have been lost since; nothing was sent on it yet.
            if !lost || tries > 1 {
                return Err(failure.into_error(Stage::Harmless));
            }
        }
    }
}

//! A transaction that the application began on a connection of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use alkstore_core::{
    ChannelName, Consumer, EngineTx, EnqueueOpts, Error, Event, EventSpec, IntoPayload, Job, JobId,
    JobRecord, JobSpec, LocalName, NewEvent, NewJob, Offset, Outbox, OutboxOpts, Payload,
    PublishOpts, Queue, QueueName, QueueOpts, Result, Retried, Settled, Settlement, Stream,
    StreamName, Tx,
};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::task::noop_waker_ref;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::clock::Reading;
use crate::sql::{Heads, Outcome, Write};
use crate::store::{Open, SqliteStore};
use crate::tx::stage;
use crate::wake::Effects;
use crate::{notify, queue, stream};

/// The application's own transaction, with the same staged operations as a store's. It blocks, as
/// the connection does.
///
/// It doesn't own the transaction: what is staged shares the fate of that, and the application
/// commits. Their commit wakes who waits, here and in other processes.
///
/// # Examples
///
/// ```
/// use alkstore_core::{EnqueueOpts, StoreExt};
/// use alkstore_sqlite::{SqliteStore, rusqlite};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.db");
/// let store = SqliteStore::open(&path).await?;
/// let receipts = store.queue("receipts")?;
///
/// let mut conn = rusqlite::Connection::open(&path)?;
/// let sql = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
/// sql.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
/// store.attach(&sql)?.enqueue(&receipts, &"order 1", EnqueueOpts::new())?;
/// sql.commit()?;
/// assert_eq!(receipts.stats().await?.ready, 1);
/// # store.close().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "it stages nothing by itself"]
pub struct SqliteAttached<'c> {
    conn: &'c Connection,
    open: Arc<Open>,
    desk: Arc<Desk>,
    heads: Heads,
    /// Why nothing but a rollback is left.
    failed: Option<String>,
}

impl std::fmt::Debug for SqliteAttached<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteAttached").field("open", &self.open).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Stages operations in a transaction that the application began on a connection of its own to
    /// the same file.
    ///
    /// Begin it `IMMEDIATE`: a deferred one may find, at its first write, that somebody else has
    /// written meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the connection isn't inside a transaction, or is open on
    /// another file; [`Error::Closed`].
    pub fn attach<'c>(&self, conn: &'c Connection) -> Result<SqliteAttached<'c>> {
        self.open.usable()?;
        if conn.is_autocommit() {
            return Err(Error::invalid_argument(
                "conn",
                "a connection outside of a transaction",
                "one that is inside a transaction, begun IMMEDIATE",
            ));
        }
        if !self.open.hub.is_file_of(conn) {
            return Err(Error::invalid_argument(
                "conn",
                format_args!("a connection on {}", conn.path().unwrap_or_default()),
                format!("one on {}, the file of this store", self.path().display()),
            ));
        }
        let (open, desk) = (self.open.clone(), Arc::default());
        Ok(SqliteAttached { conn, open, desk, heads: Heads::new(), failed: None })
    }
}

/// Where the transaction's calls are put down for the thread that has the connection.
#[derive(Default)]
struct Desk(Mutex<Option<Request>>);

type Request = Box<dyn FnOnce(&mut Bench<'_>) + Send>;

/// What a request is worked on with.
struct Bench<'b> {
    conn: &'b Connection,
    open: &'b Open,
    heads: &'b mut Heads,
    failed: &'b mut Option<String>,
}

impl Bench<'_> {
    fn stage<T>(&mut self, run: impl FnOnce(&mut Write<'_>) -> Outcome<T>) -> Outcome<T> {
        let (time, mut effects) = (self.open.reading(), Effects::default());
        // The commit is heard of as that of any other connection.
        stage(self.conn, time, &mut effects, self.heads, run)
    }
}

impl Desk {
    async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Bench<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        *self.0.lock() = Some(Box::new(move |bench: &mut Bench<'_>| {
            let outcome = request(bench).map_err(|failure| bench.open.hub.error(failure));
            if let Err(error @ (Error::Unavailable { .. } | Error::Engine { .. })) = &outcome {
                *bench.failed = Some(error.to_string());
            }
            drop(answer.send(outcome));
        }));
        answered.await.unwrap_or(Err(Error::Closed))
    }

    async fn stage<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Write<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.ask(move |bench| bench.stage(run)).await
    }
}

impl SqliteAttached<'_> {
    /// Runs anything that takes a transaction, for instance what is written for both kinds.
    ///
    /// # Errors
    ///
    /// What it returns; [`Error::Engine`] where the application's transaction is over, or where it
    /// awaits something else than this transaction.
    pub fn run<'env, T>(
        &mut self,
        run: impl for<'t> FnOnce(&'t mut Tx<'env>) -> BoxFuture<'t, Result<T>>,
    ) -> Result<T> {
        self.open.usable()?;
        if self.conn.is_autocommit() {
            return Err(Error::engine("the application's transaction is over"));
        }
        let Self { conn, open, desk, heads, failed } = self;
        if let Some(why) = failed {
            return Err(Error::engine(format!(
                "the transaction can only be rolled back after this error: {why}"
            )));
        }
        let engine = Box::new(Attached(desk.clone()));
        let mut tx: Tx<'env> = Tx::new(open.id, open.options.limits, engine);
        let mut running = run(&mut tx);
        let mut context = Context::from_waker(noop_waker_ref());
        loop {
            match Pin::new(&mut running).poll(&mut context) {
                Poll::Ready(result) => return result,
                Poll::Pending => {
                    let Some(request) = desk.0.lock().take() else {
                        return Err(Error::engine(
                            "an attached transaction can await nothing but its own calls",
                        ));
                    };
                    request(&mut Bench { conn, open, heads, failed });
                }
            }
        }
    }

    /// Adds a job; see [`Queue::enqueue_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn enqueue(
        &mut self,
        queue: &Queue,
        payload: impl IntoPayload,
        opts: EnqueueOpts,
    ) -> Result<JobId> {
        let payload = payload.into_payload()?;
        self.run(|tx| Box::pin(queue.enqueue_tx(tx, payload, opts)))
    }

    /// Adds jobs; see [`Queue::enqueue_many_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn enqueue_many(&mut self, queue: &Queue, jobs: Vec<NewJob>) -> Result<Vec<JobId>> {
        self.run(|tx| Box::pin(queue.enqueue_many_tx(tx, jobs)))
    }

    /// Adds a delivery; see [`Outbox::enqueue_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn enqueue_outbox(
        &mut self,
        outbox: &Outbox,
        payload: impl IntoPayload,
        opts: OutboxOpts,
    ) -> Result<JobId> {
        let payload = payload.into_payload()?;
        self.run(|tx| Box::pin(outbox.enqueue_tx(tx, payload, opts)))
    }

    /// Settles a job as done; see [`Job::ack_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn ack(&mut self, job: &mut Job) -> Result<()> {
        self.run(|tx| Box::pin(job.ack_tx(tx)))
    }

    /// Lets a job be tried again; see [`Job::retry_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn retry(
        &mut self,
        job: &mut Job,
        error: impl std::fmt::Display,
        delay: Option<std::time::Duration>,
    ) -> Result<Retried> {
        let error = error.to_string();
        self.run(|tx| Box::pin(job.retry_tx(tx, error, delay)))
    }

    /// Buries a job; see [`Job::fail_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn fail(&mut self, job: &mut Job, error: impl std::fmt::Display) -> Result<()> {
        let error = error.to_string();
        self.run(|tx| Box::pin(job.fail_tx(tx, error)))
    }

    /// Publishes an event; see [`Stream::publish_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn publish(
        &mut self,
        stream: &Stream,
        payload: impl IntoPayload,
        opts: PublishOpts,
    ) -> Result<()> {
        let payload = payload.into_payload()?;
        self.run(|tx| Box::pin(stream.publish_tx(tx, payload, opts)))
    }

    /// Publishes events; see [`Stream::publish_many_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn publish_many(&mut self, stream: &Stream, events: Vec<NewEvent>) -> Result<()> {
        self.run(|tx| Box::pin(stream.publish_many_tx(tx, events)))
    }

    /// Saves how far a consumer has come; see [`Consumer::save_offset_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn save_offset(&mut self, consumer: &Consumer, offset: Offset) -> Result<()> {
        self.run(|tx| Box::pin(consumer.save_offset_tx(tx, offset)))
    }

    /// Sends a message; see [`Tx::notify_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn notify(&mut self, channel: &str, payload: impl IntoPayload) -> Result<()> {
        let payload = payload.into_payload()?;
        self.run(|tx| Box::pin(tx.notify_tx(channel, payload)))
    }

    /// One job as this transaction sees it; see [`Tx::get_job_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn get_job(&mut self, queue: &str, id: JobId) -> Result<Option<JobRecord>> {
        self.run(|tx| Box::pin(tx.get_job_tx(queue, id)))
    }

    /// A consumer's offset as this transaction sees it; see [`Tx::get_offset_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn get_offset(&mut self, stream: &str, consumer: &str) -> Result<Offset> {
        self.run(|tx| Box::pin(tx.get_offset_tx(stream, consumer)))
    }

    /// Reads the committed log; see [`Stream::read_tx`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn read(&mut self, stream: &Stream, after: Offset, limit: usize) -> Result<Vec<Event>> {
        self.run(|tx| Box::pin(stream.read_tx(tx, after, limit)))
    }
}

/// The transaction as the handles see it.
struct Attached(Arc<Desk>);

#[async_trait]
impl EngineTx for Attached {
    async fn insert_jobs(
        &mut self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let (queue, opts) = (queue.clone(), opts.clone());
        self.0
            .ask(move |bench| {
                let hub = &bench.open.hub;
                let ids = bench.stage(|write| hub.ids.insert_jobs(write, &queue, &opts, &jobs))?;
                // The application may roll them back: the writer takes note once it can.
                hub.writer.give_back(bench.open.options.clock.clone(), |_| Ok(()), |_| ());
                Ok(ids)
            })
            .await
    }

    async fn settle_job(&mut self, item: Settlement) -> Result<Settled> {
        self.0.stage(move |write| Ok(queue::settle_job(write, &item)??)).await
    }

    async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        let queue = queue.clone();
        self.0
            .ask(move |bench| {
                let now = Reading::of(&*bench.open.options.clock).now;
                queue::find_job(bench.conn, &queue, id, now)
            })
            .await
    }

    async fn append_events(&mut self, stream: &StreamName, events: Vec<EventSpec>) -> Result<()> {
        let stream = stream.clone();
        self.0.stage(move |write| stream::append_events(write, &stream, &events).map(drop)).await
    }

    async fn read_events(
        &mut self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let stream = stream.clone();
        self.0
            .ask(move |bench| {
                stream::read_events(bench.conn, Some(bench.heads), &stream, after, limit)
            })
            .await
    }

    async fn consumer_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.0.ask(move |bench| stream::consumer_offset(bench.conn, &stream, &consumer)).await
    }

    async fn store_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.0.stage(move |write| stream::store_offset(write, &stream, &consumer, offset)).await
    }

    async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()> {
        let channel = channel.clone();
        self.0.stage(move |write| notify::send_message(write, &channel, &payload)).await
    }

    fn engine(&mut self) -> Option<&mut dyn std::any::Any> {
        None
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        Err(Error::invalid_argument(
            "tx",
            "an attached transaction",
            "one that the store began; roll back on the connection itself",
        ))
    }
}

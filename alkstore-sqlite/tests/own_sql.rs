//! The application's own SQL beside the store's operations: together or not at all.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

#[path = "support/clock.rs"]
mod clock;
#[path = "support/directory.rs"]
mod directory;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, Job, JobId, JobState, NewEvent, NewJob, Offset, OutboxOpts, PublishOpts,
    QueueOpts, Retried, StoreExt, Tx,
};
use alkstore_sqlite::rusqlite::{Connection, TransactionBehavior};
use alkstore_sqlite::{Durability, SqliteStore, SqliteTx};
use clock::ManualClock;
use directory::directory;
use futures_util::FutureExt;
use tempfile::TempDir;

const ORDERS: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)";

struct Fixture {
    directory: TempDir,
    store: SqliteStore,
}

impl Fixture {
    async fn new() -> Self {
        let directory = directory();
        let store = open(&directory).await;
        Self { directory, store }
    }

    fn connection(&self) -> Connection {
        Connection::open(self.directory.path().join("app.db")).unwrap()
    }

    fn orders(&self) -> i64 {
        let exists = "SELECT count(*) FROM sqlite_schema WHERE name = 'orders'";
        let conn = self.connection();
        if conn.query_row(exists, [], |row| row.get::<_, i64>(0)).unwrap() == 0 {
            return 0;
        }
        conn.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
    }

    async fn claimed(&self, queue: &str) -> Job {
        let queue = self.store.queue(queue).unwrap();
        queue.enqueue(&"work").await.unwrap();
        queue.claim("w").await.unwrap().unwrap()
    }
}

async fn open(directory: &TempDir) -> SqliteStore {
    SqliteStore::builder(directory.path().join("app.db"))
        .durability(Durability::Normal)
        .lock_timeout(Duration::from_millis(200))
        .safety_poll(None)
        .open()
        .await
        .unwrap()
}

fn sql<'t>(tx: &'t mut Tx<'_>) -> &'t mut SqliteTx {
    tx.engine::<SqliteTx>().expect("this store's transaction")
}

async fn place_order(tx: &mut Tx<'_>) {
    let placed = sql(tx).run(|conn| {
        conn.execute_batch(ORDERS)?;
        conn.execute("INSERT INTO orders (total) VALUES (42)", [])
    });
    assert_eq!(placed.await.unwrap().unwrap(), 1);
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("it comes within 10 s")
}

#[tokio::test]
async fn row_job_event_message_and_ack_commit_together_or_not_at_all() {
    let f = Fixture::new().await;
    let (queue, stream) = (f.store.queue("receipts").unwrap(), f.store.stream("log").unwrap());
    let mut bell = f.store.listen("bell").await.unwrap();
    let mut job = f.claimed("work").await;
    for commit in [false, true] {
        let mut tx = f.store.begin_tx().await.unwrap();
        place_order(&mut tx).await;
        queue.enqueue_tx(&mut tx, &"order 1", EnqueueOpts::new()).await.unwrap();
        stream.publish_tx(&mut tx, &"paid", PublishOpts::new()).await.unwrap();
        tx.notify_tx("bell", &"rung").await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        assert_eq!(f.orders(), 0, "nobody else sees it before the commit");
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let expected = i64::from(commit);
        assert_eq!(f.orders(), expected);
        assert_eq!(queue.stats().await.unwrap().ready, expected.unsigned_abs());
        assert_eq!(stream.info().await.unwrap().last.get(), expected);
        let work = f.store.queue("work").unwrap().stats().await.unwrap();
        assert_eq!(work.claimed, 1 - expected.unsigned_abs());
    }
    assert_eq!(within(bell.recv()).await.unwrap().unwrap().payload.as_str(), "\"rung\"");
}

#[tokio::test]
async fn the_own_sql_sees_what_was_staged_and_its_failure_leaves_the_rest() {
    let f = Fixture::new().await;
    let queue = f.store.queue("q").unwrap();
    let mut tx = f.store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    let seen = sql(&mut tx).run(|conn| {
        conn.query_row("SELECT count(*) FROM alkstore_jobs", [], |row| row.get::<_, i64>(0))
    });
    assert_eq!(seen.await.unwrap().unwrap(), 1);
    let failed = sql(&mut tx).run(|conn| conn.execute("INSERT INTO nowhere VALUES (1)", []));
    failed.await.unwrap().unwrap_err();
    tx.commit().await.unwrap();
    assert_eq!(queue.stats().await.unwrap().ready, 1);
}

#[tokio::test]
async fn sql_that_ends_the_transaction_leaves_it_unusable() {
    for text in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN IMMEDIATE", "ROLLBACK; BEGIN IMMEDIATE"] {
        let f = Fixture::new().await;
        let queue = f.store.queue("q").unwrap();
        let mut tx = f.store.begin_tx().await.unwrap();
        let ran = sql(&mut tx).run(move |conn| conn.execute_batch(text)).await;
        let Err(Error::Engine { message, .. }) = &ran else { panic!("{text}: {ran:?}") };
        assert!(message.contains("ended the transaction"), "{message}");
        let refused = queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await;
        assert!(matches!(refused, Err(Error::Engine { .. })), "{text}: {refused:?}");
        let refused = tx.commit().await;
        assert!(matches!(refused, Err(Error::Engine { .. })), "{text}: {refused:?}");
        queue.enqueue(&1).await.expect("the store works on");
        assert_eq!(queue.stats().await.unwrap().ready, 1);
    }
}

#[tokio::test]
async fn a_panic_goes_on_and_leaves_nothing_but_a_rollback() {
    let f = Fixture::new().await;
    let queue = f.store.queue("q").unwrap();
    let mut tx = f.store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    let panics = sql(&mut tx).run(|_| -> () { panic!("of the application") });
    let panic = AssertUnwindSafe(panics).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the application"));
    let refused = tx.commit().await;
    assert!(matches!(refused, Err(Error::Engine { .. })), "{refused:?}");
    queue.enqueue(&2).await.expect("the store works on");
    assert_eq!(queue.stats().await.unwrap().ready, 1);
}

#[tokio::test]
async fn a_panic_in_with_tx_rolls_back_and_goes_on() {
    let f = Fixture::new().await;
    let queue = f.store.queue("q").unwrap();
    let inside = f.store.with_tx(|tx| {
        let queue = queue.clone();
        Box::pin(async move {
            queue.enqueue_tx(tx, &1, EnqueueOpts::new()).await?;
            sql(tx).run(|_| panic!("of the application")).await
        })
    });
    let outcome: Result<Result<(), Error>, _> = AssertUnwindSafe(inside).catch_unwind().await;
    outcome.unwrap_err();
    queue.enqueue(&2).await.expect("the store works on");
    assert_eq!(queue.stats().await.unwrap().ready, 1);
}

#[tokio::test]
async fn a_dropped_run_has_run_or_not_and_the_store_works_on() {
    let f = Fixture::new().await;
    let queue = f.store.queue("q").unwrap();
    for round in 0..50 {
        let mut tx = f.store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &round, EnqueueOpts::new()).await.unwrap();
        let run = sql(&mut tx).run(|conn| conn.execute_batch(ORDERS)).now_or_never();
        drop(run);
        drop(tx);
        assert_eq!(f.orders(), 0);
    }
    queue.enqueue(&1).await.unwrap();
    assert_eq!(queue.stats().await.unwrap().ready, 1);
}

#[tokio::test]
async fn a_close_waits_for_the_own_sql_that_runs() {
    let f = Fixture::new().await;
    let other = open(&f.directory).await;
    for store in [other, f.store.clone()] {
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, waits) = std::sync::mpsc::channel();
        let mut tx = store.begin_tx().await.unwrap();
        let running = tokio::spawn(async move {
            let ran = sql(&mut tx).run(move |_| {
                begun.send(()).unwrap();
                waits.recv().unwrap();
            });
            (ran.await, tx.commit().await)
        });
        tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
        let closing = store.clone();
        let closing = tokio::spawn(async move { closing.close().await });
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(!closing.is_finished());
        go_on.send(()).unwrap();
        within(closing).await.unwrap().unwrap();
        let (_, committed) = running.await.unwrap();
        assert!(matches!(committed, Err(Error::Closed)), "{committed:?}");
    }
}

#[tokio::test]
async fn what_is_attached_shares_the_fate_of_the_applications_transaction() {
    let f = Fixture::new().await;
    let store = &f.store;
    let (queue, stream) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let (outbox, consumer) = (store.outbox("mails").unwrap(), stream.consumer("c").unwrap());
    stream.publish(&"first").await.unwrap();
    let mut bell = store.listen("bell").await.unwrap();
    let (mut acked, mut retried, mut failed) =
        (f.claimed("a").await, f.claimed("b").await, f.claimed("c").await);
    let mut conn = f.connection();
    for commit in [false, true] {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute_batch(ORDERS).unwrap();
        tx.execute("INSERT INTO orders (total) VALUES (42)", []).unwrap();
        let mut staged = store.attach(&tx).unwrap();
        let id = staged.enqueue(&queue, &1, EnqueueOpts::new()).unwrap();
        let jobs = (2..4).map(|n| NewJob::new(&n).unwrap()).collect();
        assert_eq!(staged.enqueue_many(&queue, jobs).unwrap().len(), 2);
        staged.enqueue_outbox(&outbox, "mail", OutboxOpts::new()).unwrap();
        staged.ack(&mut acked).unwrap();
        let again = staged.retry(&mut retried, "busy", Some(Duration::ZERO)).unwrap();
        assert!(matches!(again, Retried::Again { .. }));
        staged.fail(&mut failed, "broken").unwrap();
        staged.publish(&stream, "second", PublishOpts::new()).unwrap();
        staged.publish_many(&stream, vec![NewEvent::new("third").unwrap()]).unwrap();
        staged.save_offset(&consumer, Offset::try_from(1).unwrap()).unwrap();
        staged.notify("bell", "rung").unwrap();
        assert_eq!(staged.get_job("q", id).unwrap().unwrap().state, JobState::Pending);
        assert_eq!(staged.get_offset("log", "c").unwrap().get(), 1);
        assert_eq!(staged.read(&stream, Offset::START, 10).unwrap().len(), 1, "the committed log");
        let beyond = staged.save_offset(&consumer, Offset::try_from(2).unwrap());
        assert!(matches!(beyond, Err(Error::InvalidArgument { .. })), "{beyond:?}");
        drop(staged);
        if commit {
            tx.commit().unwrap();
        } else {
            tx.rollback().unwrap();
        }
        let expected = u64::from(commit);
        assert_eq!(f.orders(), i64::from(commit));
        assert_eq!(queue.stats().await.unwrap().ready, 3 * expected);
        assert_eq!(outbox.stats().await.unwrap().ready, expected);
        assert_eq!(stream.info().await.unwrap().count, 1 + 2 * expected);
        assert_eq!(consumer.offset().await.unwrap().get(), i64::from(commit));
        let of = async |name| store.queue(name).unwrap().stats().await.unwrap();
        assert_eq!(of("a").await.claimed, 1 - expected);
        assert_eq!(of("b").await.ready, expected);
        assert_eq!(of("c").await.dead, expected);
    }
    assert_eq!(within(bell.recv()).await.unwrap().unwrap().payload.as_str(), "\"rung\"");
}

#[tokio::test]
async fn the_commit_of_an_attached_transaction_wakes() {
    let f = Fixture::new().await;
    let queue = f.store.queue("q").unwrap();
    let stream = f.store.stream("log").unwrap();
    let mut conn = f.connection();
    for round in 0..20 {
        let waiting = queue.clone();
        let next = tokio::spawn(async move { waiting.next("w").await.unwrap().ack().await });
        let head = stream.info().await.unwrap().last;
        let mut tail = stream.subscribe(head).await.unwrap();
        let read = tokio::spawn(async move { tail.recv().await.unwrap().unwrap() });
        tokio::task::yield_now().await;
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let mut staged = f.store.attach(&tx).unwrap();
        staged.enqueue(&queue, &round, EnqueueOpts::new()).unwrap();
        staged.publish(&stream, &round, PublishOpts::new()).unwrap();
        tx.commit().unwrap();
        within(next).await.unwrap().unwrap();
        within(read).await.unwrap();
    }
}

#[tokio::test]
async fn only_a_transaction_on_the_same_file_can_be_attached() {
    let f = Fixture::new().await;
    let refused = |conn: &Connection| match f.store.attach(conn) {
        Err(Error::InvalidArgument { argument, .. }) => assert_eq!(argument, "conn"),
        other => panic!("{other:?}"),
    };
    let conn = f.connection();
    refused(&conn);
    let memory = Connection::open_in_memory().unwrap();
    refused(&memory.unchecked_transaction().unwrap());
    let other = Connection::open(f.directory.path().join("other.db")).unwrap();
    refused(&other.unchecked_transaction().unwrap());
    // By another name of the same file.
    let link = f.directory.path().join("link.db");
    std::os::unix::fs::symlink(f.store.path(), &link).unwrap();
    let linked = Connection::open(&link).unwrap();
    drop(f.store.attach(&linked.unchecked_transaction().unwrap()).unwrap());
}

#[tokio::test]
async fn an_attached_transaction_has_the_limits_and_the_handles_of_its_store() {
    let f = Fixture::new().await;
    let other = open(&f.directory).await;
    let conn = f.connection();
    let tx = conn.unchecked_transaction().unwrap();
    let mut staged = f.store.attach(&tx).unwrap();
    let foreign = staged.enqueue(&other.queue("q").unwrap(), &1, EnqueueOpts::new());
    assert!(matches!(foreign, Err(Error::InvalidArgument { .. })), "{foreign:?}");
    let large = "x".repeat(2 * 1024 * 1024);
    let refused = staged.notify("bell", &large);
    assert!(matches!(refused, Err(Error::PayloadTooLarge { .. })), "{refused:?}");
    let elsewhere = staged.run(|_| Box::pin(std::future::pending::<Result<(), Error>>()));
    assert!(matches!(elsewhere, Err(Error::Engine { .. })), "{elsewhere:?}");
    staged.enqueue(&f.store.queue("q").unwrap(), &1, EnqueueOpts::new()).unwrap();
    tx.rollback().unwrap();
    conn.execute_batch("BEGIN; COMMIT").unwrap();
    assert_eq!(other.queue("q").unwrap().stats().await.unwrap().ready, 0);
}

#[tokio::test]
async fn a_deadline_that_passes_before_the_staging_call_is_a_lost_claim() {
    let directory = directory();
    let clock = Arc::new(ManualClock::new());
    let path = directory.path().join("app.db");
    let store = SqliteStore::builder(&path).clock(clock.clone()).open().await.unwrap();
    let opts = QueueOpts::new().visibility_timeout(Duration::from_secs(10));
    let queue = store.queue_with("q", opts).unwrap();
    queue.enqueue(&1).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    let conn = Connection::open(&path).unwrap();
    let tx = conn.unchecked_transaction().unwrap();
    let mut staged = store.attach(&tx).unwrap();
    clock.advance(Duration::from_secs(10));
    let lost = staged.ack(&mut job);
    assert!(matches!(lost, Err(Error::ClaimLost { .. })), "{lost:?}");
    staged.enqueue(&queue, &2, EnqueueOpts::new()).expect("it stays usable");
    tx.commit().unwrap();
    assert_eq!(queue.stats().await.unwrap().ready, 2);
}

#[tokio::test]
async fn an_id_that_was_rolled_back_is_not_given_again() {
    let f = Fixture::new().await;
    let queue = f.store.queue("q").unwrap();
    let mut conn = f.connection();
    let mut seen = std::collections::BTreeSet::new();
    let mut fresh = |id: JobId| assert!(seen.insert(id), "{id} was given before");
    let remembered = |conn: &Connection| -> i64 {
        let last = "SELECT seq FROM sqlite_sequence WHERE name = 'alkstore_jobs'";
        conn.query_row(last, [], |row| row.get(0)).unwrap()
    };
    for attached in [false, true, false, true] {
        let id = if attached {
            // Twice without a pause, so that the second one can't rely on the writer.
            let mut last = None;
            for _ in 0..2 {
                let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                let mut staged = f.store.attach(&tx).unwrap();
                let id = staged.enqueue(&queue, &1, EnqueueOpts::new()).unwrap();
                tx.rollback().unwrap();
                fresh(id);
                last = Some(id);
            }
            last.unwrap()
        } else {
            let mut tx = f.store.begin_tx().await.unwrap();
            let id = queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
            tx.rollback().await.unwrap();
            assert!(remembered(&conn) >= id.get(), "the file knows it once it is rolled back");
            fresh(id);
            id
        };
        // Without anything else that writes here, so that other processes don't give it either.
        within(async {
            while remembered(&conn) < id.get() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        fresh(queue.enqueue(&1).await.unwrap());
    }
    assert_eq!(queue.stats().await.unwrap().ready, 4);
}

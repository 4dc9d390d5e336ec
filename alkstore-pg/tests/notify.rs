//! What the engine sends as notifications: for wakes at most one a transaction and topic, and none
//! where nothing became claimable or readable.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, NewEvent, NewJob, Offset, PublishOpts, QueueOpts, ScheduleOpts, StoreExt,
};
use alkstore_pg::PgStore;
use alkstore_pg::sqlx::postgres::{PgConnection, PgListener};
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row};
use alkstore_suite::pg::Cluster;

const LONG: Duration = Duration::from_secs(20);

/// A store, and an ear on everything that it sends as wakes.
struct Fixture {
    store: PgStore,
    sql: PgConnection,
    ear: PgListener,
    channel: String,
}

impl Fixture {
    async fn new() -> Self {
        let url = Cluster::shared().url();
        let schema = Cluster::shared().fresh_schema();
        let store = PgStore::builder(&url).schema(&schema).safety_poll(None);
        let store = store.connect().await.unwrap();
        let mut sql = PgConnection::connect(&url).await.unwrap();
        let body = format!("SELECT prosrc FROM pg_proc WHERE oid = '\"{schema}\".wake'::regproc");
        let body: String = sql.fetch_one(AssertSqlSafe(body)).await.unwrap().get(0);
        let channel = body.split('\'').nth(1).expect("the channel's literal").to_owned();
        let mut ear = PgListener::connect(&url).await.unwrap();
        ear.listen(&channel).await.unwrap();
        Self { store, sql, ear, channel }
    }

    /// What was sent since the last call, sorted.
    async fn sent(&mut self) -> Vec<String> {
        let end = format!("SELECT pg_notify('{}', 'end')", self.channel);
        self.sql.execute(AssertSqlSafe(end)).await.unwrap();
        let mut sent = Vec::new();
        loop {
            let next = tokio::time::timeout(LONG, self.ear.recv()).await.unwrap().unwrap();
            if next.payload() == "end" {
                sent.sort();
                return sent;
            }
            sent.push(next.payload().to_owned());
        }
    }
}

const NOTHING: [&str; 0] = [];

#[tokio::test]
async fn what_becomes_claimable_is_told_once_and_nothing_else_is() {
    let mut f = Fixture::new().await;
    let opts = QueueOpts::new().visibility_timeout(LONG).max_attempts(2);
    let queue = f.store.queue_with("q", opts).unwrap();
    queue.enqueue(&1).await.unwrap();
    assert_eq!(f.sent().await, ["qq"]);
    queue.enqueue_many((0..100).map(|n| NewJob::new(&n).unwrap()).collect()).await.unwrap();
    assert_eq!(f.sent().await, ["qq"], "a hundred at once");
    let mut jobs = queue.claim_batch("w", 5).await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "a claim");
    jobs[0].heartbeat(2 * LONG).await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "a heartbeat that holds for longer");
    jobs[0].ack().await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "an ack");
    jobs[1].fail("for good").await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "a failure for good");
    jobs[2].retry("again", Some(10 * LONG)).await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "a retry later than what falls due anyhow");
    jobs[3].release(Duration::ZERO).await.unwrap();
    assert_eq!(f.sent().await, ["qq"], "given back");
    jobs[4].retry("again", Some(Duration::from_secs(1))).await.unwrap();
    assert_eq!(f.sent().await, ["qq"], "a retry before everything else");
    queue.enqueue_with(&1, EnqueueOpts::new().delay(10 * LONG)).await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "work for later");
    let key = || EnqueueOpts::new().unique_key("k");
    queue.enqueue_with(&1, key()).await.unwrap();
    assert_eq!(f.sent().await, ["qq"]);
    queue.enqueue_with(&1, key()).await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "a job that is there already");
    queue.pause().await.unwrap();
    assert_eq!(f.sent().await, NOTHING);
    queue.resume().await.unwrap();
    assert_eq!(f.sent().await, ["qq"]);
    queue.stats().await.unwrap();
    queue.cancel(jobs[3].id()).await.unwrap();
    assert_eq!(f.sent().await, NOTHING);
}

#[tokio::test]
async fn a_transaction_tells_a_topic_once_and_at_its_commit() {
    let mut f = Fixture::new().await;
    let (queue, other) = (f.store.queue("q").unwrap(), f.store.queue("other").unwrap());
    let stream = f.store.stream("s").unwrap();
    for commits in [false, true] {
        let mut tx = f.store.begin_tx().await.unwrap();
        for n in 0..10 {
            queue.enqueue_tx(&mut tx, &n, EnqueueOpts::new()).await.unwrap();
            other.enqueue_tx(&mut tx, &n, EnqueueOpts::new()).await.unwrap();
            stream.publish_tx(&mut tx, &n, PublishOpts::new()).await.unwrap();
        }
        assert_eq!(f.sent().await, NOTHING, "before the commit");
        if commits {
            tx.commit().await.unwrap();
            assert_eq!(f.sent().await, ["qother", "qq", "ss"]);
        } else {
            tx.rollback().await.unwrap();
            assert_eq!(f.sent().await, NOTHING, "after a rollback");
        }
    }
}

#[tokio::test]
async fn what_becomes_readable_is_told_once_and_nothing_else_is() {
    let mut f = Fixture::new().await;
    let stream = f.store.stream("s").unwrap();
    stream.publish(&1).await.unwrap();
    assert_eq!(f.sent().await, ["ss"]);
    stream.publish_many((0..100).map(|n| NewEvent::new(&n).unwrap()).collect()).await.unwrap();
    assert_eq!(f.sent().await, ["ss"], "a hundred at once");
    stream.publish_many(Vec::new()).await.unwrap();
    stream.read(Offset::START, 10).await.unwrap();
    let consumer = stream.consumer("c").unwrap();
    consumer.save_offset(Offset::stored(7)).await.unwrap();
    consumer.rewind(Offset::START).await.unwrap();
    stream.trim_to(Offset::stored(50)).await.unwrap();
    stream.forget_consumer("c").await.unwrap();
    stream.info().await.unwrap();
    assert_eq!(f.sent().await, NOTHING);
    f.store.notify("c", &1).await.unwrap();
    assert_eq!(f.sent().await, NOTHING, "messages go their own way");
}

#[tokio::test]
async fn locks_and_schedules_tell_what_their_waiters_have_to_know() {
    let mut f = Fixture::new().await;
    let mut lock = f.store.try_lock("l", "o", LONG).await.unwrap().unwrap();
    assert!(f.store.try_lock("l", "o", LONG).await.unwrap().is_none());
    lock.renew(2 * LONG).await.unwrap();
    assert_eq!(f.sent().await, NOTHING);
    lock.renew(LONG / 2).await.unwrap();
    assert_eq!(f.sent().await, ["ll"], "it may be had earlier");
    lock.release().await.unwrap();
    assert_eq!(f.sent().await, ["ll"]);
    f.store.schedule("s", "@every 1h", "q", &1, ScheduleOpts::new()).await.unwrap();
    assert_eq!(f.sent().await, ["c"]);
    assert!(f.store.pause_schedule("s").await.unwrap());
    assert_eq!(f.sent().await, ["c"]);
    assert!(!f.store.pause_schedule("s").await.unwrap());
    assert!(!f.store.unschedule("unknown").await.unwrap());
    assert_eq!(f.sent().await, NOTHING, "what changes nothing");
}

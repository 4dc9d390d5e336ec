//! What claims pass over while an old snapshot keeps dead rows in their way, and that nothing which
//! becomes ready is ever among it. The clock stands still until it is moved: the first claim after
//! that finds out what may be passed over, and those that follow do so.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/bouncer.rs"]
mod bouncer;
#[path = "support/factory.rs"]
mod factory;

use std::time::Duration;

use alkstore_core::{EnqueueOpts, NewJob, Queue, QueueOpts, StoreExt};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{AssertSqlSafe, Executor, Row};
use alkstore_pg::{PgStore, PgTx};
use alkstore_suite::{Data, OpenOptions};
use factory::{Fresh, PgFactory, connect, slow_claims};

const STEP: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// How long what was found out is believed, and not looked at again.
const BELIEVED: Duration = Duration::from_secs(1);

struct Setup {
    data: Fresh,
    store: PgStore,
    queue: Queue,
    sql: PgConnection,
}

impl Setup {
    async fn new() -> Self {
        let data = Fresh::new(PgFactory { floors: true, ..PgFactory::new(1) });
        let store = data.open_pg(OpenOptions::default()).await.unwrap();
        let queue = store.queue_with("q", QueueOpts::new().max_attempts(9)).unwrap();
        Self { data, store, queue, sql: connect().await }
    }

    /// Runs SQL in which `{s}` is the schema.
    async fn run(&mut self, sql: &str) {
        let sql = sql.replace("{s}", &format!("\"{}\"", self.data.schema));
        self.sql.execute(AssertSqlSafe(sql)).await.unwrap();
    }

    async fn enqueue(&self, payload: u32, opts: EnqueueOpts) {
        self.queue.enqueue_with(&payload, opts).await.unwrap();
        self.data.advance(STEP).await;
    }

    /// What a claim hands out, if anything; it is acked.
    async fn claim(&self) -> Option<u32> {
        let mut job = self.queue.claim("w").await.unwrap()?;
        let payload = job.payload().decode().unwrap();
        job.ack().await.unwrap();
        Some(payload)
    }

    /// Claims find that there is nothing, and what may be passed over; more than once, because what
    /// each knows is from the one before.
    async fn claims_in_vain(&self) {
        for _ in 0..3 {
            self.data.advance(STEP).await;
            assert_eq!(self.claim().await, None);
        }
    }

    /// Whether claims find themselves slow; what they know is believed as long as it is.
    async fn claim_is_slow(&mut self, slow: bool) {
        let sql = slow_claims(&self.data.schema, slow, BELIEVED);
        self.run(&sql).await;
    }

    async fn end(self) {
        self.store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_job_of_a_transaction_that_was_open_meanwhile_is_handed_out() {
    let mut setup = Setup::new().await;
    setup.claims_in_vain().await;
    setup.run("BEGIN; SELECT {s}.enqueue('q', '1')").await;
    setup.claims_in_vain().await;
    for payload in [2, 3] {
        setup.enqueue(payload, EnqueueOpts::new()).await;
    }
    assert_eq!(setup.claim().await, Some(2));
    setup.run("COMMIT").await;
    assert_eq!(setup.claim().await, Some(1), "it stands before what is ready");
    assert_eq!(setup.claim().await, Some(3));
    setup.end().await;
}

#[tokio::test]
async fn a_job_is_handed_out_whose_claim_is_rolled_back() {
    let mut setup = Setup::new().await;
    for payload in [1, 2, 3] {
        setup.enqueue(payload, EnqueueOpts::new()).await;
    }
    for payload in [1, 2] {
        assert_eq!(setup.claim().await, Some(payload));
        setup.data.advance(STEP).await;
    }
    setup.run("BEGIN; SELECT * FROM {s}.claim_jobs('q', 'w', 1)").await;
    setup.claims_in_vain().await;
    setup.run("ROLLBACK").await;
    assert_eq!(setup.claim().await, Some(3));
    setup.end().await;
}

#[tokio::test]
async fn what_fell_due_and_is_taken_in_later_is_handed_out() {
    let setup = Setup::new().await;
    // More than one claim takes in.
    let delayed = EnqueueOpts::new().delay(STEP);
    let jobs = (0..1_002).map(|n| NewJob::new(&n).unwrap().opts(delayed.clone()));
    setup.queue.enqueue_many(jobs.collect()).await.unwrap();
    for payload in [0, 1] {
        setup.data.advance(2 * STEP).await;
        assert_eq!(setup.claim().await, Some(payload));
    }
    assert_eq!(setup.queue.claim_batch("w", 2_000).await.unwrap().len(), 1_000);
    setup.end().await;
}

#[tokio::test]
async fn priorities_stay_in_their_order() {
    let setup = Setup::new().await;
    let of = |priority| EnqueueOpts::new().priority(priority);
    for (payload, priority) in [(1, 0), (2, 5), (3, 5), (4, -5)] {
        setup.enqueue(payload, of(priority)).await;
    }
    for payload in [2, 3, 1, 4] {
        assert_eq!(setup.claim().await, Some(payload));
    }
    setup.claims_in_vain().await;
    // Each higher than what was found last, lower, and the same.
    for (payload, priority) in [(5, 0), (6, 0), (7, 9), (8, -9), (9, -9), (10, 0)] {
        setup.queue.enqueue_with(&payload, of(priority)).await.unwrap();
    }
    for payload in [7, 5, 6, 10, 8, 9] {
        assert_eq!(setup.claim().await, Some(payload));
    }
    setup.end().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_hides_nothing() {
    let mut setup = Setup::new().await;
    setup.claims_in_vain().await;
    let clock = format!(r#"'"{}".test_clock'"#, setup.data.schema);
    let back = HOUR.as_micros();
    setup.run(&format!("SELECT setval({clock}, pg_sequence_last_value({clock}) - {back})")).await;
    assert_eq!(setup.claim().await, None);
    setup.queue.enqueue(&1).await.unwrap();
    assert_eq!(setup.claim().await, Some(1));
    setup.end().await;
}

/// How many blocks of jobs the store's one connection has read by now.
async fn blocks(setup: &mut Setup) -> i64 {
    let mut tx = setup.store.begin_tx().await.unwrap();
    let own = tx.engine::<PgTx>().unwrap();
    own.connection().execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    tx.commit().await.unwrap();
    let count = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables
        WHERE schemaname = $1 AND relname = 'jobs'";
    let count = alkstore_pg::sqlx::query(count).bind(setup.data.schema.clone());
    count.fetch_one(&mut setup.sql).await.unwrap().get(0)
}

/// How many a claim and its ack read.
async fn claim_reads(setup: &mut Setup) -> i64 {
    let before = blocks(setup).await;
    assert!(setup.claim().await.is_some());
    blocks(setup).await - before
}

#[tokio::test]
async fn claims_pass_over_jobs_that_are_done() {
    const DONE: u32 = 2_000;
    let mut setup = Setup::new().await;
    // Of two priorities, and long enough ago that their deadlines have passed, and that they would
    // have expired.
    for (priority, jobs) in [(1, DONE), (0, DONE + 100)] {
        for first in (0..jobs).step_by(100) {
            let opts = EnqueueOpts::new().priority(priority);
            let opts = if first < DONE { opts.expires(HOUR) } else { opts };
            let jobs = (first..first + 100).map(|n| NewJob::new(&n).unwrap().opts(opts.clone()));
            setup.queue.enqueue_many(jobs.collect()).await.unwrap();
            setup.data.advance(STEP).await;
        }
    }
    setup.claim_is_slow(false).await;
    let few = 2 * claim_reads(&mut setup).await;
    let mut holder = connect().await;
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    holder.execute("SELECT 1").await.unwrap();
    for _ in 0..2 * DONE / 100 {
        let mut claimed = setup.queue.claim_batch("w", 100).await.unwrap();
        setup.queue.ack_batch(&mut claimed).await.unwrap();
        setup.data.advance(STEP).await;
    }
    setup.data.advance(2 * HOUR).await;
    let all = claim_reads(&mut setup).await;
    assert!(all > 3 * few, "nothing lies in the way: {all} blocks");

    setup.claim_is_slow(true).await;
    for _ in 0..3 {
        assert!(setup.claim().await.is_some());
        setup.data.advance(2 * BELIEVED).await;
    }
    assert!(setup.claim().await.is_some());
    let reads = claim_reads(&mut setup).await;
    assert!(reads <= few, "{reads} blocks are read; {all} where nothing is known");
    setup.end().await;
}

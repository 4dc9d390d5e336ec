//! What the hot statements touch, whatever else lies in the table: counted by the server itself.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::time::Duration;

use alkstore_core::{
    BoxFuture, EnqueueOpts, Job, JobId, NewJob, Queue, QueueOpts, Result, StoreExt,
};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row};
use alkstore_pg::{PgStore, PgTx};
use alkstore_suite::pg::Cluster;

/// How many rows of each kind lie in the way.
const MANY: i64 = 20_000;

/// Rows that no claim of the queue `q` has to look at, each kind by its own statement.
const IN_THE_WAY: [(&str, &str); 6] = [
    ("delayed", "'q', 1, now + 86400000, 0, NULL"),
    ("claimed", "'q', 2, now + 86400000, 0, NULL"),
    ("claimed on the last attempt", "'q', 3, now - 1, 0, NULL"),
    ("dead", "'q', 4, now - 1, 0, NULL"),
    ("ready in other queues", "'other' || n % 100, 0, now, 0, NULL"),
    ("ready, and lower in priority", "'q', 0, now, -1 - n % 1000, now + 86400000"),
];

fn in_the_way(schema: &str, row: &str) -> String {
    format!(
        r#"INSERT INTO "{schema}".jobs (queue, state, at, priority, expires_at, max_attempts,
            enqueued_at, ready_at, visibility_ms, retry_base_ms, payload)
        SELECT {row}, 3, now, now, 300000, 5000, '1'
        FROM (SELECT "{schema}".now_ms() AS now) t, generate_series(1, {MANY}) n"#
    )
}

async fn scans(sql: &mut PgConnection, schema: &str) -> (i64, i64) {
    let count = "SELECT sum(seq_scan)::bigint, sum(idx_tup_fetch)::bigint
        FROM pg_stat_xact_user_tables WHERE schemaname = $1 AND relname = 'jobs'";
    let row = alkstore_pg::sqlx::query(count).bind(schema.to_owned()).fetch_one(sql).await;
    let row = row.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_claim_and_its_ack_touch_a_handful_of_rows() {
    let schema = Cluster::shared().fresh_schema();
    let url = Cluster::shared().url();
    let store = PgStore::builder(&url).schema(&schema).connect().await.unwrap();
    let mut sql = PgConnection::connect(&url).await.unwrap();
    for (kind, row) in IN_THE_WAY {
        sql.execute(AssertSqlSafe(in_the_way(&schema, row))).await.unwrap();
        // Without statistics, and with them.
        for analyzed in [false, true] {
            if analyzed {
                sql.execute(AssertSqlSafe(format!(r#"ANALYZE "{schema}".jobs"#))).await.unwrap();
            }
            store.queue("q").unwrap().enqueue(&"wanted").await.unwrap();
            let mut tx = sql.begin().await.unwrap();
            let claim = format!(r#"SELECT id, token FROM "{schema}".claim_jobs('q', 'w', 1)"#);
            let claimed = tx.fetch_all(AssertSqlSafe(claim)).await.unwrap();
            let (id, token): (i64, i64) = (claimed[0].get(0), claimed[0].get(1));
            let ack = format!(
                r#"SELECT acked FROM "{schema}".ack_jobs(ARRAY[{id}::bigint], ARRAY['q'],
                    ARRAY[{token}::bigint])"#
            );
            let acked: Vec<i64> = tx.fetch_one(AssertSqlSafe(ack)).await.unwrap().get(0);
            assert_eq!(acked, [1], "{kind}");
            let (whole, fetched) = scans(&mut tx, &schema).await;
            tx.commit().await.unwrap();
            assert_eq!(whole, 0, "the whole table is read behind {MANY} {kind}: {analyzed}");
            assert!(fetched <= 40, "{fetched} rows are read behind {MANY} {kind}: {analyzed}");
        }
    }
    store.close().await.unwrap();
}

/// What is read of a table in a schema by now, the work of the store's one connection included:
/// whole tables, and rows by an index.
async fn reads(store: &PgStore, sql: &mut PgConnection) -> (i64, i64) {
    let mut tx = store.begin_tx().await.unwrap();
    let own = tx.engine::<PgTx>().unwrap();
    own.connection().execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    tx.commit().await.unwrap();
    let count = "SELECT sum(seq_scan)::bigint, sum(idx_tup_fetch)::bigint
        FROM pg_stat_user_tables WHERE schemaname = $1 AND relname IN ('jobs', 'paused')";
    let row = alkstore_pg::sqlx::query(count).bind(store.schema().to_owned()).fetch_one(sql);
    let row = row.await.unwrap();
    (row.get(0), row.get(1))
}

type Call = for<'c> fn(&'c Queue, &'c mut Vec<Job>) -> BoxFuture<'c, Result<()>>;

/// Every call that is made once a job or more often, on a queue with a claimed job or two at hand.
const CALLS: [(&str, Call); 14] = [
    ("an enqueue", |queue, _| Box::pin(async move { queue.enqueue(&1).await.map(drop) })),
    ("enqueues together", |queue, _| {
        let jobs = (0..3).map(|n| NewJob::new(&n)).collect::<Result<_>>();
        Box::pin(async move { queue.enqueue_many(jobs?).await.map(drop) })
    }),
    ("a delayed enqueue", |queue, _| {
        let opts = EnqueueOpts::new().delay(Duration::from_secs(3_600));
        Box::pin(async move { queue.enqueue_with(&1, opts).await.map(drop) })
    }),
    ("an enqueue with a key", |queue, _| {
        let opts = EnqueueOpts::new().unique_key("k");
        Box::pin(async move { queue.enqueue_with(&1, opts).await.map(drop) })
    }),
    ("an enqueue whose key is taken", |queue, _| {
        let opts = EnqueueOpts::new().unique_key("k");
        Box::pin(async move { queue.enqueue_with(&1, opts).await.map(drop) })
    }),
    ("a claim", |queue, jobs| {
        Box::pin(async move { queue.claim("w").await.map(|job| jobs.extend(job)) })
    }),
    ("a claim of several", |queue, jobs| {
        Box::pin(async move { queue.claim_batch("w", 3).await.map(|claimed| jobs.extend(claimed)) })
    }),
    ("a heartbeat", |_, jobs| {
        Box::pin(async move { jobs[0].heartbeat(Duration::from_secs(60)).await.map(drop) })
    }),
    ("a retry", |_, jobs| {
        Box::pin(async move { jobs.pop().unwrap().retry("x", None).await.map(drop) })
    }),
    ("a release", |_, jobs| {
        let delay = Duration::from_secs(60);
        Box::pin(async move { jobs.pop().unwrap().release(delay).await })
    }),
    ("a failure", |_, jobs| Box::pin(async move { jobs.pop().unwrap().fail("x").await })),
    ("an ack", |_, jobs| Box::pin(async move { jobs.pop().unwrap().ack().await })),
    ("a look at a job", |queue, _| {
        Box::pin(async move { queue.get_job(JobId::stored(1)).await.map(drop) })
    }),
    ("a claim where nothing is ready", |queue, _| {
        Box::pin(async move {
            while !queue.claim_batch("w", 100).await?.is_empty() {}
            assert!(queue.claim("w").await?.is_none());
            Ok(())
        })
    }),
];

/// Statements whose plan was made, and kept, while the table was small and known to be so.
#[tokio::test]
async fn a_plan_of_a_small_table_is_good_for_a_large_one() {
    let schema = Cluster::shared().fresh_schema();
    let url = Cluster::shared().url();
    let builder = PgStore::builder(&url).schema(&schema).max_connections(1);
    let store = builder.connect().await.unwrap();
    let mut sql = PgConnection::connect(&url).await.unwrap();
    let queue = store.queue("q").unwrap();
    let mut jobs = Vec::new();
    queue.enqueue(&1).await.unwrap();
    for table in ["jobs", "paused"] {
        let known = format!(r#"VACUUM ANALYZE "{schema}".{table}"#);
        sql.execute(AssertSqlSafe(known)).await.unwrap();
    }
    // From the sixth time on a plan is kept.
    for _ in 0..7 {
        for (_, run) in CALLS {
            run(&queue, &mut jobs).await.unwrap();
        }
    }
    for (_, row) in &IN_THE_WAY[..5] {
        sql.execute(AssertSqlSafe(in_the_way(&schema, row))).await.unwrap();
    }
    for (call, run) in CALLS {
        let (whole, _) = reads(&store, &mut sql).await;
        run(&queue, &mut jobs).await.unwrap();
        let (after, _) = reads(&store, &mut sql).await;
        assert_eq!(after, whole, "{call} reads a whole table");
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn every_hot_call_reads_by_an_index() {
    let schema = Cluster::shared().fresh_schema();
    let url = Cluster::shared().url();
    let builder = PgStore::builder(&url).schema(&schema).max_connections(1);
    let store = builder.connect().await.unwrap();
    let mut sql = PgConnection::connect(&url).await.unwrap();
    // Lower ones would be found where nothing else is ready.
    for (_, row) in &IN_THE_WAY[..5] {
        sql.execute(AssertSqlSafe(in_the_way(&schema, row))).await.unwrap();
    }
    let opts = QueueOpts::new().retry_base(Duration::from_secs(60));
    let queue = store.queue_with("q", opts).unwrap();
    let mut jobs = Vec::new();
    for (call, run) in CALLS {
        let (whole, fetched) = reads(&store, &mut sql).await;
        run(&queue, &mut jobs).await.unwrap();
        let (after, after_fetched) = reads(&store, &mut sql).await;
        assert_eq!(after, whole, "{call} reads a whole table");
        let fetched = after_fetched - fetched;
        assert!(fetched <= 60, "{call} reads {fetched} rows");
    }
    store.close().await.unwrap();
}

/// How many buffers a claim reads.
async fn buffers(sql: &mut PgConnection, schema: &str) -> i64 {
    let claim = format!(
        r#"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
        SELECT * FROM "{schema}".claim_jobs('q', 'w', 1)"#
    );
    let mut tx = sql.begin().await.unwrap();
    // The first one plans.
    tx.fetch_one(AssertSqlSafe(claim.clone())).await.unwrap();
    let plan: String =
        tx.fetch_one(AssertSqlSafe(claim)).await.unwrap().try_get_unchecked(0).unwrap();
    tx.rollback().await.unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let of = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap();
    of("Shared Hit Blocks") + of("Shared Read Blocks")
}

#[tokio::test]
async fn a_claim_behind_dead_rows_reads_pages_and_not_rows() {
    const DEAD: u16 = 5_000;
    let schema = Cluster::shared().fresh_schema();
    let url = Cluster::shared().url();
    let store = PgStore::builder(&url).schema(&schema).connect().await.unwrap();
    let queue = store.queue("q").unwrap();
    let mut sql = PgConnection::connect(&url).await.unwrap();
    let jobs = (0..DEAD + 100).map(|n| NewJob::new(&n).unwrap()).collect();
    queue.enqueue_many(jobs).await.unwrap();
    let before = buffers(&mut sql, &schema).await;
    assert!(before <= 100, "{before} buffers with nothing in the way");

    let mut holder = PgConnection::connect(&url).await.unwrap();
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    holder.execute("SELECT 1").await.unwrap();
    for _ in 0..DEAD / 100 {
        let mut claimed = queue.claim_batch("w", 100).await.unwrap();
        for acked in queue.ack_batch(&mut claimed).await.unwrap() {
            acked.unwrap();
        }
    }
    // They stand in the order in which they were enqueued, many to a page.
    let behind = buffers(&mut sql, &schema).await;
    let most = before + i64::from(DEAD) / 10;
    assert!(behind <= most, "{behind} buffers behind {DEAD} dead rows");

    holder.execute("COMMIT").await.unwrap();
    // Other tests' transactions hold up nobody for long.
    let swept = async {
        loop {
            sql.execute(AssertSqlSafe(format!(r#"VACUUM "{schema}".jobs"#))).await.unwrap();
            let after = buffers(&mut sql, &schema).await;
            if after <= 2 * before {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), swept).await.unwrap();
    store.close().await.unwrap();
}

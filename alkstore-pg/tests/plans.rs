//! What the hot statements touch, whatever else lies in the table: counted by the server itself.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use alkstore_core::StoreExt;
use alkstore_pg::PgStore;
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row};
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
        let insert = format!(
            r#"INSERT INTO "{schema}".jobs (queue, state, at, priority, expires_at, max_attempts,
                enqueued_at, ready_at, visibility_ms, retry_base_ms, payload)
            SELECT {row}, 3, now, now, 300000, 5000, '1'
            FROM (SELECT "{schema}".now_ms() AS now) t, generate_series(1, {MANY}) n"#
        );
        sql.execute(AssertSqlSafe(insert)).await.unwrap();
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
                r#"SELECT outcome FROM "{schema}".settle_jobs(ARRAY[{id}::bigint], ARRAY['q'],
                    ARRAY[{token}::bigint], ARRAY[0::smallint], ARRAY[NULL::text],
                    ARRAY[NULL::bigint], false)"#
            );
            let acked: i16 = tx.fetch_one(AssertSqlSafe(ack)).await.unwrap().get(0);
            assert_eq!(acked, 1, "{kind}");
            let (whole, fetched) = scans(&mut tx, &schema).await;
            tx.commit().await.unwrap();
            assert_eq!(whole, 0, "the whole table is read behind {MANY} {kind}: {analyzed}");
            assert!(fetched <= 40, "{fetched} rows are read behind {MANY} {kind}: {analyzed}");
        }
    }
    store.close().await.unwrap();
}

//! What rows beside cost a claim.

use std::collections::BTreeMap;

use alkstore::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use alkstore::{PgStore, StoreExt};
use tokio::sync::Mutex;

use super::{DATABASE, database, run_sql};
use crate::beside::{Beside, Rows};
use crate::handles::{add_urgent, claim_and_ack, payload_text};
use crate::measure::{Reading, wall_micros};

/// How many jobs are claimed and acknowledged.
const CLAIMS: u64 = 350;

/// Puts the rows into a schema of their own, as the engine would have left them.
async fn prepare(url: &str, schema: &str, beside: Beside) -> anyhow::Result<()> {
    // It makes the tables.
    PgStore::builder(url).schema(schema).connect().await?.close().await?;
    let now = wall_micros() / 1_000;
    let Rows { count, queue, state, at, priority, attempt, expires_at } = beside.rows(now);
    let insert = format!(
        "INSERT INTO {schema}.jobs (queue, state, at, ready_at, priority, attempt, token,
            max_attempts, enqueued_at, visibility_ms, retry_base_ms, expires_at, payload)
        SELECT {queue}, {state}, {at}, {at}, {priority}, {attempt}, {attempt}, 3, {now} - 3600000,
            300000, 5000, {expires_at}, $1 FROM generate_series(1, {count}) i"
    );
    let mut conn = PgConnection::connect(url).await?;
    sqlx::query(AssertSqlSafe(insert)).bind(payload_text()).execute(&mut conn).await?;
    conn.close().await?;
    run_sql(url, &format!("VACUUM ANALYZE {schema}.jobs")).await
}

/// Claim + ack one by one beside rows of some kind, which are prepared once.
pub async fn growth(beside: Beside) -> anyhow::Result<Reading> {
    static PREPARED: Mutex<BTreeMap<String, String>> = Mutex::const_new(BTreeMap::new());
    let (url, _) = database(DATABASE).await?;
    let schema = {
        let mut prepared = PREPARED.lock().await;
        let (kind, next) = (format!("{beside:?}"), format!("beside_{}", prepared.len()));
        match prepared.get(&kind) {
            Some(schema) => schema.clone(),
            None => {
                prepare(&url, &next, beside).await?;
                prepared.insert(kind, next.clone());
                next
            }
        }
    };
    let store = PgStore::builder(&url).schema(schema).connect().await?;
    let queue = store.queue("q")?;
    add_urgent(&queue, CLAIMS).await?;
    // The first calls prepare statements and read what they need.
    claim_and_ack(&queue, CLAIMS / 10).await?;
    let reading = claim_and_ack(&queue, CLAIMS - CLAIMS / 10).await;
    store.close().await?;
    reading
}

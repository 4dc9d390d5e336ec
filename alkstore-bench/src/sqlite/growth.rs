//! What a million rows beside cost a claim.

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use alkstore::StoreExt;
use alkstore::rusqlite::Connection;
use alkstore_sqlite::Durability;

use super::{File, open};
use crate::beside::{Beside, MILLION, Rows};
use crate::handles::{add_urgent, claim_and_ack, payload_text};
use crate::measure::{Reading, now, wall_micros};
use crate::workload::{Workload, workload};

/// How many jobs are claimed and acknowledged.
const CLAIMS: u64 = 2_000;

/// Puts the rows into the tables as the engine would have left them.
async fn prepare(path: &Path, beside: Beside) -> anyhow::Result<()> {
    // It makes the tables.
    open(path, Durability::Normal).await?.close().await?;
    let now = wall_micros() / 1_000;
    let Rows { count, queue, state, at, priority, attempt, expires_at } = beside.rows(now);
    let conn = Connection::open(path)?;
    conn.execute_batch("PRAGMA synchronous = OFF")?;
    let insert = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
        INSERT INTO alkstore_jobs (queue, state, at, ready_at, priority, attempt, token,
            max_attempts, enqueued_at, visibility_ms, retry_base_ms, expires_at, payload)
        SELECT {queue}, {state}, {at}, {at}, {priority}, {attempt}, {attempt}, 3, {now} - 3600000,
            300000, 5000, {expires_at}, ?2 FROM n WHERE ?1 > 0"
    );
    conn.execute(&insert, (i64::try_from(count)?, payload_text()))?;
    conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(())
}

async fn measure(path: &Path) -> anyhow::Result<Reading> {
    let store = open(path, Durability::Normal).await?;
    let queue = store.queue("q")?;
    add_urgent(&queue, CLAIMS).await?;
    // The first calls of a connection read what they need of the file.
    claim_and_ack(&queue, CLAIMS / 10).await?;
    let reading = claim_and_ack(&queue, CLAIMS - CLAIMS / 10).await;
    store.close().await?;
    reading
}

/// Claim + ack one by one, beside rows of some kind.
pub async fn growth(beside: Beside) -> anyhow::Result<Reading> {
    let file = prepared(beside).await?;
    measure(&file.path()).await
}

async fn prepared(beside: Beside) -> anyhow::Result<File> {
    let file = File::new()?;
    prepare(&file.path(), beside).await?;
    if beside == Beside::FellDue {
        // The first calls take the backlog in, a page each.
        let store = open(&file.path(), Durability::Normal).await?;
        let queue = store.queue("q")?;
        for _ in 0..=MILLION / 1_000 {
            if let Some(mut job) = queue.claim("w").await? {
                job.release(Duration::ZERO).await?;
            }
        }
        store.close().await?;
    }
    Ok(file)
}

/// The same as a workload that prepares its rows once.
pub(super) fn workload_beside(name: &'static str, beside: Beside) -> Workload {
    let file = Rc::new(OnceCell::new());
    workload(name, move || {
        let file = file.clone();
        async move {
            if file.get().is_none() {
                let _ = file.set(prepared(beside).await?);
            }
            match file.get() {
                Some(file) => measure(&File::path(file)).await,
                None => anyhow::bail!("nothing was prepared"),
            }
        }
    })
}

/// The longest of the first claims after a million jobs fell due at one instant: no claim holds
/// the write lock for longer than it takes.
pub async fn longest_claim() -> anyhow::Result<Reading> {
    let file = File::new()?;
    prepare(&file.path(), Beside::FellDue).await?;
    let store = open(&file.path(), Durability::Normal).await?;
    let queue = store.queue("q")?;
    let mut longest = Duration::ZERO;
    for _ in 0..300 {
        let start = now();
        let Some(mut job) = queue.claim("w").await? else { anyhow::bail!("nothing was due") };
        longest = longest.max(start.elapsed());
        job.ack().await?;
    }
    store.close().await?;
    Ok(Reading::Time(longest))
}

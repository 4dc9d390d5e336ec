//! The schema that a store finds or makes.

use std::time::Duration;

use alkstore_core::Error;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor, Row};

use crate::error::Outcome;
use crate::pool::Conn;
use crate::sql::Texts;
use crate::tx;

/// How long the making of a schema may take, and the wait for others that make it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The schema that this version writes and reads.
#[expect(clippy::cast_possible_wrap, reason = "a handful of steps")]
const VERSION: i64 = STEPS.len() as i64;

/// What leads from each version to the next; the first from nothing.
const STEPS: [&[&str]; 1] = [&[
    include_str!("schema/1/base.sql"),
    include_str!("schema/1/lock.sql"),
    include_str!("schema/1/queue.sql"),
    include_str!("schema/1/schedule.sql"),
    include_str!("schema/1/stream.sql"),
    include_str!("schema/1/notify.sql"),
    include_str!("schema/1/surface.sql"),
]];

const IS_THERE: &str = "SELECT to_regclass($1) IS NOT NULL";

/// Until the transaction ends: who makes a schema makes it alone.
const ALONE: &str = "SELECT pg_advisory_xact_lock(hashtext('alkstore'), hashtext($1))";

/// What an open store has to know of its schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) identity: i64,
    pub(crate) us: i64,
}

/// Brings the schema up to date.
pub(crate) async fn open(conn: &mut Conn, texts: &Texts) -> Outcome<Opened> {
    let conn = conn.get();
    tx::begin_plain(conn).await?;
    let outcome = check_and_migrate(conn, texts).await;
    match outcome {
        Ok(opened) => {
            tx::commit(conn).await?;
            Ok(opened)
        }
        Err(failure) => {
            // The first error is the one to hear.
            let _ = tx::rollback(conn).await;
            Err(failure)
        }
    }
}

async fn check_and_migrate(conn: &mut PgConnection, texts: &Texts) -> Outcome<Opened> {
    if !is_current(version(conn, texts).await?, texts)? {
        let patience = format!(
            "SET LOCAL lock_timeout = {0}; SET LOCAL statement_timeout = {0}",
            PATIENCE.as_millis()
        );
        conn.execute(AssertSqlSafe(patience)).await?;
        one(conn, ALONE, &texts.schema).await?;
        // Somebody else may have come first.
        let found = version(conn, texts).await?;
        if !is_current(found, texts)? {
            migrate(conn, texts, found).await?;
        }
    }
    let known = texts.fill("SELECT value, {s}.clock_us() FROM {s}.meta WHERE key = 'identity'");
    let row = conn.fetch_one(AssertSqlSafe(known)).await?;
    Ok(Opened { identity: row.try_get(0)?, us: row.try_get(1)? })
}

async fn one(conn: &mut PgConnection, text: &'static str, value: &str) -> sqlx::Result<PgRow> {
    sqlx::query(text).bind(value.to_owned()).persistent(false).fetch_one(conn).await
}

/// The version of the schema; 0 where there is none.
async fn version(conn: &mut PgConnection, texts: &Texts) -> Outcome<i64> {
    let meta = texts.fill("{s}.meta");
    if !one(conn, IS_THERE, &meta).await?.try_get::<bool, _>(0)? {
        return Ok(0);
    }
    let text = texts.fill("SELECT value FROM {s}.meta WHERE key = 'schema_version'");
    let row = conn.fetch_optional(AssertSqlSafe(text)).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
}

fn is_current(found: i64, texts: &Texts) -> Outcome<bool> {
    if found > VERSION {
        return Err(Error::engine(format!(
            "schema {:?} has the version {found}, and this version of alkstore knows {VERSION} at most; update alkstore",
            texts.schema
        ))
        .into());
    }
    Ok(found == VERSION)
}

async fn migrate(conn: &mut PgConnection, texts: &Texts, found: i64) -> Outcome<()> {
    if found == 0 {
        let exists = one(conn, "SELECT to_regnamespace($1) IS NOT NULL", &texts.quoted()).await?;
        if !exists.try_get::<bool, _>(0)? {
            conn.execute(AssertSqlSafe(texts.fill("CREATE SCHEMA {s}"))).await?;
        }
    }
    let done = usize::try_from(found).unwrap_or(0);
    for text in STEPS.iter().skip(done).flat_map(|step| step.iter()) {
        conn.execute(AssertSqlSafe(texts.fill(text))).await?;
    }
    let store = "INSERT INTO {s}.meta (key, value) VALUES ('schema_version', {version})
        ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    let store = texts.fill(store).replace("{version}", &VERSION.to_string());
    conn.execute(AssertSqlSafe(store)).await?;
    Ok(())
}

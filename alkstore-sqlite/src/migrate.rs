//! Connections, and the schema they find or make.

use std::path::Path;
use std::time::Duration;

use alkstore_core::Error;
use rusqlite::{Connection, OpenFlags};

use crate::sql::{self, Failure, Outcome};
use crate::store::Durability;

/// The schema that this version writes and reads.
const VERSION: i64 = 1;

/// What leads from each version to the next; the first from an empty database.
const STEPS: [&str; 1] = [include_str!("schema/1.sql")];

/// How many statements a connection keeps prepared.
const STATEMENTS: usize = 128;

/// How long the making of a database waits for others that do the same.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

/// Opens the write connection and brings the schema up to date.
pub(crate) fn writer(path: &Path, durability: Durability) -> Outcome<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let conn = open(path, flags)?;
    if conn.is_readonly("main")? {
        return Err(Error::engine(format!(
            "{} can't be written: it is read-only; the file and its directory have to be writable",
            path.display()
        ))
        .into());
    }
    // Waiting is done here, where a close can end it.
    conn.busy_timeout(Duration::ZERO)?;
    patiently(|| write_ahead(&conn, path))?;
    // Checkpoints have a moment of their own.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
    synchronous(&conn, durability)?;
    patiently(|| migrate(&conn, path))?;
    Ok(conn)
}

/// Sets how much a commit waits for.
pub(crate) fn synchronous(conn: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let mode = match durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", mode)
}

/// Opens a connection that reads.
pub(crate) fn reader(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let conn = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    conn.busy_timeout(busy_timeout)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// The conversion to WAL ignores the busy handler, and so do some waits for a recovery.
fn patiently<T>(mut step: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let mut waited = Duration::ZERO;
    loop {
        match step() {
            Err(failure) if failure.is_busy() && waited < PATIENCE => {
                let pause = Duration::from_micros(fastrand::u64(500..5_000));
                wait(pause);
                waited += pause;
            }
            outcome => return outcome,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "on a thread of the engine's own")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

fn write_ahead(conn: &Connection, path: &Path) -> Outcome<()> {
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(Error::engine(format!(
        "{} can't keep a write-ahead log, its journal mode stays {mode:?}; put it on a local file system",
        path.display()
    ))
    .into())
}

/// The version of the schema; 0 where there is none.
fn version(conn: &Connection) -> rusqlite::Result<i64> {
    let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'alkstore_meta'";
    if sql::one(conn, known, [], |_| Ok(()))?.is_none() {
        return Ok(0);
    }
    let version = "SELECT value FROM alkstore_meta WHERE key = 'schema_version'";
    Ok(sql::one(conn, version, [], |row| row.get(0))?.unwrap_or(0))
}

fn check(found: i64, path: &Path) -> Outcome<bool> {
    if found > VERSION {
        return Err(Error::engine(format!(
            "{} has the schema version {found}, and this version of alkstore knows {VERSION} at most; update alkstore",
            path.display()
        ))
        .into());
    }
    Ok(found == VERSION)
}

fn migrate(conn: &Connection, path: &Path) -> Outcome<()> {
    if check(version(conn)?, path)? {
        return Ok(());
    }
    sql::begin(conn)?;
    let migrated = take_steps(conn, path);
    if migrated.is_err() {
        sql::rollback(conn);
    }
    migrated
}

fn take_steps(conn: &Connection, path: &Path) -> Outcome<()> {
    // Somebody else may have come first.
    let found = version(conn)?;
    if !check(found, path)? {
        let done = usize::try_from(found).map_err(|_| unknown(found, path))?;
        for step in &STEPS[done.min(STEPS.len())..] {
            conn.execute_batch(step)?;
        }
        let store = "INSERT INTO alkstore_meta (key, value) VALUES ('schema_version', ?1)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        sql::run(conn, store, [VERSION])?;
    }
    Ok(sql::commit(conn)?)
}

fn unknown(found: i64, path: &Path) -> Failure {
    Error::engine(format!("{} has the schema version {found}, which never was", path.display()))
        .into()
}

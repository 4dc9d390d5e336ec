//! Connections, and the schema they find or make.

use std::path::Path;
use std::time::Duration;

use alkstore_core::Error;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::sql::{self, Failure, Outcome};
use crate::store::Durability;

/// What leads from each version of the schema to the next; the first from an empty database.
const STEPS: &[&str] = &[include_str!("schema/1.sql")];

/// The oldest SQLite that doesn't damage a log that is begun anew beside another connection.
const OLDEST_LIBRARY: i32 = 3_051_003;

/// How many statements a connection keeps prepared.
const STATEMENTS: usize = 128;

/// How long the making of a database waits for others that do the same.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without it a statement whose plan looks at a bound value, as that of a limit, is compiled anew
    // whenever it is bound again.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

/// Opens the write connection and brings the schema up to date.
pub(crate) fn writer(path: &Path, durability: Durability) -> Outcome<Connection> {
    check_library(rusqlite::version_number(), rusqlite::version())?;
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
    patiently(|| migrate(&conn, path, STEPS))?;
    Ok(conn)
}

fn check_library(number: i32, version: &str) -> Outcome<()> {
    if number >= OLDEST_LIBRARY {
        return Ok(());
    }
    Err(Error::engine(format!(
        "this program is linked to SQLite {version}, which can damage a write-ahead log; link 3.51.3 or newer, or turn on the feature \"bundled\""
    ))
    .into())
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

/// Whether the schema is the newest one that is known.
fn is_newest(found: i64, path: &Path, steps: &[&str]) -> Outcome<bool> {
    let known = sql::extent(steps.len());
    if found > known {
        return Err(Error::engine(format!(
            "{} has the schema version {found}, and this version of alkstore knows {known} at most; update alkstore",
            path.display()
        ))
        .into());
    }
    Ok(found == known)
}

/// Brings the schema up to date, in one transaction.
fn migrate(conn: &Connection, path: &Path, steps: &[&str]) -> Outcome<()> {
    if is_newest(version(conn)?, path, steps)? {
        return Ok(());
    }
    sql::begin(conn)?;
    let migrated = take_steps(conn, path, steps);
    if migrated.is_err() {
        sql::rollback(conn);
    }
    migrated
}

fn take_steps(conn: &Connection, path: &Path, steps: &[&str]) -> Outcome<()> {
    // Somebody else may have come first.
    let found = version(conn)?;
    if !is_newest(found, path, steps)? {
        let done = usize::try_from(found).map_err(|_| unknown(found, path))?;
        for step in &steps[done..] {
            conn.execute_batch(step)?;
        }
        let store = "INSERT INTO alkstore_meta (key, value) VALUES ('schema_version', ?1)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        sql::run(conn, store, [sql::extent(steps.len())])?;
    }
    Ok(sql::commit(conn)?)
}

fn unknown(found: i64, path: &Path) -> Failure {
    Error::engine(format!("{} has the schema version {found}, which never was", path.display()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that can't be taken twice.
    const ADD: &str = "ALTER TABLE alkstore_paused ADD COLUMN since INTEGER";

    fn fresh() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        (directory, path)
    }

    fn text(failure: Failure, path: &Path) -> String {
        failure.into_error(path).to_string()
    }

    #[test]
    fn those_who_migrate_at_once_take_each_step_once() {
        let (_directory, path) = fresh();
        drop(writer(&path, Durability::Normal).unwrap());
        let steps = [STEPS[0], ADD, "ALTER TABLE alkstore_paused RENAME COLUMN since TO since_ms"];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let conn = open(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
                    conn.busy_timeout(Duration::ZERO).unwrap();
                    patiently(|| migrate(&conn, &path, &steps)).unwrap();
                    assert_eq!(version(&conn).unwrap(), 3);
                });
            }
        });
        let conn = Connection::open(&path).unwrap();
        conn.prepare("SELECT since_ms FROM alkstore_paused").unwrap();
        let failure = migrate(&conn, &path, STEPS).unwrap_err();
        let text = text(failure, &path);
        assert!(text.contains("schema version 3") && text.contains("knows 1 at most"), "{text}");
    }

    #[test]
    fn a_migration_that_fails_leaves_what_was_there() {
        let (_directory, path) = fresh();
        let conn = writer(&path, Durability::Normal).unwrap();
        migrate(&conn, &path, &[STEPS[0], ADD, "no statement"]).unwrap_err();
        assert!(conn.is_autocommit());
        assert_eq!(version(&conn).unwrap(), 1);
        conn.prepare("SELECT since FROM alkstore_paused").unwrap_err();
        migrate(&conn, &path, &[STEPS[0], ADD]).unwrap();
        assert_eq!(version(&conn).unwrap(), 2);
    }

    #[test]
    fn an_older_library_is_refused() {
        check_library(3_051_003, "3.51.3").unwrap();
        check_library(3_053_000, "3.53.0").unwrap();
        let refused = text(check_library(3_051_002, "3.51.2").unwrap_err(), Path::new("app.db"));
        assert!(refused.contains("3.51.2") && refused.contains("\"bundled\""), "{refused}");
    }
}

//! What every statement needs: errors, transactions, and the small steps of a query.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use alkstore_core::{BoxError, Error, Headers, Payload, Result, StreamName};
use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension, Params, Row};

use crate::clock::Reading;
use crate::wake::Effects;

/// What an operation on a connection fails with.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The database's own error.
    Sql(rusqlite::Error),
    /// An error of the contract.
    Contract(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Contract(error)
    }
}

pub(crate) type Outcome<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sql(error) => error.sqlite_error_code(),
            Self::Contract(_) => None,
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    /// The error as a caller hears it.
    pub(crate) fn into_error(self, path: &Path) -> Error {
        let (error, code) = match self {
            Self::Contract(error) => return error,
            Self::Sql(error) => {
                let code = error.sqlite_error_code();
                (error, code)
            }
        };
        let file = path.display();
        let text = error.to_string();
        let source = Some(Box::new(error) as BoxError);
        let engine = |message| Error::Engine { message, source: None };
        let mut error = match code {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                let message = format!("somebody else writes to {file}: {text}");
                return Error::Unavailable { message, source };
            }
            Some(ErrorCode::DiskFull) => {
                let message = format!("no space is left for {file}: {text}");
                return Error::Unavailable { message, source };
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => engine(format!(
                "{file} can't be written: {text}; the file and its directory have to be writable"
            )),
            Some(ErrorCode::CannotOpen) => engine(format!(
                "{file} can't be opened: {text}; its directory has to exist and to be writable"
            )),
            Some(ErrorCode::NotADatabase) => engine(format!(
                "{file} is no SQLite database: {text}; name another file, or move this one away"
            )),
            Some(ErrorCode::DatabaseCorrupt) => engine(format!(
                "{file} is damaged: {text}; restore it from a backup, or recover it with the sqlite3 shell"
            )),
            _ => engine(format!("{file}: {text}")),
        };
        if let Error::Engine { source: place, .. } = &mut error {
            *place = source;
        }
        error
    }
}

/// The same error once more, for each of those that it concerns.
pub(crate) fn copy(error: &Error) -> Error {
    match error {
        Error::Closed => Error::Closed,
        Error::Unavailable { message, .. } => Error::unavailable(message.clone()),
        Error::CommitUnknown { message, .. } => Error::commit_unknown(message.clone()),
        Error::Engine { message, .. } => Error::engine(message.clone()),
        other => Error::engine(other.to_string()),
    }
}

/// The heads that streams had when a transaction began to publish to them: what it reads of the
/// log, and what it may save, ends there.
pub(crate) type Heads = HashMap<StreamName, i64>;

/// The database as one write sees it: at one instant, and inside a transaction of the application
/// or not.
pub(crate) struct Write<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) time: Reading,
    pub(crate) effects: &'a mut Effects,
    /// Inside a transaction of the application.
    pub(crate) heads: Option<&'a mut Heads>,
}

impl Write<'_> {
    pub(crate) fn run(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        run(self.conn, sql, params)
    }
}

/// Runs a statement to its end and says how many rows it changed.
pub(crate) fn run(conn: &Connection, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
    prepared(conn, sql)?.execute(params)
}

/// The one row of a query, where there is one.
pub(crate) fn one<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    prepared(conn, sql)?.query_row(params, map).optional()
}

/// Every row of a query.
pub(crate) fn all<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    prepared(conn, sql)?.query_map(params, map)?.collect()
}

/// A statement, prepared once a connection.
pub(crate) fn prepared<'c>(
    conn: &'c Connection,
    sql: &str,
) -> rusqlite::Result<CachedStatement<'c>> {
    conn.prepare_cached(sql)
}

/// The payload in a column.
pub(crate) fn payload(row: &Row<'_>, column: usize) -> rusqlite::Result<Payload> {
    Ok(Payload::stored(row.get_ref(column)?.as_str()?))
}

/// How many bytes of payloads go into one list.
const LIST: usize = 16 * 1024 * 1024;

/// Whether payloads can go into the database as one list: a text has a greatest length there.
pub(crate) fn fits_list<'p>(payloads: impl Iterator<Item = &'p Payload>) -> bool {
    payloads.map(Payload::size).sum::<usize>() <= LIST
}

/// Headers as they are stored: a JSON object, or nothing where there are none.
pub(crate) fn headers_text(headers: &Headers) -> Result<Option<String>> {
    if headers.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::to_string(&headers.iter().collect::<BTreeMap<_, _>>())?))
}

/// The headers in a column.
pub(crate) fn headers(row: &Row<'_>, column: usize) -> rusqlite::Result<Headers> {
    let Some(text) = row.get_ref(column)?.as_str_or_null()? else {
        return Ok(Headers::default());
    };
    let map = serde_json::from_str(text).map_err(|error| {
        let text = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(column, text, Box::new(error))
    })?;
    Ok(Headers::stored(map))
}

/// An extent as SQLite takes it.
pub(crate) fn extent(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A count as the contract gives it.
pub(crate) fn count(rows: usize) -> u64 {
    rows as u64
}

/// Begins a transaction that writes: never a deferred one, which could read and then be refused
/// the write.
pub(crate) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    run(conn, "BEGIN IMMEDIATE", []).map(drop)
}

pub(crate) fn commit(conn: &Connection) -> rusqlite::Result<()> {
    run(conn, "COMMIT", []).map(drop)
}

/// Rolls back what is open, which may be nothing: some errors roll back by themselves.
pub(crate) fn rollback(conn: &Connection) {
    if !conn.is_autocommit() {
        // Nothing is left to be told: the error that led here is the one to hear.
        let _ = run(conn, "ROLLBACK", []);
    }
}

/// Runs a step that is undone alone where it fails.
pub(crate) fn savepoint<T>(conn: &Connection, step: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    run(conn, "SAVEPOINT alkstore_step", [])?;
    let outcome = step();
    // An error may have ended the whole transaction, and the savepoint with it.
    if !conn.is_autocommit() {
        if outcome.is_err() {
            run(conn, "ROLLBACK TO alkstore_step", [])?;
        }
        run(conn, "RELEASE alkstore_step", [])?;
    }
    outcome
}

/// Runs reads that have to agree with one another.
pub(crate) fn snapshot<T>(
    conn: &Connection,
    read: impl FnOnce(&Connection) -> Outcome<T>,
) -> Outcome<T> {
    let snapshot = conn.unchecked_transaction()?;
    let outcome = read(&snapshot)?;
    snapshot.finish()?;
    Ok(outcome)
}

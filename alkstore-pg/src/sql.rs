//! What every statement needs: the schema's name in its text, its connection, and the small steps
//! of a query.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use alkstore_core::{ChannelName, Headers, Payload};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row, SqlSafeStr, SqlStr};

use crate::error::Outcome;

/// The texts of statements in one schema.
///
/// A statement is written as a constant with `{s}` for the quoted schema, `{job_ids}` for the
/// literal of a sequence's name, and `{wakes}` and `{messages}` for those of its two channels.
#[derive(Debug)]
pub(crate) struct Texts {
    pub(crate) schema: String,
    /// Where wakes are sent.
    pub(crate) wakes: String,
    /// What the names begin with of those that messages are sent to.
    messages: String,
    filled: RwLock<HashMap<&'static str, SqlStr>>,
    /// Whether the server keeps statements prepared; a pooler in between may not.
    persistent: bool,
}

/// Channels are names of the database, at most 63 bytes long, so that the schema's own name may
/// not fit.
fn channel(kind: &str, schema: &str) -> String {
    // FNV-1a
    let hash = schema.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("alkstore_{kind}_{hash:016x}")
}

impl Texts {
    pub(crate) fn new(schema: &str, persistent: bool) -> Self {
        Self {
            wakes: channel("wakes", schema),
            messages: channel("messages", schema),
            schema: schema.to_owned(),
            filled: RwLock::default(),
            persistent,
        }
    }

    /// Where the messages of a channel are sent; the schema's function of that name says the same.
    pub(crate) fn message_channel(&self, channel: &ChannelName) -> String {
        let hash = Sha256::digest(channel.as_str());
        hash.iter().take(12).fold(format!("{}_", self.messages), |mut name, byte| {
            // A String takes everything.
            let _ = write!(name, "{byte:02x}");
            name
        })
    }

    /// The schema's name as an identifier.
    pub(crate) fn quoted(&self) -> String {
        quoted(&self.schema)
    }

    /// A text with the schema's names in it.
    pub(crate) fn fill(&self, text: &str) -> String {
        let job_ids = format!("{}.jobs_id_seq", self.quoted()).replace('\'', "''");
        text.replace("{s}", &self.quoted())
            .replace("{job_ids}", &format!("'{job_ids}'"))
            .replace("{wakes}", &format!("'{}'", self.wakes))
            .replace("{messages}", &format!("'{}'", self.messages))
    }

    fn statement(&self, text: &'static str) -> SqlStr {
        if let Some(filled) = self.filled.read().get(text) {
            return filled.clone();
        }
        // Safe: what is filled in is quoted.
        let filled: std::sync::Arc<str> = self.fill(text).into();
        let filled = AssertSqlSafe(filled).into_sql_str();
        self.filled.write().insert(text, filled.clone());
        filled
    }
}

/// An identifier, quoted.
pub(crate) fn quoted(name: &str) -> String {
    let mut quoted = String::with_capacity(name.len() + 2);
    // A String takes everything.
    let _ = write!(quoted, "\"{}\"", name.replace('"', "\"\""));
    quoted
}

/// A statement with its arguments still to be bound.
pub(crate) type Statement = Query<'static, Postgres, PgArguments>;

/// A connection as a primitive sees it: one of the pool in a statement of its own, that of a
/// transaction that the store began, or the application's.
pub(crate) struct Sql<'c> {
    pub(crate) conn: &'c mut PgConnection,
    pub(crate) texts: &'c Texts,
}

impl Sql<'_> {
    /// A statement, whose arguments are bound next.
    pub(crate) fn query(&self, text: &'static str) -> Statement {
        sqlx::query(self.texts.statement(text)).persistent(self.texts.persistent)
    }

    /// A statement that is planned each time, for what the table is like now: one that is kept was
    /// planned for what it was like, and may read all of it.
    pub(crate) fn query_once(&self, text: &'static str) -> Statement {
        self.query(text).persistent(false)
    }

    /// The rows of a statement.
    pub(crate) async fn all(&mut self, statement: Statement) -> Outcome<Vec<PgRow>> {
        Ok(statement.fetch_all(&mut *self.conn).await?)
    }

    /// The one row of a statement that has one.
    pub(crate) async fn one(&mut self, statement: Statement) -> Outcome<PgRow> {
        Ok(statement.fetch_one(&mut *self.conn).await?)
    }

    /// The first row of a statement.
    pub(crate) async fn first(&mut self, statement: Statement) -> Outcome<Option<PgRow>> {
        Ok(statement.fetch_optional(&mut *self.conn).await?)
    }
}

/// The payload in a column.
pub(crate) fn payload(row: &PgRow, column: usize) -> sqlx::Result<Payload> {
    Ok(Payload::stored(row.try_get::<&str, _>(column)?))
}

/// Headers as they are stored: a JSON object, or nothing where there are none.
pub(crate) fn headers_text(headers: &Headers) -> alkstore_core::Result<Option<String>> {
    if headers.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::to_string(&headers.iter().collect::<BTreeMap<_, _>>())?))
}

/// The headers in a column.
pub(crate) fn headers(row: &PgRow, column: usize) -> sqlx::Result<Headers> {
    let Some(text) = row.try_get::<Option<&str>, _>(column)? else {
        return Ok(Headers::default());
    };
    let map = serde_json::from_str(text).map_err(|error| sqlx::Error::ColumnDecode {
        index: column.to_string(),
        source: Box::new(error),
    })?;
    Ok(Headers::stored(map))
}

/// An extent as Postgres takes it.
pub(crate) fn extent(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_quoted_and_its_channels_fit() {
        let texts = Texts::new(&"é\"".repeat(21), true);
        assert!(texts.fill("{s}.jobs").starts_with("\"é\"\"é\"\""));
        assert!(texts.wakes.len() < 64);
        let channel = ChannelName::new("abc").unwrap();
        let messages = texts.message_channel(&channel);
        assert!(
            messages.len() < 64 && messages.ends_with("_ba7816bf8f01cfea414140de"),
            "{messages}"
        );
        assert_ne!(texts.wakes, Texts::new("alkstore", true).wakes);
    }
}

//! Streams.

use alkstore_core::{
    ConsumerInfo, Error, Event, EventSpec, LocalName, Offset, Result, StreamInfo, StreamName,
    StreamStore, Timestamp, Topic, beyond_head,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::sql::{self, Heads, Outcome, Write};
use crate::store::SqliteStore;
use crate::wake::ALL;
use crate::writer::Size;

const FIND: &str = "SELECT id, trimmed, head FROM alkstore_streams WHERE name = ?1";

const EVERY: &str = "SELECT id, trimmed, head, name FROM alkstore_streams";

const CREATE: &str = "INSERT INTO alkstore_streams (name) VALUES (?1)";

const ADVANCE: &str = "UPDATE alkstore_streams SET head = head + ?2 WHERE name = ?1
    RETURNING id, head";

const APPEND: &str =
    "INSERT INTO alkstore_events (stream, offset, published_at, key, headers, payload)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Events without keys and headers, whose payloads come as a list of strings.
const APPEND_PLAIN: &str = "INSERT INTO alkstore_events (stream, offset, published_at, payload)
    SELECT ?1, ?2 + key, ?3, value FROM json_each(?4)";

const READ: &str = "SELECT offset, published_at, key, headers, payload FROM alkstore_events
    WHERE stream = ?1 AND offset > ?2 AND offset <= ?3 ORDER BY offset LIMIT ?4";

const TRIM: &str = "DELETE FROM alkstore_events WHERE stream = ?1 AND offset <= ?2";

const TRIMMED: &str = "UPDATE alkstore_streams SET trimmed = ?2 WHERE id = ?1";

const CONSUMERS: &str = "SELECT name, offset FROM alkstore_consumers WHERE stream = ?1";

const SAVED: &str = "SELECT offset FROM alkstore_consumers
    WHERE stream = (SELECT id FROM alkstore_streams WHERE name = ?1) AND name = ?2";

const SAVE: &str = "INSERT INTO alkstore_consumers (stream, name, offset) VALUES (?1, ?2, ?3)
    ON CONFLICT (stream, name) DO UPDATE SET offset = max(offset, excluded.offset)";

const REWIND: &str = "INSERT INTO alkstore_consumers (stream, name, offset) VALUES (?1, ?2, ?3)
    ON CONFLICT (stream, name) DO UPDATE SET offset = excluded.offset";

const FORGET: &str = "DELETE FROM alkstore_consumers
    WHERE stream = (SELECT id FROM alkstore_streams WHERE name = ?1) AND name = ?2";

/// A stream is known by what was ever published to it, or by a consumer.
const FORGET_UNKNOWN: &str = "DELETE FROM alkstore_streams WHERE name = ?1 AND head = 0
    AND NOT EXISTS (SELECT 1 FROM alkstore_consumers WHERE stream = alkstore_streams.id)";

#[cfg(test)]
pub(crate) const HOT: &[&str] =
    &[FIND, ADVANCE, APPEND, APPEND_PLAIN, READ, TRIM, TRIMMED, CONSUMERS, SAVED, SAVE];

#[derive(Debug, Clone, Copy)]
struct Log {
    id: i64,
    /// The last event that was trimmed; the retained ones follow it.
    trimmed: i64,
    head: i64,
}

impl Log {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, trimmed: row.get(1)?, head: row.get(2)? })
    }

    fn find(conn: &Connection, stream: &StreamName) -> rusqlite::Result<Option<Self>> {
        sql::one(conn, FIND, [stream.as_str()], Self::of)
    }

    /// The stream, known from here on.
    fn known(conn: &Connection, stream: &StreamName) -> rusqlite::Result<Self> {
        if let Some(log) = Self::find(conn, stream)? {
            return Ok(log);
        }
        sql::run(conn, CREATE, [stream.as_str()])?;
        Ok(Self { id: conn.last_insert_rowid(), trimmed: 0, head: 0 })
    }

    fn info(self, conn: &Connection, name: &str) -> rusqlite::Result<StreamInfo> {
        let mut info =
            StreamInfo::new(name, Offset::stored(self.trimmed), Offset::stored(self.head));
        info.consumers = sql::all(conn, CONSUMERS, [self.id], |row| {
            let offset: i64 = row.get(1)?;
            let lag = self.head - offset.clamp(self.trimmed, self.head);
            let name = row.get::<_, String>(0)?;
            Ok(ConsumerInfo::new(name, Offset::stored(offset), lag.unsigned_abs()))
        })?;
        info.consumers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(info)
    }
}

/// The head of the committed log, as a write sees it.
fn committed_head(heads: Option<&Heads>, stream: &StreamName, log: Option<Log>) -> i64 {
    let staged = heads.and_then(|heads| heads.get(stream)).copied();
    staged.unwrap_or_else(|| log.map_or(0, |log| log.head))
}

/// Makes room for so many events; the stream's id, and the head before them.
fn advance(conn: &Connection, stream: &StreamName, count: i64) -> Outcome<(i64, i64)> {
    let values = params![stream.as_str(), count];
    // Stepped to its end: before that it isn't done.
    let mut advanced = sql::all(conn, ADVANCE, values, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (id, head): (i64, i64) = match advanced.pop() {
        Some(advanced) => advanced,
        None => {
            Log::known(conn, stream)?;
            return advance(conn, stream, count);
        }
    };
    Ok((id, head - count))
}

pub(crate) fn append_events(
    write: &mut Write<'_>,
    stream: &StreamName,
    events: &[EventSpec],
) -> Outcome<Vec<Offset>> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let (id, mut head) = advance(write.conn, stream, sql::extent(events.len()))?;
    if let Some(heads) = &mut write.heads {
        heads.entry(stream.clone()).or_insert(head);
    }
    write.effects.wake(Topic::Stream(stream.clone()), ALL);
    let is_plain = |event: &EventSpec| event.key.is_none() && event.headers.is_empty();
    if events.len() > 1
        && events.iter().all(is_plain)
        && sql::fits_list(events.iter().map(|event| &event.payload))
    {
        let payloads: Vec<_> = events.iter().map(|event| event.payload.as_str()).collect();
        let payloads = serde_json::to_string(&payloads).map_err(Error::from)?;
        write.run(APPEND_PLAIN, params![id, head + 1, write.time.now, payloads])?;
        let last = head + sql::extent(events.len());
        return Ok((head + 1..=last).map(Offset::stored).collect());
    }
    let mut places = Vec::with_capacity(events.len());
    let mut append = sql::prepared(write.conn, APPEND)?;
    for event in events {
        head += 1;
        let values = params![
            id,
            head,
            write.time.now,
            event.key.as_ref().map(LocalName::as_str),
            sql::headers_text(&event.headers)?,
            event.payload.as_str(),
        ];
        append.execute(values)?;
        places.push(Offset::stored(head));
    }
    Ok(places)
}

pub(crate) fn read_events(
    conn: &Connection,
    heads: Option<&Heads>,
    stream: &StreamName,
    after: Offset,
    limit: usize,
) -> Outcome<Vec<Event>> {
    let Some(log) = Log::find(conn, stream)? else { return Ok(Vec::new()) };
    let head = committed_head(heads, stream, Some(log));
    let values = [log.id, after.get(), head, sql::extent(limit)];
    Ok(sql::all(conn, READ, values, |row| {
        let key: Option<String> = row.get(2)?;
        let spec = EventSpec::stored(
            key.map(LocalName::stored),
            sql::payload(row, 4)?,
            sql::headers(row, 3)?,
        );
        let published_at = Timestamp::from_millis(row.get(1)?);
        Ok(Event::new(Offset::stored(row.get(0)?), spec, published_at.into()))
    })?)
}

pub(crate) fn consumer_offset(
    conn: &Connection,
    stream: &StreamName,
    consumer: &LocalName,
) -> Outcome<Offset> {
    let mut statement = conn.prepare_cached(SAVED)?;
    let saved = statement.query_row([stream.as_str(), consumer.as_str()], |row| row.get(0));
    Ok(saved.optional()?.map_or(Offset::START, Offset::stored))
}

fn set_offset(
    write: &mut Write<'_>,
    statement: &str,
    stream: &StreamName,
    consumer: &LocalName,
    offset: Offset,
) -> Outcome<()> {
    let log = Log::find(write.conn, stream)?;
    let head = Offset::stored(committed_head(write.heads.as_deref(), stream, log));
    if offset > head {
        return Err(beyond_head("offset", offset, head).into());
    }
    let log = match log {
        Some(log) => log,
        None => Log::known(write.conn, stream)?,
    };
    write.run(statement, params![log.id, consumer.as_str(), offset.get()])?;
    Ok(())
}

pub(crate) fn store_offset(
    write: &mut Write<'_>,
    stream: &StreamName,
    consumer: &LocalName,
    offset: Offset,
) -> Outcome<()> {
    set_offset(write, SAVE, stream, consumer, offset)
}

fn trim(write: &mut Write<'_>, stream: &StreamName, horizon: Offset) -> Outcome<u64> {
    let Some(log) = Log::find(write.conn, stream)? else { return Ok(0) };
    let horizon = horizon.get().min(log.head);
    if horizon <= log.trimmed {
        return Ok(0);
    }
    let deleted = write.run(TRIM, [log.id, horizon])?;
    write.run(TRIMMED, [log.id, horizon])?;
    Ok(sql::count(deleted))
}

fn forget(write: &mut Write<'_>, stream: &StreamName, consumer: &LocalName) -> Outcome<bool> {
    let known = write.run(FORGET, [stream.as_str(), consumer.as_str()])? > 0;
    if known {
        write.run(FORGET_UNKNOWN, [stream.as_str()])?;
    }
    Ok(known)
}

fn infos(conn: &Connection, stream: Option<&StreamName>) -> Outcome<Vec<StreamInfo>> {
    if let Some(name) = stream {
        let unknown = Log { id: 0, trimmed: 0, head: 0 };
        let log = Log::find(conn, name)?.unwrap_or(unknown);
        return Ok(vec![log.info(conn, name.as_str())?]);
    }
    let logs = sql::all(conn, EVERY, [], |row| Ok((Log::of(row)?, row.get::<_, String>(3)?)))?;
    let mut infos = Vec::with_capacity(logs.len());
    for (log, name) in logs {
        infos.push(log.info(conn, &name)?);
    }
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(infos)
}

#[async_trait]
impl StreamStore for SqliteStore {
    async fn append_events(
        &self,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        let stream = stream.clone();
        let bytes = events.iter().map(|event| event.payload.size()).sum();
        let size = Size::of(events.len(), bytes);
        self.open.write(size, move |write| append_events(write, &stream, &events)).await
    }

    async fn read_events(
        &self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let stream = stream.clone();
        self.open.read(move |conn| read_events(conn, None, &stream, after, limit)).await
    }

    async fn trim_stream(&self, stream: &StreamName, horizon: Offset) -> Result<u64> {
        let stream = stream.clone();
        self.open.write(Size::Any, move |write| trim(write, &stream, horizon)).await
    }

    async fn stream_info(&self, stream: Option<&StreamName>) -> Result<Vec<StreamInfo>> {
        let stream = stream.cloned();
        self.open.read(move |conn| sql::snapshot(conn, |conn| infos(conn, stream.as_ref()))).await
    }

    async fn consumer_offset(&self, stream: &StreamName, consumer: &LocalName) -> Result<Offset> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open.peek(move |conn| consumer_offset(conn, &stream, &consumer)).await
    }

    async fn store_offset(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open
            .write(Size::Small, move |write| store_offset(write, &stream, &consumer, offset))
            .await
    }

    async fn rewind_consumer(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open
            .write(Size::Small, move |write| set_offset(write, REWIND, &stream, &consumer, offset))
            .await
    }

    async fn delete_consumer(&self, stream: &StreamName, consumer: &LocalName) -> Result<bool> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open.write(Size::Small, move |write| forget(write, &stream, &consumer)).await
    }
}

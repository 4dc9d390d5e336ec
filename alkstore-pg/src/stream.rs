//! Streams: a counter row a stream, whose lock publishers hold from taking their place until their
//! commit is visible; what transactions publish takes its place when they commit.

use std::sync::Arc;

use alkstore_core::{
    ConsumerInfo, Event, EventSpec, LocalName, Offset, Result, StreamInfo, StreamName, StreamStore,
    Timestamp, beyond_head,
};
use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::Outcome;
use crate::sql::{self, Sql, Statement};
use crate::store::PgStore;

const APPEND: &str = "SELECT {s}.append_events($1, $2, $3, $4)";

const STAGE: &str = "SELECT {s}.stage_events($1, $2, $3, $4)";

/// What is asked for is told by offsets, which are contiguous, and not by a limit alone: whatever
/// the planner thinks, it sorts no more than it returns.
const READ: &str = r#"
    SELECT e."offset", e.published_at, e.key, e.headers, e.payload
    FROM {s}.streams s CROSS JOIN LATERAL (
        SELECT greatest($2, s.trimmed) AS base) b
    JOIN {s}.events e ON e.stream = s.id AND e."offset" > b.base
        AND e."offset" <= b.base + least($3, greatest(s.head - b.base, 0))
    WHERE s.name = $1 ORDER BY e."offset""#;

const TRIM: &str = "SELECT {s}.trim_stream($1, $2)";

/// One stream, where it is named; else every one that is known.
const INFO: &str = r#"
    SELECT k.name, coalesce(s.trimmed, 0), coalesce(s.head, 0),
        ARRAY(SELECT c.name FROM {s}.consumers c WHERE c.stream = k.name ORDER BY c.name),
        ARRAY(SELECT c."offset" FROM {s}.consumers c WHERE c.stream = k.name ORDER BY c.name)
    FROM (
        SELECT $1::text COLLATE "C" AS name WHERE $1 IS NOT NULL
        UNION SELECT name FROM {s}.streams WHERE $1 IS NULL
        UNION SELECT stream FROM {s}.consumers WHERE $1 IS NULL
    ) k LEFT JOIN {s}.streams s ON s.name = k.name
    ORDER BY k.name"#;

const SAVED: &str = r#"SELECT "offset" FROM {s}.consumers WHERE stream = $1 AND name = $2"#;

const MOVE: &str = "SELECT {s}.move_consumer($1, $2, $3, $4)";

const FORGET: &str = "DELETE FROM {s}.consumers WHERE stream = $1 AND name = $2 RETURNING 1";

/// Binds events to a statement, a column an array.
fn bound(statement: Statement, stream: &StreamName, events: &[EventSpec]) -> Result<Statement> {
    let mut headers = Vec::with_capacity(events.len());
    for event in events {
        headers.push(sql::headers_text(&event.headers)?);
    }
    let key = |event: &EventSpec| event.key.as_ref().map(|key| key.as_str().to_owned());
    let payload = |event: &EventSpec| event.payload.as_str().to_owned();
    Ok(statement
        .bind(stream.as_str().to_owned())
        .bind(events.iter().map(key).collect::<Vec<_>>())
        .bind(headers)
        .bind(events.iter().map(payload).collect::<Vec<_>>()))
}

async fn append_events(
    sql: &mut Sql<'_>,
    stream: &StreamName,
    events: &[EventSpec],
) -> Outcome<Vec<Offset>> {
    let statement = bound(sql.query(APPEND), stream, events)?;
    let base: i64 = sql.one(statement).await?.try_get(0)?;
    Ok((base + 1..).take(events.len()).map(Offset::stored).collect())
}

/// Publishes when the transaction commits.
pub(crate) async fn stage_events(
    sql: &mut Sql<'_>,
    stream: &StreamName,
    events: &[EventSpec],
) -> Outcome<()> {
    if !events.is_empty() {
        let statement = bound(sql.query(STAGE), stream, events)?;
        sql.one(statement).await?;
    }
    Ok(())
}

fn event(row: &PgRow) -> Outcome<Event> {
    let key: Option<&str> = row.try_get(2)?;
    let spec =
        EventSpec::stored(key.map(LocalName::stored), sql::payload(row, 4)?, sql::headers(row, 3)?);
    let published_at = Timestamp::from_millis(row.try_get(1)?);
    Ok(Event::new(Offset::stored(row.try_get(0)?), spec, published_at.into()))
}

pub(crate) async fn read_events(
    sql: &mut Sql<'_>,
    stream: &StreamName,
    after: Offset,
    limit: usize,
) -> Outcome<Vec<Event>> {
    let statement =
        sql.query(READ).bind(stream.as_str().to_owned()).bind(after.get()).bind(sql::extent(limit));
    sql.all(statement).await?.iter().map(event).collect()
}

pub(crate) async fn consumer_offset(
    sql: &mut Sql<'_>,
    stream: &StreamName,
    consumer: &LocalName,
) -> Outcome<Offset> {
    let statement =
        sql.query(SAVED).bind(stream.as_str().to_owned()).bind(consumer.as_str().to_owned());
    let saved = sql.first(statement).await?.map(|row| row.try_get(0)).transpose()?;
    Ok(saved.map_or(Offset::START, Offset::stored))
}

async fn move_consumer(
    sql: &mut Sql<'_>,
    stream: &StreamName,
    consumer: &LocalName,
    offset: Offset,
    back: bool,
) -> Outcome<()> {
    let statement = sql
        .query(MOVE)
        .bind(stream.as_str().to_owned())
        .bind(consumer.as_str().to_owned())
        .bind(offset.get())
        .bind(back);
    let beyond: Option<i64> = sql.one(statement).await?.try_get(0)?;
    match beyond {
        Some(head) => Err(beyond_head("offset", offset, Offset::stored(head)).into()),
        None => Ok(()),
    }
}

pub(crate) async fn store_offset(
    sql: &mut Sql<'_>,
    stream: &StreamName,
    consumer: &LocalName,
    offset: Offset,
) -> Outcome<()> {
    move_consumer(sql, stream, consumer, offset, false).await
}

async fn trim(sql: &mut Sql<'_>, stream: &StreamName, horizon: Offset) -> Outcome<u64> {
    let statement = sql.query(TRIM).bind(stream.as_str().to_owned()).bind(horizon.get());
    let deleted: i64 = sql.one(statement).await?.try_get(0)?;
    Ok(deleted.unsigned_abs())
}

fn info(row: &PgRow) -> Outcome<StreamInfo> {
    let (trimmed, head): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    let (names, offsets): (Vec<String>, Vec<i64>) = (row.try_get(3)?, row.try_get(4)?);
    let name: String = row.try_get(0)?;
    let mut info = StreamInfo::new(name, Offset::stored(trimmed), Offset::stored(head));
    let consumers = names.into_iter().zip(offsets).map(|(name, offset)| {
        let lag = head - offset.clamp(trimmed, head);
        ConsumerInfo::new(name, Offset::stored(offset), lag.unsigned_abs())
    });
    info.consumers = consumers.collect();
    Ok(info)
}

async fn infos(sql: &mut Sql<'_>, stream: Option<&StreamName>) -> Outcome<Vec<StreamInfo>> {
    let statement = sql.query(INFO).bind(stream.map(|name| name.as_str().to_owned()));
    sql.all(statement).await?.iter().map(info).collect()
}

async fn forget(sql: &mut Sql<'_>, stream: &StreamName, consumer: &LocalName) -> Outcome<bool> {
    let statement =
        sql.query(FORGET).bind(stream.as_str().to_owned()).bind(consumer.as_str().to_owned());
    Ok(sql.first(statement).await?.is_some())
}

#[async_trait]
impl StreamStore for PgStore {
    async fn append_events(
        &self,
        stream: &StreamName,
        events: Vec<EventSpec>,
    ) -> Result<Vec<Offset>> {
        if events.is_empty() {
            return self.open.usable().map(|()| Vec::new());
        }
        let (stream, events) = (stream.clone(), Arc::new(events));
        self.open
            .write(move |mut sql| {
                let (stream, events) = (stream.clone(), events.clone());
                Box::pin(async move { append_events(&mut sql, &stream, &events).await })
            })
            .await
    }

    async fn read_events(
        &self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        let stream = stream.clone();
        self.open
            .read(move |mut sql| {
                let stream = stream.clone();
                Box::pin(async move { read_events(&mut sql, &stream, after, limit).await })
            })
            .await
    }

    async fn trim_stream(&self, stream: &StreamName, horizon: Offset) -> Result<u64> {
        let stream = stream.clone();
        self.open
            .write(move |mut sql| {
                let stream = stream.clone();
                Box::pin(async move { trim(&mut sql, &stream, horizon).await })
            })
            .await
    }

    async fn stream_info(&self, stream: Option<&StreamName>) -> Result<Vec<StreamInfo>> {
        let stream = stream.cloned();
        self.open
            .read(move |mut sql| {
                let stream = stream.clone();
                Box::pin(async move { infos(&mut sql, stream.as_ref()).await })
            })
            .await
    }

    async fn consumer_offset(&self, stream: &StreamName, consumer: &LocalName) -> Result<Offset> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open
            .read(move |mut sql| {
                let (stream, consumer) = (stream.clone(), consumer.clone());
                Box::pin(async move { consumer_offset(&mut sql, &stream, &consumer).await })
            })
            .await
    }

    async fn store_offset(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.place(stream, consumer, offset, false).await
    }

    async fn rewind_consumer(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.place(stream, consumer, offset, true).await
    }

    async fn delete_consumer(&self, stream: &StreamName, consumer: &LocalName) -> Result<bool> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open
            .write(move |mut sql| {
                let (stream, consumer) = (stream.clone(), consumer.clone());
                Box::pin(async move { forget(&mut sql, &stream, &consumer).await })
            })
            .await
    }
}

impl PgStore {
    async fn place(
        &self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
        back: bool,
    ) -> Result<()> {
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open
            .write(move |mut sql| {
                let (stream, consumer) = (stream.clone(), consumer.clone());
                Box::pin(
                    async move { move_consumer(&mut sql, &stream, &consumer, offset, back).await },
                )
            })
            .await
    }
}

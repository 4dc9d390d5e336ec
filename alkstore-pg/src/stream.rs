//! Streams.

use alkstore_core::{
    Error, Event, EventSpec, LocalName, Offset, Result, StreamInfo, StreamName, StreamStore,
};
use async_trait::async_trait;

use crate::error::Outcome;
use crate::sql::Sql;
use crate::store::PgStore;

fn to_come<T>() -> Outcome<T> {
    Err(Error::engine("streams are on their way").into())
}

/// Stages events in a transaction: they take their places at its commit.
pub(crate) async fn stage_events(
    _sql: &mut Sql<'_>,
    _stream: &StreamName,
    _events: &[EventSpec],
) -> Outcome<()> {
    to_come()
}

pub(crate) async fn read_events(
    _sql: &mut Sql<'_>,
    _stream: &StreamName,
    _after: Offset,
    _limit: usize,
) -> Outcome<Vec<Event>> {
    to_come()
}

pub(crate) async fn consumer_offset(
    _sql: &mut Sql<'_>,
    _stream: &StreamName,
    _consumer: &LocalName,
) -> Outcome<Offset> {
    to_come()
}

pub(crate) async fn store_offset(
    _sql: &mut Sql<'_>,
    _stream: &StreamName,
    _consumer: &LocalName,
    _offset: Offset,
) -> Outcome<()> {
    to_come()
}

#[async_trait]
impl StreamStore for PgStore {
    async fn append_events(&self, _: &StreamName, _: Vec<EventSpec>) -> Result<Vec<Offset>> {
        Err(Error::engine("streams are on their way"))
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

    async fn trim_stream(&self, _: &StreamName, _: Offset) -> Result<u64> {
        Err(Error::engine("streams are on their way"))
    }

    async fn stream_info(&self, _: Option<&StreamName>) -> Result<Vec<StreamInfo>> {
        Err(Error::engine("streams are on their way"))
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
        let (stream, consumer) = (stream.clone(), consumer.clone());
        self.open
            .write(move |mut sql| {
                let (stream, consumer) = (stream.clone(), consumer.clone());
                Box::pin(async move { store_offset(&mut sql, &stream, &consumer, offset).await })
            })
            .await
    }

    async fn rewind_consumer(&self, _: &StreamName, _: &LocalName, _: Offset) -> Result<()> {
        Err(Error::engine("streams are on their way"))
    }

    async fn delete_consumer(&self, _: &StreamName, _: &LocalName) -> Result<bool> {
        Err(Error::engine("streams are on their way"))
    }
}

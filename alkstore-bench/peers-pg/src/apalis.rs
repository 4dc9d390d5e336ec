//! apalis by its Postgres storage, told of new jobs by notifications; it takes one at a time where
//! that is what is measured, and more than it does by itself where many handlers run at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use alkstore_bench::pg::{database, run_sql};
use apalis::prelude::{BackendExt, BoxDynError, Data, TaskSink, WorkerBuilder, WorkerBuilderExt};
use apalis_postgres::{Config, PostgresStorage};
use sqlx::postgres::PgPoolOptions;

use crate::handlers::{Body, CONNECTIONS, MANY, Peer, Told};

const QUEUE: &str = "q";

const CLEAR: &str = "TRUNCATE apalis.jobs, apalis.workers CASCADE";

#[derive(Clone)]
pub struct Apalis {
    storage: PostgresStorage<Body>,
    body: Body,
}

async fn handle(body: Body, told: Data<Told>) -> Result<(), BoxDynError> {
    told.tell(&body);
    Ok(())
}

impl Peer for Apalis {
    async fn empty() -> anyhow::Result<Self> {
        let (url, made) = database("apalis").await?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&url).await?;
        if made {
            PostgresStorage::setup(&pool).await?;
        }
        run_sql(&url, CLEAR).await?;
        let storage = PostgresStorage::new(&pool).with_config(Config::default().queue(QUEUE));
        Ok(Self { storage, body: Body::new()? })
    }

    async fn enqueue(&self) -> anyhow::Result<u64> {
        self.storage.clone().push(self.body.clone()).await?;
        Ok(1)
    }

    async fn enqueue_many(&self, count: usize) -> anyhow::Result<u64> {
        self.storage.clone().push_bulk(vec![self.body.clone(); count]).await?;
        Ok(count as u64)
    }

    async fn start(&self, at_once: usize, told: Told) -> anyhow::Result<()> {
        static WORKERS: AtomicU32 = AtomicU32::new(0);
        let name = format!("worker-{}", WORKERS.fetch_add(1, Ordering::Relaxed));
        let mut config = Config::default().queue(QUEUE);
        if at_once == 1 {
            config = config.batch_size(1);
        } else if at_once >= MANY {
            config = config.batch_size(100);
        }
        let backend = self
            .storage
            .clone()
            .with_config(config)
            .with_pubsub()
            .poll_with_interval(Duration::from_secs(5));
        let worker =
            WorkerBuilder::new(name).backend(backend).concurrency(at_once).data(told).build(handle);
        tokio::spawn(async move { worker.run().await });
        Ok(())
    }
}

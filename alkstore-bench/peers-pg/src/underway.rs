//! underway: a task of its own in a queue, handled by a worker that listens.

use std::sync::Arc;

use alkstore_bench::pg::{database, run_sql};
use sqlx_0_8::postgres::{PgPool, PgPoolOptions};
use sqlx_0_8::{Postgres, Transaction};
use underway::{Queue, Task, Worker};

use crate::handlers::{Body, CONNECTIONS, Peer, Told};

const CLEAR: &str = "TRUNCATE underway.task, underway.task_attempt CASCADE";

struct Job(Option<Told>);

impl Task for Job {
    type Input = Body;
    type Output = ();

    async fn execute(
        &self,
        _tx: Transaction<'_, Postgres>,
        input: Body,
    ) -> underway::task::Result<()> {
        if let Some(told) = &self.0 {
            told.tell(&input);
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct Underway {
    pool: PgPool,
    queue: Arc<Queue<Job>>,
    input: Body,
}

impl Peer for Underway {
    async fn empty() -> anyhow::Result<Self> {
        let (url, made) = database("underway").await?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&url).await?;
        if made {
            underway::run_migrations(&pool).await?;
        }
        run_sql(&url, CLEAR).await?;
        let queue = Queue::builder().name("q").pool(pool.clone()).build().await?;
        Ok(Self { pool, queue: Arc::new(queue), input: Body::new()? })
    }

    async fn enqueue(&self) -> anyhow::Result<u64> {
        self.queue.enqueue(&self.pool, &Job(None), &self.input).await?;
        Ok(1)
    }

    async fn enqueue_many(&self, count: usize) -> anyhow::Result<u64> {
        let inputs = vec![self.input.clone(); count];
        Ok(self.queue.enqueue_multi(&self.pool, &Job(None), &inputs).await? as u64)
    }

    async fn start(&self, at_once: usize, told: Told) -> anyhow::Result<()> {
        let mut worker = Worker::new(self.queue.clone(), Job(Some(told)));
        worker.set_concurrency_limit(at_once);
        tokio::spawn(async move { worker.run().await });
        Ok(())
    }
}

//! graphile_worker: its worker as it comes where single jobs are waited for, of which a slot takes
//! one a notification or a second; else with its local queue, which drains a backlog, and where many
//! handlers run with its batches of completions, as its documentation has it for small jobs.

use std::time::Duration;

use alkstore_bench::pg::{database, run_sql};
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::handlers::{Body, CONNECTIONS, FEW, MANY, Peer, Told};

const CLEAR: &str =
    "TRUNCATE graphile_worker._private_jobs, graphile_worker._private_job_queues CASCADE";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job(Body);

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "job";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(told) = context.get_ext::<Told>() {
            told.tell(&self.0);
        }
        Ok::<(), String>(())
    }
}

#[derive(Clone)]
pub struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
    job: Job,
}

fn options(pool: &PgPool) -> WorkerOptions {
    WorkerOptions::default()
        .pg_pool(pool.clone())
        .define_job::<Job>()
        .listen_os_shutdown_signals(false)
}

impl Peer for Graphile {
    async fn empty() -> anyhow::Result<Self> {
        let (url, _) = database("graphile").await?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&url).await?;
        let utils = options(&pool).init().await?.create_utils();
        run_sql(&url, CLEAR).await?;
        Ok(Self { pool, utils, job: Job(Body::new()?) })
    }

    async fn enqueue(&self) -> anyhow::Result<u64> {
        self.utils.add_job(self.job.clone(), JobSpec::default()).await?;
        Ok(1)
    }

    async fn enqueue_many(&self, count: usize) -> anyhow::Result<u64> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = (0..count).map(|_| (self.job.clone(), &spec)).collect();
        Ok(self.utils.add_jobs(&jobs).await?.len() as u64)
    }

    async fn start(&self, at_once: usize, told: Told) -> anyhow::Result<()> {
        let mut options = options(&self.pool).concurrency(at_once).add_extension(told);
        if at_once > FEW {
            options = options.local_queue(LocalQueueConfig::default().with_size(500));
        }
        if at_once >= MANY {
            options = options.complete_job_batch_delay(Duration::from_millis(2));
        }
        let worker = options.init().await?;
        tokio::spawn(async move { worker.run().await });
        Ok(())
    }
}

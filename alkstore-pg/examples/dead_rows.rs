//! What dead rows cost: claims while an old snapshot keeps the server from sweeping up, and what
//! the settings of the `jobs` table do about it. On a private server of its own.
//!
//! ```text
//! cargo run --release -p alkstore-pg --example dead_rows -- snapshot
//! cargo run --release -p alkstore-pg --example dead_rows -- settings
//! ```
//!
//! Commits don't wait for the disk, so that what is timed is the claim; add `fsync` and they do.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures, and shows what it has measured"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use alkstore_core::{NewJob, Queue, QueueOpts, StoreExt};
use alkstore_pg::PgStore;
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{self, AssertSqlSafe, Connection, Executor, Row};
use alkstore_suite::pg::{Cluster, ClusterOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How many jobs are claimed and acked behind the snapshot, on each queue, and how often it is
/// looked at how long a claim takes.
const JOBS: u64 = 50_000;
const STEP: u64 = 5_000;

/// How many claims are timed, one after the other.
const TIMED: usize = 101;

/// How long the server has to sweep up by itself.
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let options = ClusterOptions::new().fsync(has("fsync")).setting("shared_buffers", "256MB");
    if has("settings") {
        // A minute is a second: how often the server looks what there is to sweep up.
        return settings(&Cluster::start(options.setting("autovacuum_naptime", "1s"))).await;
    }
    snapshot(&Cluster::start(options)).await
}

/// The first column of the first row.
async fn number(sql: &mut PgConnection, text: String) -> Outcome<i64> {
    Ok(sql.fetch_one(AssertSqlSafe(text)).await?.try_get(0)?)
}

async fn fill(queue: &Queue, jobs: u64) -> Outcome<()> {
    for _ in 0..jobs / 1_000 {
        let jobs = (0..1_000).map(|n| NewJob::new(&format!("{n:0100}")));
        queue.enqueue_many(jobs.collect::<Result<_, _>>()?).await?;
    }
    Ok(())
}

/// Claims and acks so many, in batches.
async fn work_off(queue: &Queue, mut jobs: u64, batch: usize) -> Outcome<()> {
    while jobs > 0 {
        let most = batch.min(usize::try_from(jobs)?);
        let mut claimed = queue.claim_batch("w", most).await?;
        if claimed.is_empty() {
            return Err("there are no jobs left".into());
        }
        for acked in queue.ack_batch(&mut claimed).await? {
            acked?;
        }
        jobs -= claimed.len() as u64;
    }
    Ok(())
}

/// What claims one after the other take, in milliseconds.
#[derive(Clone, Copy, Default)]
struct Took {
    best: f64,
    p50: f64,
    /// A claim's and its ack's time on a processor of the server's, whatever else runs there.
    cpu: f64,
}

async fn timed(queue: &Queue, sql: &mut PgConnection) -> Outcome<Took> {
    let mut took = Vec::with_capacity(TIMED);
    let before = processor_ms(sql).await?;
    for _ in 0..TIMED {
        let began = Instant::now();
        let job = queue.claim("w").await?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
        job.ok_or("there are no jobs left")?.ack().await?;
    }
    let cpu = (processor_ms(sql).await? - before) / TIMED as f64;
    took.sort_by(f64::total_cmp);
    Ok(Took { best: took[0], p50: took[TIMED / 2], cpu })
}

/// How long the store's connections have run on the server, as Linux counts it.
async fn processor_ms(sql: &mut PgConnection) -> Outcome<f64> {
    let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'alkstore'";
    let mut total = 0.0;
    for row in sql.fetch_all(pids).await? {
        let schedstat = format!("/proc/{}/schedstat", row.try_get::<i32, _>(0)?);
        let text = std::fs::read_to_string(schedstat)?;
        let ns: f64 = text.split(' ').next().unwrap_or_default().parse()?;
        total += ns / 1e6;
    }
    Ok(total)
}

/// How many buffers a claim reads, with what it knows a second after the first that was slow.
async fn buffers(sql: &mut PgConnection, queue: &str) -> Outcome<i64> {
    let mut floors = None::<Vec<i64>>;
    for _ in 0..2 {
        let learned = sqlx::query("SELECT alkstore.floors($1, $2)").bind(queue).bind(floors);
        floors = learned.fetch_one(&mut *sql).await?.try_get(0)?;
    }
    let floors = floors.map_or("NULL".to_owned(), |floors| format!("ARRAY{floors:?}::bigint[]"));
    let explained = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
        SELECT * FROM alkstore.claim_jobs('{queue}', 'w', 1, {floors})"
    );
    let mut tx = sql.begin().await?;
    // The first one plans.
    tx.fetch_one(AssertSqlSafe(explained.clone())).await?;
    let plan: String = tx.fetch_one(AssertSqlSafe(explained)).await?.try_get_unchecked(0)?;
    tx.rollback().await?;
    let plan: serde_json::Value = serde_json::from_str(&plan)?;
    let plan = &plan[0]["Plan"];
    let of = |kind: &str| plan[kind].as_i64().unwrap_or_default();
    Ok(of("Shared Hit Blocks") + of("Shared Read Blocks"))
}

struct Curve {
    /// Whose claims' deadlines lie ahead when they are acked and a while after, as is usual.
    far: Queue,
    /// Whose claims' deadlines have passed by the next look.
    near: Queue,
    sql: PgConnection,
}

impl Curve {
    async fn look(&mut self, when: &str) -> Outcome<[Took; 2]> {
        let mut line = format!("{when:>28}");
        let mut looks = [Took::default(); 2];
        for (queue, look) in [&self.far, &self.near].into_iter().zip(&mut looks) {
            *look = timed(queue, &mut self.sql).await?;
            let buffers = buffers(&mut self.sql, queue.name()).await?;
            line += &format!("  {:8.2} {:8.2} {:8.2} {buffers:8}", look.best, look.p50, look.cpu);
        }
        println!("{line}");
        Ok(looks)
    }

    /// How often the server has swept up by itself, and how many dead rows it still sees.
    async fn sweeps(&mut self) -> Outcome<(i64, i64)> {
        let counted = "SELECT autovacuum_count, n_dead_tup FROM pg_stat_user_tables
            WHERE schemaname = 'alkstore' AND relname = 'jobs'";
        let row = self.sql.fetch_one(counted).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }
}

async fn snapshot(cluster: &Cluster) -> Outcome<()> {
    let store = PgStore::builder(&cluster.url()).max_connections(2).connect().await?;
    let queue = |name: &str, seconds| {
        let visibility = Duration::from_secs(seconds);
        store.queue_with(name, QueueOpts::new().visibility_timeout(visibility))
    };
    let (far, near) = (queue("far", 300)?, queue("near", 1)?);
    let looks = JOBS / STEP + 6;
    for queue in [&far, &near] {
        fill(queue, JOBS + 1_000 * looks).await?;
    }
    let sql = PgConnection::connect(&cluster.url()).await?;
    let mut curve = Curve { far, near, sql };
    curve.sql.execute("VACUUM ANALYZE alkstore.jobs").await?;
    println!("a claim of one job: ms at best, p50 and on the processor, and the buffers it reads;");
    println!(
        "on the left the deadlines of those before it lie ahead, on the right they have passed"
    );
    let first = curve.look("before").await?;

    let mut holder = PgConnection::connect(&cluster.url()).await?;
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    number(&mut holder, "SELECT count(*) FROM alkstore.jobs".to_owned()).await?;
    let mut last = first;
    for step in 1..=JOBS / STEP {
        for queue in [&curve.far, &curve.near] {
            work_off(queue, STEP, 100).await?;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        last = curve.look(&format!("behind {} claims and acks", step * STEP)).await?;
    }
    holder.execute("COMMIT").await?;
    curve.look("just closed").await?;
    let (before, dead) = curve.sweeps().await?;
    println!("{dead} dead rows; from here on the server may sweep up by itself");
    tokio::time::sleep(MINUTE).await;
    let (swept, dead) = curve.sweeps().await?;
    println!("{dead} dead rows after {} sweeps by itself", swept - before);
    curve.look("a minute on").await?;
    curve.sql.execute("VACUUM alkstore.jobs").await?;
    let after = curve.look("after VACUUM").await?;
    for (kind, n) in [("deadlines ahead", 0), ("deadlines passed", 1)] {
        let (first, last, after) = (first[n], last[n], after[n]);
        println!(
            "{kind}: p50 {:.2} ms before, {:.2} ms behind {JOBS} (target 10), {:.2} ms a minute after: {:.2}× (target 2)",
            first.p50,
            last.p50,
            after.p50,
            after.p50 / first.p50
        );
    }
    Ok(store.close().await?)
}

/// What is set on the table of each candidate.
const CANDIDATES: [(&str, &str); 6] = [
    ("fillfactor 100", "SET (fillfactor = 100)"),
    ("fillfactor 85", "SET (fillfactor = 85)"),
    ("fillfactor 70, as it is", "SET (fillfactor = 70)"),
    ("fillfactor 50", "SET (fillfactor = 50)"),
    (
        "70, defaults of autovacuum",
        "RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
            autovacuum_vacuum_cost_delay)",
    ),
    ("70, no autovacuum", "SET (autovacuum_enabled = off)"),
];

const ROUNDS: usize = 5;

struct Candidate {
    name: &'static str,
    store: PgStore,
    rates: Vec<f64>,
    wal: i64,
}

impl Candidate {
    /// Fills and empties a queue.
    async fn round(&mut self, sql: &mut PgConnection, jobs: u64) -> Outcome<()> {
        let queue = self.store.queue("q")?;
        let written = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
        let before = number(sql, written.to_owned()).await?;
        let began = Instant::now();
        fill(&queue, jobs).await?;
        work_off(&queue, jobs, 32).await?;
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        self.rates.push(jobs as f64 / began.elapsed().as_secs_f64());
        self.wal += number(sql, written.to_owned()).await? - before;
        Ok(())
    }
}

async fn settings(cluster: &Cluster) -> Outcome<()> {
    const JOBS: u64 = 5_000;
    let mut sql = PgConnection::connect(&cluster.url()).await?;
    let mut candidates = Vec::new();
    for (name, change) in CANDIDATES {
        let store = PgStore::builder(&cluster.url()).schema(name).max_connections(1);
        let store = store.connect().await?;
        let change = format!(r#"ALTER TABLE "{name}".jobs {change}"#);
        sql.execute(AssertSqlSafe(change)).await?;
        candidates.push(Candidate { name, store, rates: Vec::new(), wal: 0 });
    }
    for _ in 0..ROUNDS {
        for candidate in &mut candidates {
            candidate.round(&mut sql, JOBS).await?;
        }
    }
    println!("{ROUNDS} rounds of {JOBS} jobs enqueued by 1,000, claimed and acked by 32");
    println!("{:>32}  jobs/s  WAL, bytes/job  table, KiB  indexes, KiB", "");
    for mut candidate in candidates {
        let of = |size: &str| format!(r#"SELECT {size}('"{}".jobs') / 1024"#, candidate.name);
        let table = number(&mut sql, of("pg_table_size")).await?;
        let indexes = number(&mut sql, of("pg_indexes_size")).await?;
        candidate.rates.sort_by(f64::total_cmp);
        let rate = candidate.rates[ROUNDS / 2];
        let wal = candidate.wal / i64::try_from(ROUNDS as u64 * JOBS)?;
        println!("{:>32}  {rate:6.0}  {wal:14}  {table:10}  {indexes:12}", candidate.name);
        candidate.store.close().await?;
    }
    Ok(())
}

//! The load with kills: producers and workers on one file, one of which is killed with `kill -9`
//! every so often and started again. What was answered for is there, and nothing is settled twice.
//!
//! `ALKSTORE_LOAD_JOBS` says how many jobs there are. With 20,000 the settings are the default ones
//! and the file is on a disk; fewer are a quick look.
#![cfg(unix)]
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test, and processes die in real time"
)]

#[path = "support/directory.rs"]
mod directory;
#[path = "support/other.rs"]
mod other;
#[path = "support/process.rs"]
mod process;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alkstore_core::{Job, JobFilter, Offset, PublishOpts, Queue, QueueOpts, StoreExt};
use alkstore_sqlite::rusqlite::{Connection, params};
use alkstore_sqlite::{Durability, SqliteStore, SqliteTx};
use other::Other;

const TEST: &str = "processes_that_are_killed_lose_and_repeat_nothing";

/// Which of the others a process is.
const ROLE: &str = "ALKSTORE_TEST_ROLE";

const PRODUCERS: usize = 4;
const WORKERS: usize = 4;

const EVERY: Duration = Duration::from_millis(200);

/// How long nothing may get on before the test gives up.
const STANDSTILL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Plan {
    jobs: usize,
    visibility: Duration,
    durability: Durability,
}

impl Plan {
    fn of_environment() -> Self {
        let jobs = std::env::var("ALKSTORE_LOAD_JOBS").map_or(400, |jobs| jobs.parse().unwrap());
        let (visibility, durability) = if jobs < 20_000 {
            (Duration::from_millis(500), Durability::Normal)
        } else {
            (Duration::from_secs(2), Durability::default())
        };
        Self { jobs, visibility, durability }
    }

    fn share(&self) -> usize {
        self.jobs.div_ceil(PRODUCERS)
    }

    async fn open(&self, path: &Path) -> (SqliteStore, Queue) {
        let builder = SqliteStore::builder(path).durability(self.durability).safety_poll(None);
        let store = builder.lock_timeout(STANDSTILL).open().await.unwrap();
        let opts = QueueOpts::new().visibility_timeout(self.visibility).max_attempts(100_000);
        let queue = store.queue_with("load", opts).unwrap();
        (store, queue)
    }
}

/// Where a process writes down, by name, what it has seen.
fn log(path: &Path, name: &str) -> PathBuf {
    path.with_file_name(format!("{name}.log"))
}

/// A line of a log that outlives the process once this returned.
fn note(path: &Path, name: &str, line: i64) {
    let mut file = OpenOptions::new().append(true).create(true).open(log(path, name)).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn notes(path: &Path, name: &str) -> Vec<i64> {
    let text = std::fs::read_to_string(log(path, name)).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Adds its share of the jobs, and writes down each that was answered for.
async fn produce(plan: Plan, path: &Path, name: &str) {
    let (store, queue) = plan.open(path).await;
    for n in notes(path, name).len()..plan.share() {
        let id = queue.enqueue(&n).await.unwrap();
        note(path, name, id.get());
    }
    store.close().await.unwrap();
}

/// Works for ever: the witness's row, the event and the ack are one.
async fn work(plan: Plan, path: &Path, name: &str) {
    let (store, queue) = plan.open(path).await;
    loop {
        let mut job = queue.next(name).await.unwrap();
        if let Some(problem) = settle(&store, &mut job).await {
            note(path, "problems", job.id().get());
            panic!("job {}: {problem}", job.id());
        }
    }
}

async fn settle(store: &SqliteStore, job: &mut Job) -> Option<String> {
    let mut tx = store.begin_tx().await.unwrap();
    // The claim may have lapsed meanwhile.
    job.ack_tx(&mut tx).await.ok()?;
    let (id, worker) = (job.id().get(), std::process::id());
    let sql = tx.engine::<SqliteTx>().unwrap();
    let witness = sql.run(move |conn| {
        conn.execute("INSERT INTO witness (job, worker) VALUES (?1, ?2)", params![id, worker])
    });
    if let Err(error) = witness.await.unwrap() {
        return Some(error.to_string());
    }
    let log = store.stream("log").unwrap();
    log.publish_tx(&mut tx, &id, PublishOpts::new()).await.unwrap();
    tx.commit().await.err().map(|error| error.to_string())
}

struct Load {
    path: PathBuf,
    names: Vec<String>,
    others: Vec<Option<Other>>,
    kills: usize,
    largest_log: u64,
}

impl Load {
    fn start(path: &Path) -> Self {
        let producers = (0..PRODUCERS).map(|n| format!("producer-{n}"));
        let names: Vec<_> = producers.chain((0..WORKERS).map(|n| format!("worker-{n}"))).collect();
        let path = path.to_owned();
        let mut load = Self { path, names, others: Vec::new(), kills: 0, largest_log: 0 };
        load.others = load.names.iter().map(|name| Some(load.other(name))).collect();
        load
    }

    fn other(&self, name: &str) -> Other {
        let mut command = process::command(TEST, &self.path);
        command.env(ROLE, name);
        Other::start(command)
    }

    /// Kills one of those that run, and starts it again.
    fn kill_one(&mut self, random: &mut fastrand::Rng) {
        let running: Vec<_> =
            (0..self.others.len()).filter(|&n| self.others[n].is_some()).collect();
        let n = running[random.usize(..running.len())];
        if let Some(mut other) = self.others[n].take() {
            other.kill();
        }
        self.others[n] = Some(self.other(&self.names[n]));
        self.kills += 1;
    }

    /// Lets go of producers that are done; nobody else may have ended by itself.
    fn look(&mut self) {
        for (other, name) in self.others.iter_mut().zip(&self.names) {
            let Some(running) = other else { continue };
            let Some(status) = running.0.try_wait().unwrap() else { continue };
            let done = status.success() && name.starts_with("producer");
            assert!(done, "{name} ended by itself: {status}, signal {:?}", status.signal());
            *other = None;
        }
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        let log = std::fs::metadata(wal).map_or(0, |metadata| metadata.len());
        self.largest_log = self.largest_log.max(log);
    }

    fn all_is_produced(&self) -> bool {
        self.others[..PRODUCERS].iter().all(Option::is_none)
    }
}

/// Waits until everything is settled, while one of the others is killed every so often.
async fn kill_until_settled(load: &mut Load, store: &SqliteStore, queue: &Queue) {
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let (mut last, mut moved) = (0, Instant::now());
    loop {
        tokio::time::sleep(EVERY).await;
        load.look();
        load.kill_one(&mut random);
        let settled = store.stream("log").unwrap().info().await.unwrap().last.get();
        if settled != last {
            (last, moved) = (settled, Instant::now());
        }
        assert!(moved.elapsed() < STANDSTILL, "nothing gets on after {settled} jobs");
        let stats = queue.stats().await.unwrap();
        let enough = load.kills >= 5 && load.all_is_produced();
        if enough && stats.ready + stats.delayed + stats.claimed == 0 {
            return;
        }
    }
}

fn numbers(conn: &Connection, sql: &str) -> Vec<i64> {
    let mut statement = conn.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn processes_that_are_killed_lose_and_repeat_nothing() {
    let plan = Plan::of_environment();
    if let Some(path) = process::file() {
        let name = std::env::var(ROLE).unwrap();
        return match name.starts_with("producer") {
            true => produce(plan, &path, &name).await,
            false => work(plan, &path, &name).await,
        };
    }
    // The settings that are shown are those of a disk.
    let directory = match plan.durability {
        Durability::Normal => directory::directory(),
        _ => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
    };
    let path = directory.path().join("app.db");
    let (store, queue) = plan.open(&path).await;
    let witness = "CREATE TABLE witness (job INTEGER PRIMARY KEY, worker INTEGER NOT NULL)";
    Connection::open(&path).unwrap().execute_batch(witness).unwrap();

    let began = Instant::now();
    let mut load = Load::start(&path);
    kill_until_settled(&mut load, &store, &queue).await;
    let took = began.elapsed();
    load.others.clear();

    assert_eq!(notes(&path, "problems"), [] as [i64; 0], "jobs that were settled twice");
    let live = queue.jobs(JobFilter::new().limit(usize::MAX)).await.unwrap();
    let kept: BTreeSet<_> = live.iter().map(|job| job.id.get()).collect();
    let info = store.stream("log").unwrap().info().await.unwrap();
    let events = store.stream("log").unwrap().read(Offset::START, usize::MAX).await.unwrap();
    store.close().await.unwrap();

    let conn = Connection::open(&path).unwrap();
    let settled: BTreeSet<_> = numbers(&conn, "SELECT job FROM witness").into_iter().collect();
    let mut answered = 0;
    for name in &load.names[..PRODUCERS] {
        let ids = notes(&path, name);
        assert!(ids.len() >= plan.share(), "{name} has added {} jobs only", ids.len());
        let lost: Vec<_> =
            ids.iter().filter(|id| !settled.contains(id) && !kept.contains(id)).collect();
        assert!(lost.is_empty(), "{name} was answered for jobs that are lost: {lost:?}");
        answered += ids.len();
    }
    let offsets: Vec<_> = events.iter().map(|event| event.offset.get()).collect();
    assert_eq!(offsets, (1..=info.last.get()).collect::<Vec<_>>(), "contiguous offsets");
    let told: BTreeSet<i64> = events.iter().map(|event| event.payload.decode().unwrap()).collect();
    assert_eq!(told.len(), events.len(), "an event twice");
    assert_eq!(told, settled, "the events and the witness differ");
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    println!(
        "load: {answered} jobs answered for, {} settled, {} left, none lost, none twice; {} kills \
        in {:.1} s, {:.0} jobs/s; the log had {:.1} MiB at most",
        settled.len(),
        kept.len(),
        load.kills,
        took.as_secs_f64(),
        settled.len() as f64 / took.as_secs_f64(),
        load.largest_log as f64 / f64::from(1 << 20),
    );
}

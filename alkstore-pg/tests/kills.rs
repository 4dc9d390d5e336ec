//! The load with kills: producers, workers and schedulers, one of which is killed with `kill -9`
//! every so often and started again, on a server that crashes twice. What was answered for is
//! there, nothing is settled twice, and every boundary of a schedule fired once.
//!
//! `ALKSTORE_LOAD_JOBS` says how many jobs there are. With 100,000 commits wait for the disk and
//! the settings are the default ones; fewer are a quick look.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test, and processes die in real time"
)]

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use alkstore_core::{
    Error, Headers, Job, JobFilter, Offset, PublishOpts, Queue, QueueOpts, ScheduleOpts, StopToken,
    StoreExt,
};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{self, Connection, Executor, Row};
use alkstore_pg::{PgStore, PgTx};
use alkstore_suite::pg::{Cluster, ClusterOptions, Shutdown};
use tokio::time::MissedTickBehavior;

const TEST: &str = "processes_that_are_killed_lose_and_repeat_nothing";

/// What tells a process that it is one of the others: where the server is, where to write down
/// what it has seen, and which of them it is.
const URL: &str = "ALKSTORE_TEST_URL";
const DIRECTORY: &str = "ALKSTORE_TEST_DIRECTORY";
const ROLE: &str = "ALKSTORE_TEST_ROLE";

const PRODUCERS: usize = 4;
const WORKERS: usize = 8;
const SCHEDULERS: usize = 2;

const EVERY: Duration = Duration::from_millis(500);

/// Each so many kills it is a scheduler's turn: a leader's lease outlives it, so that whoever
/// leads next has boundaries to make up for.
const SCHEDULER_EVERY: usize = 8;

/// How long nothing may get on before the test gives up.
const STANDSTILL: Duration = Duration::from_secs(60);

/// What comes of a fault is tried again after so long.
const PAUSE: Duration = Duration::from_millis(50);

const PERIOD_MS: i64 = 5_000;

#[derive(Clone, Copy)]
struct Plan {
    jobs: usize,
    visibility: Duration,
}

impl Plan {
    fn of_environment() -> Self {
        let jobs = std::env::var("ALKSTORE_LOAD_JOBS").map_or(600, |jobs| jobs.parse().unwrap());
        Self { jobs, visibility: Duration::from_secs(2) }
    }

    fn is_real(&self) -> bool {
        self.jobs >= 100_000
    }

    fn share(&self) -> usize {
        self.jobs.div_ceil(PRODUCERS)
    }

    fn queue(&self, store: &PgStore, name: &str) -> Queue {
        let opts = QueueOpts::new().visibility_timeout(self.visibility).max_attempts(100_000);
        store.queue_with(name, opts).unwrap()
    }
}

/// One of the other processes.
struct Me {
    plan: Plan,
    name: String,
    directory: PathBuf,
    store: PgStore,
}

/// A line of a log that outlives the process once this returned.
fn note(directory: &Path, name: &str, line: i64) {
    let log = directory.join(name).with_extension("log");
    let mut file = OpenOptions::new().append(true).create(true).open(log).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn notes(directory: &Path, name: &str) -> Vec<i64> {
    let log = directory.join(name).with_extension("log");
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// What a server that crashes excuses.
fn excused(error: &Error) -> bool {
    matches!(
        error,
        Error::Unavailable { .. } | Error::CommitUnknown { .. } | Error::ClaimLost { .. }
    )
}

/// Opens a store once the server lets it in.
async fn open(url: &str) -> PgStore {
    let began = Instant::now();
    loop {
        match PgStore::builder(url).max_connections(2).safety_poll(None).connect().await {
            Ok(store) => return store,
            Err(error) => assert!(excused(&error) && began.elapsed() < STANDSTILL, "{error:?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Me {
    /// Adds its share of the jobs, and writes down each that was answered for.
    async fn produce(&self) {
        let queue = self.plan.queue(&self.store, "load");
        for n in notes(&self.directory, &self.name).len()..self.plan.share() {
            let id = loop {
                match queue.enqueue(&n).await {
                    Ok(id) => break id,
                    Err(error) => assert!(excused(&error), "{error:?}"),
                }
                tokio::time::sleep(PAUSE).await;
            };
            note(&self.directory, &self.name, id.get());
        }
        self.store.close().await.unwrap();
    }

    /// Works for ever: the witness's row, the event and the ack are one.
    async fn work(&self) {
        let queues = [self.plan.queue(&self.store, "load"), self.plan.queue(&self.store, "ticks")];
        let (one, two) = (self.work_on(&queues[0]), self.work_on(&queues[1]));
        tokio::join!(one, two);
    }

    async fn work_on(&self, queue: &Queue) {
        loop {
            let done = match queue.next(&self.name).await {
                Ok(mut job) => self.settle(&mut job).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                assert!(excused(&error), "{error:?}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn settle(&self, job: &mut Job) -> Result<(), Error> {
        let mut tx = self.store.begin_tx().await?;
        job.ack_tx(&mut tx).await?;
        let (table, id) = match job.headers().get(Headers::BOUNDARY) {
            Some(boundary) => ("INSERT INTO ticks VALUES ($1)", boundary.parse().unwrap()),
            None => ("INSERT INTO witness VALUES ($1)", job.id().get()),
        };
        let own = tx.engine::<PgTx>().unwrap();
        match sqlx::query(table).bind(id).execute(own.connection()).await {
            Ok(_) => {}
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                note(&self.directory, "problems", id);
                panic!("{table}: {id}: {error}");
            }
            // The server is gone, and the transaction with it.
            Err(_) => return Ok(()),
        }
        let log = self.store.stream("log")?;
        log.publish_tx(&mut tx, &id, PublishOpts::new()).await?;
        tx.commit().await
    }

    async fn schedule(&self) {
        loop {
            let spec = ("@every 5s", "ticks");
            let opts = ScheduleOpts::new().visibility_timeout(self.plan.visibility);
            let opts = opts.max_attempts(100_000);
            let registered = self.store.schedule("tick", spec.0, spec.1, &"tick", opts).await;
            let ran = match registered {
                Ok(_) => self.store.run_schedules_standby(StopToken::new()).await,
                Err(error) => Err(error),
            };
            let error = ran.expect_err("nobody stops it");
            assert!(excused(&error), "{error:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// What this process does where it is one of the others.
async fn be_one_of_the_others(url: &str) {
    // The other end of its input is the test's: with the test it ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let (plan, name) = (Plan::of_environment(), std::env::var(ROLE).unwrap());
    let directory = std::env::var_os(DIRECTORY).unwrap().into();
    let me = Me { plan, name, directory, store: open(url).await };
    match me.name.split('-').next() {
        Some("producer") => me.produce().await,
        Some("worker") => me.work().await,
        _ => me.schedule().await,
    }
}

struct Load<'c> {
    cluster: &'c Cluster,
    names: Vec<String>,
    others: Vec<Option<Child>>,
    kills: usize,
    scheduler_kills: usize,
    restarts: usize,
}

impl<'c> Load<'c> {
    fn start(cluster: &'c Cluster) -> Self {
        let names = [("producer", PRODUCERS), ("worker", WORKERS), ("scheduler", SCHEDULERS)];
        let names = names
            .into_iter()
            .flat_map(|(role, many)| (0..many).map(move |number| format!("{role}-{number}")));
        let names = names.collect();
        let (kills, scheduler_kills, restarts) = (0, 0, 0);
        let others = Vec::new();
        let mut load = Self { cluster, names, others, kills, scheduler_kills, restarts };
        load.others = load.names.iter().map(|name| Some(load.other(name))).collect();
        load
    }

    fn other(&self, name: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(URL, self.cluster.url())
            .env(DIRECTORY, self.cluster.directory())
            .env(ROLE, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Kills one of those that run, and starts it again: the schedulers in turn, and in between
    /// whoever comes.
    fn kill_one(&mut self, random: &mut fastrand::Rng) {
        let n = if self.kills % SCHEDULER_EVERY == SCHEDULER_EVERY - 1 {
            self.scheduler_kills += 1;
            PRODUCERS + WORKERS + self.scheduler_kills % SCHEDULERS
        } else {
            let others = &self.others[..PRODUCERS + WORKERS];
            let running: Vec<_> = (0..others.len()).filter(|&n| others[n].is_some()).collect();
            running[random.usize(..running.len())]
        };
        if let Some(mut other) = self.others[n].take() {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        self.others[n] = Some(self.other(&self.names[n]));
        self.kills += 1;
    }

    /// Lets go of producers that are done; nobody else may have ended by itself.
    fn look(&mut self) {
        for (other, name) in self.others.iter_mut().zip(&self.names) {
            let Some(running) = other else { continue };
            let Some(status) = running.try_wait().unwrap() else { continue };
            let done = status.success() && name.starts_with("producer");
            assert!(done, "{name} ended by itself: {status}, signal {:?}", status.signal());
            *other = None;
        }
    }

    fn all_is_produced(&self) -> bool {
        self.others[..PRODUCERS].iter().all(Option::is_none)
    }

    /// The server crashes once a third and once two thirds of the jobs are settled.
    fn restart_at(&mut self, plan: Plan, settled: i64) {
        let thirds = usize::try_from(settled).unwrap() * 3 / plan.jobs.max(1);
        if self.restarts < 2 && thirds > self.restarts {
            self.cluster.restart(Shutdown::Immediate);
            self.restarts += 1;
        }
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        for mut other in self.others.drain(..).flatten() {
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

async fn numbers(url: &str, query: &'static str) -> Vec<i64> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let rows = connection.fetch_all(query).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Waits until everything is settled, while one of the others is killed every so often.
async fn kill_until_settled(load: &mut Load<'_>, plan: Plan, store: &PgStore) {
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let (queue, log) = (store.queue("load").unwrap(), store.stream("log").unwrap());
    let (mut last, mut moved) = (0, Instant::now());
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        every.tick().await;
        load.look();
        load.kill_one(&mut random);
        assert!(moved.elapsed() < STANDSTILL, "nothing gets on after {last} jobs");
        let (Ok(info), Ok(stats)) = (log.info().await, queue.stats().await) else { continue };
        let settled = info.last.get();
        if settled != last {
            (last, moved) = (settled, Instant::now());
        }
        load.restart_at(plan, settled);
        let enough = load.kills >= SCHEDULER_EVERY && load.restarts == 2 && load.all_is_produced();
        if enough && stats.ready + stats.delayed + stats.claimed == 0 {
            return;
        }
    }
}

/// Waits until a boundary has fired that came after the last fault: a leader that was killed is
/// followed once its lease has lapsed.
async fn a_tick_after_the_kills(url: &str) {
    let now = numbers(url, "SELECT (extract(epoch FROM now()) * 1000)::bigint").await[0];
    let began = Instant::now();
    while numbers(url, "SELECT boundary FROM ticks").await.into_iter().max() <= Some(now) {
        assert!(began.elapsed() < 2 * STANDSTILL, "nothing fires after the kills");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the server is done with what the killed had sent.
async fn alone(url: &str) {
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let began = Instant::now();
    while numbers(url, others).await != [0] {
        assert!(began.elapsed() < STANDSTILL, "connections stay open");
        tokio::time::sleep(PAUSE).await;
    }
}

/// The boundaries that fired: each once, and none left out.
async fn assert_ticks(url: &str, store: &PgStore) -> usize {
    let queue = store.queue("ticks").unwrap();
    let waiting = queue.jobs(JobFilter::new().limit(usize::MAX)).await.unwrap();
    let waiting = waiting.iter().map(|job| job.headers.get(Headers::BOUNDARY).unwrap().parse());
    let mut fired = numbers(url, "SELECT boundary FROM ticks").await;
    fired.extend(waiting.map(Result::<i64, _>::unwrap));
    fired.sort_unstable();
    for pair in fired.windows(2) {
        assert_eq!(pair[1] - pair[0], PERIOD_MS, "boundaries {pair:?}");
    }
    fired.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_lose_and_repeat_nothing() {
    if let Ok(url) = std::env::var(URL) {
        return be_one_of_the_others(&url).await;
    }
    let plan = Plan::of_environment();
    let cluster = Cluster::start(ClusterOptions::new().fsync(plan.is_real()));
    let (url, directory) = (cluster.url(), cluster.directory());
    let store = PgStore::builder(&url).max_connections(2).connect().await.unwrap();
    let tables = "CREATE TABLE witness (job bigint PRIMARY KEY);
        CREATE TABLE ticks (boundary bigint PRIMARY KEY)";
    PgConnection::connect(&url).await.unwrap().execute(tables).await.unwrap();

    let began = Instant::now();
    let mut load = Load::start(&cluster);
    kill_until_settled(&mut load, plan, &store).await;
    let took = began.elapsed();
    a_tick_after_the_kills(&url).await;
    let (kills, scheduler_kills) = (load.kills, load.scheduler_kills);
    let names = std::mem::take(&mut load.names);
    drop(load);
    store.close().await.unwrap();
    alone(&url).await;
    let store = open(&url).await;
    let ticks = assert_ticks(&url, &store).await;

    assert_eq!(notes(directory, "problems"), [] as [i64; 0], "jobs that were settled twice");
    let live = store.queue("load").unwrap().jobs(JobFilter::new().limit(usize::MAX)).await.unwrap();
    let kept: BTreeSet<_> = live.iter().map(|job| job.id.get()).collect();
    let settled: BTreeSet<_> = numbers(&url, "SELECT job FROM witness").await.into_iter().collect();
    let mut answered = 0;
    for name in &names[..PRODUCERS] {
        let ids = notes(directory, name);
        assert!(ids.len() >= plan.share(), "{name} has added {} jobs only", ids.len());
        let lost: Vec<_> =
            ids.iter().filter(|id| !settled.contains(id) && !kept.contains(id)).collect();
        assert!(lost.is_empty(), "{name} was answered for jobs that are lost: {lost:?}");
        answered += ids.len();
    }
    let info = store.stream("log").unwrap().info().await.unwrap();
    let events = store.stream("log").unwrap().read(Offset::START, usize::MAX).await.unwrap();
    let offsets: Vec<_> = events.iter().map(|event| event.offset.get()).collect();
    assert_eq!(offsets, (1..=info.last.get()).collect::<Vec<_>>(), "contiguous offsets");
    let told: BTreeSet<i64> = events.iter().map(|event| event.payload.decode().unwrap()).collect();
    let mut expected = settled.clone();
    expected.extend(numbers(&url, "SELECT boundary FROM ticks").await);
    assert_eq!(told.len(), events.len(), "an event twice");
    assert_eq!(told, expected, "the events and the witness differ");
    store.close().await.unwrap();
    println!(
        "load: {answered} jobs answered for, {} settled, {} left, none lost, none twice; \
        {ticks} boundaries fired once each; {kills} kills, {scheduler_kills} of them of schedulers, \
        and 2 crashes in {:.1} s, {:.0} jobs/s",
        settled.len(),
        kept.len(),
        took.as_secs_f64(),
        settled.len() as f64 / took.as_secs_f64(),
    );
}

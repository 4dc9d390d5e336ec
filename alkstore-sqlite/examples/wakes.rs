//! How soon another process wakes after it was idle, and what an idle store costs.
//!
//! ```text
//! cargo run --release -p alkstore-sqlite --example wakes            1, 10 and 60 s: 5 minutes
//! cargo run --release -p alkstore-sqlite --example wakes -- 1 5     so many seconds
//! ALKSTORE_WAKES_DIR=/dev/shm …                                    without a disk
//! ```
//!
//! Two processes, with default settings, on many files at once, so that there are enough wakes for
//! a percentile: one writes to a file after it was idle for so long, the other waits on all of
//! them. A wake is counted from before the write and from after its answer: what lies in between
//! is the commit, with its fsync. Beside it stands what a line in a pipe takes: what the machine
//! itself needs for a wake, and at what else it is.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool of the maintainers, which measures real time"
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use alkstore_core::{QueueOpts, StoreExt};
use alkstore_sqlite::SqliteStore;

const FILES: u64 = 40;

/// Wakes per file and length of idleness, at least.
const ROUNDS: u64 = 5;

/// Where the files are put: in memory, the disk has no share in the figures.
const PLACE: &str = "ALKSTORE_WAKES_DIR";

const WAITS: &str = "ALKSTORE_WAKES_IN";

/// Both processes read the same clock.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

fn file(directory: &Path, n: u64) -> PathBuf {
    directory.join(n.to_string()).join("app.db")
}

async fn open(directory: &Path, n: u64) -> SqliteStore {
    std::fs::create_dir_all(directory.join(n.to_string())).unwrap();
    SqliteStore::open(file(directory, n)).await.unwrap()
}

/// The time that this process has had of a processor.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Waits on every file, and tells of each wake: the kind, which one, and when.
async fn wait(directory: PathBuf) {
    let told = |kind: &str, id: u64| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{kind} {id} {}", now_us()).unwrap();
        out.flush().unwrap();
    };
    for n in 0..FILES {
        let store = open(&directory, n).await;
        let mut bell = store.listen("bell").await.unwrap();
        tokio::spawn(async move {
            while let Some(message) = bell.recv().await {
                told("message", message.unwrap().payload.decode().unwrap());
            }
        });
        tokio::spawn(async move {
            let queue = store.queue_with("q", QueueOpts::new()).unwrap();
            loop {
                let mut job = queue.next("w").await.unwrap();
                told("job", job.decode().unwrap());
                job.ack().await.unwrap();
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    told("ready", 0);
    // Ends with the other process, whose end this one's input is.
    tokio::task::spawn_blocking(move || {
        for line in std::io::stdin().lines() {
            match line.unwrap().as_str() {
                "cpu" => println!("cpu 0 {}", cpu().as_micros()),
                line => told("line", line.parse().unwrap()),
            }
        }
    })
    .await
    .unwrap();
    std::process::exit(0);
}

/// What the other process tells, by kind and number.
struct Waits {
    child: Child,
    input: std::process::ChildStdin,
    told: tokio::sync::mpsc::UnboundedReceiver<(String, u64, u64)>,
}

impl Waits {
    async fn start(directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(WAITS, directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, told) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let line = line.unwrap();
                let words: Vec<_> = line.split(' ').collect();
                let number = |n: usize| words[n].parse::<u64>().unwrap();
                if tell.send((words[0].to_owned(), number(1), number(2))).is_err() {
                    break;
                }
            }
        });
        let mut waits = Self { input: child.stdin.take().unwrap(), child, told };
        waits.next("ready").await;
        waits
    }

    async fn next(&mut self, kind: &str) -> u64 {
        loop {
            let (told, _, value) = self.told.recv().await.unwrap();
            if told == kind {
                return value;
            }
        }
    }

    /// Its input ends, and with that it does.
    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }

    /// How soon the other process reads a line: what the machine itself takes for a wake.
    async fn lines(&mut self) -> Vec<u64> {
        let mut micros = Vec::new();
        for id in 0..200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let begun = now_us();
            writeln!(self.input, "{id}").unwrap();
            micros.push(self.next("line").await.saturating_sub(begun));
        }
        micros
    }

    async fn cpu(&mut self) -> Duration {
        writeln!(self.input, "cpu").unwrap();
        Duration::from_micros(self.next("cpu").await)
    }
}

/// One write, and when it was begun and answered.
struct Sent {
    id: u64,
    begun: u64,
    answered: u64,
}

/// Writes to one file after each time of idleness, now a message and now a job.
async fn write(store: SqliteStore, n: u64, idle: Duration) -> Vec<Sent> {
    let mut sent = Vec::new();
    // Not all at once.
    tokio::time::sleep(idle.mul_f64(n as f64 / FILES as f64)).await;
    for round in 0..2 * ROUNDS {
        tokio::time::sleep(idle).await;
        let (id, begun) = (n * 2 * ROUNDS + round, now_us());
        if round % 2 == 0 {
            store.notify("bell", &id).await.unwrap();
        } else {
            store.queue("q").unwrap().enqueue(&id).await.unwrap();
        }
        sent.push(Sent { id, begun, answered: now_us() });
    }
    sent
}

fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let place = (sorted.len() * percent).div_ceil(100).clamp(1, sorted.len()) - 1;
    sorted[place] as f64 / 1_000.0
}

fn figures(what: &str, mut micros: Vec<u64>) -> (f64, f64) {
    micros.sort_unstable();
    let (p50, p99) = (percentile(&micros, 50), percentile(&micros, 99));
    let (count, most) = (micros.len(), percentile(&micros, 100));
    println!(
        "  {what:<34} {count:>4} wakes  p50 {p50:>6.2} ms  p99 {p99:>6.2} ms  most {most:>7.2} ms"
    );
    (p50, p99)
}

async fn measure(directory: &Path, idle: Duration) -> bool {
    let fresh = directory.join(idle.as_secs().to_string());
    let mut stores = Vec::new();
    for n in 0..FILES {
        stores.push(open(&fresh, n).await);
    }
    let mut waits = Waits::start(&fresh).await;
    let writing: Vec<_> = stores
        .iter()
        .zip(0..)
        .map(|(store, n)| tokio::spawn(write(store.clone(), n, idle)))
        .collect();
    let mut sent = HashMap::new();
    for task in writing {
        sent.extend(task.await.unwrap().into_iter().map(|sent| (sent.id, sent)));
    }
    let (mut from_begun, mut from_answer) = (HashMap::new(), HashMap::new());
    for _ in 0..sent.len() {
        let (kind, id, at) = waits.told.recv().await.unwrap();
        let sent = &sent[&id];
        from_begun.entry(kind.clone()).or_insert_with(Vec::new).push(at.saturating_sub(sent.begun));
        from_answer.entry(kind).or_insert_with(Vec::new).push(at.saturating_sub(sent.answered));
    }
    println!("after {} s of idleness:", idle.as_secs());
    figures("a job, claimed, from the call", from_begun.remove("job").unwrap());
    figures("a job, claimed, from its answer", from_answer.remove("job").unwrap());
    figures("a message, from the call", from_begun.remove("message").unwrap());
    let (p50, p99) = figures("a message, from its answer", from_answer.remove("message").unwrap());
    figures("a line in a pipe, to compare", waits.lines().await);
    let met = p50 <= 1.0 && p99 <= 10.0;
    println!("  p50 <= 1 ms and p99 <= 10 ms: {}", if met { "met" } else { "missed" });
    let length = Duration::from_secs(20);
    let (own, others) = (cpu(), waits.cpu().await);
    tokio::time::sleep(length).await;
    let share = |now: Duration, before: Duration| {
        (now - before).as_secs_f64() / length.as_secs_f64() / FILES as f64 * 100.0
    };
    let (own, others) = (share(cpu(), own), share(waits.cpu().await, others));
    let cheap = own <= 0.2 && others <= 0.2;
    println!(
        "  an idle store: {own:.3} % of a core, one that is waited on {others:.3} %; <= 0.2 %: {}",
        if cheap { "met" } else { "missed" }
    );
    waits.end();
    for store in stores {
        store.close().await.unwrap();
    }
    met && cheap
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Some(directory) = std::env::var_os(WAITS) {
        return wait(directory.into()).await;
    }
    let given: Vec<u64> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let lengths = if given.is_empty() { vec![1, 10, 60] } else { given };
    // On a disk, beside what was built, unless another place is named.
    let program = std::env::current_exe().unwrap();
    let place = std::env::var_os(PLACE).map(PathBuf::from);
    let place = place.unwrap_or_else(|| program.parent().unwrap().to_owned());
    let directory = tempfile::tempdir_in(place).unwrap();
    let mut met = true;
    for seconds in lengths {
        met &= measure(directory.path(), Duration::from_secs(seconds)).await;
    }
    println!("wakes: {}", if met { "everything met" } else { "something missed" });
}

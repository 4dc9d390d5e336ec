//! The write-ahead log under load, with a reader open elsewhere.
//!
//! `ALKSTORE_SOAK_SECONDS` says how long each part takes.
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic, and a load lasts for a time"
)]

#[path = "support/directory.rs"]
mod directory;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use alkstore_core::StoreExt;
use alkstore_sqlite::rusqlite::Connection;
use alkstore_sqlite::{Durability, SqliteStore};
use directory::directory;

const MIB: u64 = 1 << 20;

/// The most that the log may have while nobody keeps a snapshot.
const BOUND: u64 = 64 * MIB;

fn length() -> Duration {
    let seconds = std::env::var("ALKSTORE_SOAK_SECONDS").map_or(1, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

fn log_of(path: &Path) -> u64 {
    let mut log = path.to_owned().into_os_string();
    log.push("-wal");
    std::fs::metadata(log).map_or(0, |metadata| metadata.len())
}

/// What the load has done, and how large the log was.
#[derive(Debug, Default)]
struct Seen {
    operations: u64,
    most: u64,
    last: u64,
}

/// Eight tasks that write as fast as they can.
async fn load(store: &SqliteStore, length: Duration) -> Seen {
    let end = Instant::now() + length;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let (store, queue) = (store.clone(), store.queue(&format!("q{n}")).unwrap());
            tokio::spawn(async move {
                let (mut operations, mut most) = (0, 0);
                while Instant::now() < end {
                    queue.enqueue(&"x".repeat(2_000)).await.unwrap();
                    store.stream("log").unwrap().publish(&operations).await.unwrap();
                    queue.next("w").await.unwrap().ack().await.unwrap();
                    operations += 4;
                    most = most.max(log_of(store.path()));
                }
                (operations, most)
            })
        })
        .collect();
    let mut seen = Seen::default();
    for task in tasks {
        let (operations, most) = task.await.unwrap();
        seen.operations += operations;
        seen.most = seen.most.max(most);
    }
    seen.last = log_of(store.path());
    seen
}

/// A thread that reads on a connection of its own, one short read after the other.
fn reads(path: &Path, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    let (conn, stop) = (Connection::open(path).unwrap(), stop.clone());
    std::thread::spawn(move || {
        let mut reads = 0;
        while !stop.load(Ordering::SeqCst) {
            let count = "SELECT count(*) FROM alkstore_jobs";
            conn.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap();
            reads += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        reads
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_bounded_unless_somebody_keeps_a_snapshot() {
    let directory = directory();
    let path = directory.path().join("app.db");
    let builder = SqliteStore::builder(&path).durability(Durability::Normal);
    let store = builder.open().await.unwrap();
    let mib = |bytes: u64| bytes as f64 / MIB as f64;

    let stop = Arc::new(AtomicBool::new(false));
    let reading = [reads(&path, &stop), reads(&path, &stop)];
    let beside = load(&store, length()).await;
    stop.store(true, Ordering::SeqCst);
    let reads: u64 = reading.map(|reading| reading.join().unwrap()).iter().sum();
    println!(
        "log: {:.1} MiB at most in {} operations beside {reads} short reads",
        mib(beside.most),
        beside.operations
    );
    assert!(beside.most <= BOUND, "{beside:?}");

    // One that keeps its snapshot keeps the log from being begun anew.
    let keeps = Connection::open(&path).unwrap();
    keeps.execute_batch("BEGIN; SELECT count(*) FROM alkstore_jobs").unwrap();
    let kept = load(&store, length()).await;
    drop(keeps);
    println!(
        "log: {:.1} MiB after {} operations beside one snapshot",
        mib(kept.last),
        kept.operations
    );

    // Afterwards it is begun anew, and cut down to what it is kept at.
    let after = load(&store, length()).await;
    println!("log: {:.1} MiB after {} operations more", mib(after.last), after.operations);
    let patience = Instant::now() + Duration::from_secs(20);
    while log_of(&path) > BOUND {
        assert!(Instant::now() < patience, "the log stays at {} bytes", log_of(&path));
        store.queue("q0").unwrap().pause().await.unwrap();
        store.queue("q0").unwrap().resume().await.unwrap();
    }
    store.close().await.unwrap();
    assert_eq!(log_of(&path), 0, "the last to close leaves no log");
}

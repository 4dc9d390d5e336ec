//! Opening and closing, subscribing and dropping, over and over: nothing is left of it.
//!
//! `ALKSTORE_CYCLES` says how often, after a tenth of that to warm up. This test is alone in its
//! program, because it counts what the process has.
#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic, and threads end in real time"
)]

#[path = "support/directory.rs"]
mod directory;

use std::path::Path;
use std::time::Duration;

use alkstore_core::{Offset, StoreExt};
use alkstore_sqlite::{Durability, SqliteStore};
use directory::directory;

const MIB: u64 = 1 << 20;

/// What the process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Has {
    threads: usize,
    /// But for those of the store that stays.
    descriptors: usize,
    of_what_stays: usize,
}

fn has() -> Has {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    let (mut descriptors, mut of_what_stays) = (0, 0);
    for descriptor in std::fs::read_dir("/proc/self/fd").unwrap() {
        let target = std::fs::read_link(descriptor.unwrap().path()).unwrap_or_default();
        let is_of_it = target.to_string_lossy().contains("/stays.db");
        *(if is_of_it { &mut of_what_stays } else { &mut descriptors }) += 1;
    }
    Has { threads, descriptors, of_what_stays }
}

/// Resident memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// A reader's thread opens its connection, a file and its log, with its first job: each of the
/// four of the store that stays may do so late.
const OPENED_LATE: usize = 4 * 2;

/// A thread that was joined is counted for a moment longer.
async fn until_it_has(expected: Has) {
    for _ in 0..5_000 {
        let has = has();
        let late = has.of_what_stays.saturating_sub(expected.of_what_stays);
        let same = (has.threads, has.descriptors) == (expected.threads, expected.descriptors);
        if same && late <= OPENED_LATE {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the process has {:?}, and had {expected:?}", has());
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::builder(path).durability(Durability::Normal).open().await.unwrap()
}

/// One store that comes and goes, with everything that it can be waited on for.
async fn opens_and_closes(path: &Path, round: u32) {
    let store = open(path).await;
    let listener = store.listen("bell").await.unwrap();
    let queue = store.queue("q").unwrap();
    queue.enqueue(&round).await.unwrap();
    queue.next("w").await.unwrap().ack().await.unwrap();
    if round.is_multiple_of(2) {
        store.close().await.unwrap();
        drop(listener);
    } else {
        // The last handle that goes closes it too.
        drop(listener);
        drop((queue, store));
    }
}

/// Everything that waits on a store that stays, come and gone.
async fn subscribes_and_drops(store: &SqliteStore) {
    let log = store.stream("log").unwrap();
    let tail = log.subscribe(Offset::START).await.unwrap();
    let consumer = log.consumer("c").unwrap().subscribe().await.unwrap();
    let bell = store.listen("bell").await.unwrap();
    store.notify("bell", &1).await.unwrap();
    let queue = store.queue("nothing").unwrap();
    let waits = tokio::spawn(async move { queue.next("w").await });
    tokio::task::yield_now().await;
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    drop((tail, consumer, bell));
}

#[tokio::test]
async fn nothing_is_left_of_what_comes_and_goes() {
    let cycles: u32 = std::env::var("ALKSTORE_CYCLES").map_or(300, |text| text.parse().unwrap());
    let directory = directory();
    let (comes, stays) = (directory.path().join("comes.db"), directory.path().join("stays.db"));
    let store = open(&stays).await;
    store.stream("log").unwrap().publish(&1).await.unwrap();
    let queue = store.queue("q").unwrap();
    // Every thread that reads runs from here on.
    let reads = futures_util::future::join_all((0..64).map(|_| queue.stats())).await;
    assert!(reads.iter().all(Result::is_ok));
    // What is begun lazily has begun.
    for round in 0..10 {
        opens_and_closes(&comes, round).await;
        subscribes_and_drops(&store).await;
    }
    let before = settled(&comes).await;
    let mut warm = resident();
    for round in 0..cycles + cycles / 10 {
        opens_and_closes(&comes, round).await;
        subscribes_and_drops(&store).await;
        if round == cycles / 10 {
            warm = resident();
        }
    }
    until_it_has(before).await;
    let grown = resident().saturating_sub(warm);
    println!(
        "churn: {cycles} cycles, {:.2} MiB more than the {:.1} MiB after {} cycles, {before:?}",
        grown as f64 / MIB as f64,
        warm as f64 / MIB as f64,
        cycles / 10,
    );
    assert!(grown <= 5 * MIB, "{grown} bytes more");
    store.close().await.unwrap();
}

/// What the process has while only the store that stays is open.
async fn settled(comes: &Path) -> Has {
    // A close waits for everything, and so it does for what a drop left.
    open(comes).await.close().await.unwrap();
    let mut same = 0;
    let mut seen = has();
    while same < 50 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        same = if has() == seen { same + 1 } else { 0 };
        seen = has();
    }
    seen
}

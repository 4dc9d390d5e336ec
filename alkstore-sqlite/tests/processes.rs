//! Several processes on one file.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

#[path = "support/directory.rs"]
mod directory;
#[path = "support/other.rs"]
mod other;
#[path = "support/process.rs"]
mod process;

use std::path::Path;
use std::time::Duration;

use alkstore_core::{Offset, StoreExt};
use alkstore_sqlite::rusqlite::Connection;
use alkstore_sqlite::{Durability, SqliteStore};
use directory::directory;
use other::Other;
use process::file;

fn another(test: &str, path: &Path) -> Other {
    Other::start(process::command(test, path))
}

async fn open(path: &Path) -> SqliteStore {
    let builder = SqliteStore::builder(path).durability(Durability::Normal).safety_poll(None);
    builder.lock_timeout(Duration::from_secs(30)).open().await.unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it comes within 30 s")
}

fn assert_whole(path: &Path) {
    let conn = Connection::open(path).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn sixteen_processes_open_a_fresh_file_at_once() {
    if let Some(path) = file() {
        let store = open(&path).await;
        store.queue("q").unwrap().enqueue(&std::process::id()).await.unwrap();
        store.stream("log").unwrap().publish(&std::process::id()).await.unwrap();
        return store.close().await.unwrap();
    }
    let directory = directory();
    let path = directory.path().join("app.db");
    let others: Vec<_> =
        (0..16).map(|_| another("sixteen_processes_open_a_fresh_file_at_once", &path)).collect();
    for mut other in others {
        assert!(other.0.wait().unwrap().success());
    }
    let store = open(&path).await;
    assert_eq!(store.queue("q").unwrap().stats().await.unwrap().ready, 16);
    let events = store.stream("log").unwrap().read(Offset::START, 100).await.unwrap();
    let offsets: Vec<_> = events.iter().map(|event| event.offset.get()).collect();
    assert_eq!(offsets, (1..=16).collect::<Vec<_>>());
    store.close().await.unwrap();
    assert_whole(&path);
}

#[tokio::test]
async fn sixteen_stores_of_one_process_open_a_fresh_file_at_once() {
    let directory = directory();
    let path = directory.path().join("app.db");
    let opening: Vec<_> = (0..16)
        .map(|n| {
            let path = path.clone();
            tokio::spawn(async move {
                let store = open(&path).await;
                store.queue("q").unwrap().enqueue(&n).await.unwrap();
                store
            })
        })
        .collect();
    let mut stores = Vec::new();
    for store in opening {
        stores.push(store.await.unwrap());
    }
    assert_eq!(stores[0].queue("q").unwrap().stats().await.unwrap().ready, 16);
    for store in stores {
        store.close().await.unwrap();
    }
    assert_whole(&path);
}

/// What the other process does for each call that reaches it, until it is told to stop.
#[tokio::test]
async fn another_process_wakes_every_kind_of_waiter() {
    if let Some(path) = file() {
        let store = open(&path).await;
        let calls = store.queue("calls").unwrap();
        loop {
            let mut call = calls.next("other").await.unwrap();
            let round: u32 = call.decode().unwrap();
            call.ack().await.unwrap();
            if round == 0 {
                return store.close().await.unwrap();
            }
            store.queue("answers").unwrap().enqueue(&round).await.unwrap();
            store.stream("log").unwrap().publish(&round).await.unwrap();
            store.notify("bell", &round).await.unwrap();
        }
    }
    let directory = directory();
    let path = directory.path().join("app.db");
    let store = open(&path).await;
    let mut other = another("another_process_wakes_every_kind_of_waiter", &path);
    let (calls, answers) = (store.queue("calls").unwrap(), store.queue("answers").unwrap());
    let mut tail = store.stream("log").unwrap().subscribe(Offset::START).await.unwrap();
    let mut bell = store.listen("bell").await.unwrap();
    for round in 1..=50_u32 {
        calls.enqueue(&round).await.unwrap();
        let mut answer = within(answers.next("this")).await.unwrap();
        assert_eq!(answer.decode::<u32>().unwrap(), round);
        answer.ack().await.unwrap();
        let event = within(tail.recv()).await.unwrap().unwrap();
        assert_eq!(event.payload.decode::<u32>().unwrap(), round);
        let message = within(bell.recv()).await.unwrap().unwrap();
        assert_eq!(message.payload.decode::<u32>().unwrap(), round);
    }
    calls.enqueue(&0).await.unwrap();
    assert!(other.0.wait().unwrap().success());
    store.close().await.unwrap();
    assert_whole(&path);
}

#[tokio::test]
async fn processes_that_bring_a_file_up_to_date_at_once_all_succeed() {
    if let Some(path) = file() {
        let store = open(&path).await;
        store.queue("q").unwrap().enqueue(&1).await.unwrap();
        return store.close().await.unwrap();
    }
    for _ in 0..8 {
        let directory = directory();
        let path = directory.path().join("app.db");
        // The application's own database, without any of the tables yet.
        let table = "CREATE TABLE orders (id INTEGER PRIMARY KEY)";
        Connection::open(&path).unwrap().execute_batch(table).unwrap();
        let start = || another("processes_that_bring_a_file_up_to_date_at_once_all_succeed", &path);
        for mut other in [start(), start()] {
            assert!(other.0.wait().unwrap().success());
        }
        let store = open(&path).await;
        assert_eq!(store.queue("q").unwrap().stats().await.unwrap().ready, 2);
        store.close().await.unwrap();
        assert_whole(&path);
    }
}

/// Another process has the write lock for three seconds.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the other process holds it in real time")]
async fn another_processs_write_lock_is_waited_for() {
    const THREE_SECONDS: Duration = Duration::from_secs(3);
    if let Some(path) = file() {
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE; CREATE TABLE held (id INTEGER)").unwrap();
        std::fs::write(path.with_extension("held"), "").unwrap();
        std::thread::sleep(THREE_SECONDS);
        return conn.execute_batch("COMMIT").unwrap();
    }
    let directory = directory();
    let path = directory.path().join("app.db");
    // One with the default settings, and one that waits for less.
    let store = SqliteStore::open(&path).await.unwrap();
    let hasty = Duration::from_millis(200);
    let hasty = SqliteStore::builder(&path).lock_timeout(hasty).open().await.unwrap();
    let queue = store.queue("q").unwrap();
    queue.enqueue(&0).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    let mut other = another("another_processs_write_lock_is_waited_for", &path);
    while !path.with_extension("held").exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let adding: Vec<_> = (0..8)
        .map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.enqueue(&n).await })
        })
        .collect();
    let (waiting, beside) = (queue.clone(), hasty.queue("q").unwrap());
    let waiting = tokio::spawn(async move { waiting.next("w").await });
    for refused in [
        beside.enqueue(&1).await.err(),
        beside.pause().await.err(),
        hasty.notify("bell", &1).await.err(),
        hasty.try_lock("l", "me", THREE_SECONDS).await.err(),
    ] {
        let error = refused.expect("somebody else writes");
        assert!(error.is_retryable() && error.to_string().contains("200ms"), "{error}");
    }
    assert_eq!(queue.stats().await.unwrap().claimed, 1, "reading goes on");
    assert!(!adding[0].is_finished(), "the other process still holds it");
    for added in adding {
        within(added).await.unwrap().unwrap();
    }
    job.ack().await.unwrap();
    within(waiting).await.unwrap().unwrap().ack().await.unwrap();
    beside.enqueue(&1).await.expect("it works on");
    assert!(other.0.wait().unwrap().success());
    assert_eq!(queue.stats().await.unwrap().ready, 8);
    hasty.close().await.unwrap();
    store.close().await.unwrap();
    assert_whole(&path);
}

//! The writer: commits in groups, futures that are dropped, and nothing left after a close.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "support/directory.rs"]
mod directory;

use std::path::Path;
use std::time::Duration;

use alkstore_core::{
    BoxFuture, EnqueueOpts, Error, JobFilter, NewJob, Offset, PublishOpts, StoreExt,
};
use alkstore_sqlite::rusqlite::Connection;
use alkstore_sqlite::{Durability, SqliteStore};
use directory::directory;
use futures_util::FutureExt;

async fn open(path: &Path) -> SqliteStore {
    let builder = SqliteStore::builder(path).durability(Durability::Normal).safety_poll(None);
    builder.lock_timeout(Duration::from_secs(30)).open().await.unwrap()
}

fn count(conn: &Connection) -> i64 {
    conn.query_row("SELECT count(*) FROM alkstore_jobs", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn what_waits_together_is_committed_together_and_what_fails_fails_alone() {
    let directory = directory();
    let path = directory.path().join("app.db");
    let store = open(&path).await;
    let (queue, log) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut adding = Vec::new();
    for n in 0..64 {
        let (queue, consumer) = (queue.clone(), log.consumer("c").unwrap());
        adding.push(tokio::spawn(async move {
            if n % 8 == 7 {
                let beyond = consumer.save_offset(Offset::try_from(99).unwrap()).await;
                assert!(matches!(beyond, Err(Error::InvalidArgument { .. })), "{beyond:?}");
                return None;
            }
            Some(queue.enqueue(&n).await.unwrap())
        }));
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    conn.execute_batch("COMMIT").unwrap();
    let seen = loop {
        match count(&conn) {
            0 => tokio::task::yield_now().await,
            seen => break seen,
        }
    };
    assert_eq!(seen, 56, "they were seen in parts");
    let mut ids = Vec::new();
    for task in adding {
        ids.extend(task.await.unwrap());
    }
    assert_eq!(ids.len(), 56);
    for id in ids {
        assert!(queue.get_job(id).await.unwrap().is_some());
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn sixty_four_callers_share_a_commit_and_one_alone_waits_for_nobody() {
    const ROUNDS: u32 = 5;
    let directory = directory();
    let path = directory.path().join("app.db");
    let builder = SqliteStore::builder(&path).lock_timeout(Duration::from_secs(30));
    let store = builder.open().await.unwrap();
    let queue = store.queue("q").unwrap();
    let conn = Connection::open(&path).unwrap();
    for _ in 0..ROUNDS {
        let before = store.data().commits();
        // While somebody else writes, all of them come together.
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        let adding: Vec<_> = (0..64)
            .map(|n| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.enqueue(&n).await.unwrap() })
            })
            .collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        conn.execute_batch("COMMIT").unwrap();
        for task in adding {
            task.await.unwrap();
        }
        // One, unless this machine is so slow that the group's time is over before its end.
        let commits = store.data().commits() - before;
        assert!(commits <= 16, "64 operations in {commits} commits");
    }
    assert_eq!(count(&conn), 64 * 5);
    // Alone, an operation is answered though no other one comes.
    let before = store.data().commits();
    for n in 1..=20 {
        queue.enqueue(&n).await.unwrap();
        assert_eq!(store.data().commits(), before + n);
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_fails_after_it_has_written_is_undone_alone() {
    let directory = directory();
    let path = directory.path().join("app.db");
    let store = open(&path).await;
    let queue = store.queue("q").unwrap();
    queue.enqueue(&"before").await.unwrap();
    let conn = Connection::open(&path).unwrap();
    // The third row of a call is refused by a rule of the application's own.
    conn.execute_batch(
        "CREATE TRIGGER picky BEFORE INSERT ON alkstore_jobs WHEN NEW.payload = '13'
        BEGIN SELECT raise(ABORT, 'not this one'); END;
        BEGIN IMMEDIATE",
    )
    .unwrap();
    let before = store.data().commits();
    let mut adding = Vec::new();
    for n in 0..16 {
        let queue = queue.clone();
        adding.push(tokio::spawn(async move {
            let bad = if n % 8 == 5 { 13 } else { 1 };
            let jobs = [1, 2, bad].map(|payload| NewJob::new(&payload).unwrap()).into();
            (bad == 13, queue.enqueue_many(jobs).await)
        }));
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    conn.execute_batch("COMMIT").unwrap();
    for task in adding {
        let (is_bad, result) = task.await.unwrap();
        assert_eq!(matches!(result, Err(Error::Engine { .. })), is_bad, "{result:?}");
    }
    assert_eq!(count(&conn), 1 + 14 * 3, "nothing of those that failed, all of the others");
    let commits = store.data().commits() - before;
    assert!(commits <= 7, "the others still share commits: 14 in {commits}");
    store.close().await.unwrap();
}

/// Polls a future so many times, and drops it unless that was its end.
async fn dropped<T>(mut future: BoxFuture<'_, T>, polls: u32) -> Option<T> {
    for _ in 0..polls {
        if let Some(value) = (&mut future).now_or_never() {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn two_thousand_dropped_futures_leave_the_store_usable_and_nothing_half_done() {
    let directory = directory();
    let store = open(&directory.path().join("app.db")).await;
    let (queue, log) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let beside = store.queue("beside").unwrap();
    for round in 0..2_000_u32 {
        let polls = round / 10 % 4 + 1;
        let minute = Duration::from_secs(60);
        match round % 10 {
            0 => drop(dropped(queue.enqueue(&round).boxed(), polls).await),
            1 => {
                let claimed = dropped(queue.claim("w").boxed(), polls).await;
                if let Some(mut job) = claimed.transpose().unwrap().flatten() {
                    job.release(Duration::ZERO).await.unwrap();
                }
            }
            2 => drop(dropped(store.begin_tx().boxed(), polls).await),
            3 => drop(dropped(log.publish(&round).boxed(), polls).await),
            4 => drop(dropped(store.try_lock("lock", "me", minute).boxed(), polls).await),
            5 => {
                let claimed = dropped(queue.next("w").boxed(), polls).await;
                if let Some(mut job) = claimed.transpose().unwrap() {
                    job.release(Duration::ZERO).await.unwrap();
                }
            }
            6 => {
                let mut tx = store.begin_tx().await.unwrap();
                let opts = EnqueueOpts::new();
                drop(dropped(queue.enqueue_tx(&mut tx, &"never", opts).boxed(), polls).await);
            }
            7 => {
                let mut tx = store.begin_tx().await.unwrap();
                queue.enqueue_tx(&mut tx, &"whole", EnqueueOpts::new()).await.unwrap();
                log.publish_tx(&mut tx, &"whole", PublishOpts::new()).await.unwrap();
                drop(dropped(tx.commit().boxed(), polls).await);
            }
            8 => drop(dropped(store.listen("bell").boxed(), polls).await),
            _ => drop(dropped(queue.stats().boxed(), polls).await),
        }
        if round % 50 == 0 {
            beside.enqueue(&round).await.unwrap();
        }
    }
    assert_eq!(beside.stats().await.unwrap().ready, 40, "what was answered is there");
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.claimed, stats.dead), (0, 0), "what was claimed came back");
    let lock = store.try_lock("lock", "me", Duration::from_secs(60)).await.unwrap();
    lock.expect("it is free").release().await.unwrap();
    let (mut jobs, mut events) = (0, 0);
    for job in queue.jobs(JobFilter::new().limit(10_000)).await.unwrap() {
        assert_ne!(job.payload.as_str(), "\"never\"");
        assert_eq!(job.attempt, 0, "an attempt was charged: {job:?}");
        jobs += u32::from(job.payload.as_str() == "\"whole\"");
    }
    for event in log.read(Offset::START, 10_000).await.unwrap() {
        events += u32::from(event.payload.as_str() == "\"whole\"");
    }
    assert_eq!(jobs, events, "a transaction in parts");
    store.close().await.unwrap();
}

/// The threads of this process that are the engine's, and the descriptors of a file of its.
#[cfg(target_os = "linux")]
fn left(directory: &Path) -> (Vec<String>, Vec<std::path::PathBuf>) {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let files = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|descriptor| std::fs::read_link(descriptor.unwrap().path()).ok());
    (
        names.filter(|name| name.starts_with("alkstore")).collect(),
        files.filter(|file| file.starts_with(directory)).collect(),
    )
}

/// A thread that was joined is seen for a moment longer.
#[cfg(target_os = "linux")]
async fn until_nothing_is_left(directory: &Path) {
    let mut looks = 0;
    while left(directory) != (vec![], vec![]) {
        assert!(looks < 10_000, "{:?} is left", left(directory));
        looks += 1;
        tokio::task::yield_now().await;
    }
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_left_after_a_close() {
    // The other tests of this program have threads as well, so that this one is a program too.
    const ALONE: &str = "ALKSTORE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let again = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["nothing_is_left_after_a_close", "--exact", "--test-threads=1"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let directory = directory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for round in 0..200 {
            let store = open(&directory.path().join("app.db")).await;
            let other = (round % 2 == 0).then(|| open(store.path()));
            let listener = store.listen("bell").await.unwrap();
            let tail = store.stream("log").unwrap().subscribe(Offset::START).await.unwrap();
            store.queue("q").unwrap().enqueue(&round).await.unwrap();
            let queue = store.queue("q").unwrap();
            let reads = futures_util::future::join_all((0..8).map(|_| queue.stats())).await;
            assert!(reads.iter().all(Result::is_ok));
            drop(queue);
            assert_ne!(left(directory.path()), (vec![], vec![]), "the counts see something");
            if let Some(other) = other {
                other.await.close().await.unwrap();
            }
            store.close().await.unwrap();
            drop((listener, tail));
            let (threads, files) = left(directory.path());
            assert_eq!(files, Vec::<std::path::PathBuf>::new(), "round {round}: {threads:?}");
            let names = std::fs::read_dir(directory.path()).unwrap();
            let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, ["app.db"], "round {round}: a log stays behind");
            until_nothing_is_left(directory.path()).await;
        }
        // Dropped instead of closed, it ends by itself.
        let store = open(&directory.path().join("app.db")).await;
        store.queue("q").unwrap().enqueue(&1).await.unwrap();
        drop(store);
        until_nothing_is_left(directory.path()).await;
    });
}

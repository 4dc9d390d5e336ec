//! A disk that is full, in the middle of a group: a tmpfs of a few MiB, mounted in a namespace of
//! its own, so that it goes with the process.
//!
//! Mounting takes root or user namespaces. Where there is neither the test fails, unless
//! `ALKSTORE_WITHOUT_MOUNT=1` says that the limit on pages in `faults.rs` has to do.
#![cfg(target_os = "linux")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

#[path = "support/process.rs"]
mod process;

use std::path::Path;
use std::process::Command;

use alkstore_core::{EnqueueOpts, Error, JobId, PublishOpts, Queue, Result, StoreExt};
use alkstore_sqlite::rusqlite::Connection;
use alkstore_sqlite::{Durability, SqliteStore};

const TEST: &str = "a_full_disk_is_unavailable_and_the_store_works_on";

/// Runs this test again in a mount namespace of its own.
fn in_a_namespace(directory: &Path) {
    let own = process::command(TEST, directory);
    // Nobody but root needs a user namespace to become root in.
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let user: &[&str] = if is_root { &[] } else { &["--user", "--map-root-user"] };
    let mut unshare = Command::new("unshare");
    unshare.args(user).arg("--mount").arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        unshare.env(name, value.unwrap());
    }
    let ran = unshare.output().expect("unshare, of util-linux");
    let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}");
}

fn mount(directory: &Path) {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(directory);
    let ran = mount.output().expect("mount, of util-linux");
    assert!(
        ran.status.success(),
        "a tmpfs can't be mounted ({}); run this as root or where user namespaces are allowed, or \
         set ALKSTORE_WITHOUT_MOUNT=1 to do without",
        String::from_utf8_lossy(&ran.stderr).trim()
    );
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_the_store_works_on() {
    match process::file() {
        Some(directory) => fill(&directory).await,
        None if std::env::var_os("ALKSTORE_WITHOUT_MOUNT").is_some_and(|set| set == "1") => {
            println!("SKIPPED because ALKSTORE_WITHOUT_MOUNT is set: a disk that is full");
        }
        None => in_a_namespace(tempfile::tempdir().unwrap().path()),
    }
}

async fn fill(directory: &Path) {
    mount(directory);
    for durability in [Durability::Full, Durability::Normal] {
        let path = directory.join("app.db");
        let store = SqliteStore::builder(&path).durability(durability).open().await.unwrap();
        let queue = store.queue("q").unwrap();
        queue.enqueue(&"is acked").await.unwrap();
        let mut held = queue.claim("w").await.unwrap().unwrap();
        let mut bell = store.listen("bell").await.unwrap();
        let ballast = directory.join("ballast");
        leave(&ballast, 256 * 1024);

        let (added, refused) = a_group(&path, &queue).await;
        assert!(refused > 0, "nothing was refused of what can't fit");
        let added = check(&queue, added).await;
        full(&ballast);
        // Now nothing fits any more, whoever asks.
        unavailable(held.ack().await);
        unavailable(queue.enqueue(&"small").await);
        unavailable(store.stream("log").unwrap().publish(&1).await);
        unavailable(store.notify("bell", &1).await);
        a_transaction(&store, &queue).await;
        assert_eq!(queue.stats().await.unwrap().ready, added, "reading goes on");

        std::fs::remove_file(&ballast).unwrap();
        held.ack().await.expect("the claim holds");
        queue.enqueue(&"small").await.expect("it works on");
        store.notify("bell", &2).await.unwrap();
        let rung = bell.recv().await.unwrap().unwrap();
        assert_eq!(rung.payload.as_str(), "2", "what was refused wasn't sent");
        assert_eq!(store.stream("log").unwrap().publish(&1).await.unwrap().get(), 1);
        assert_eq!(queue.stats().await.unwrap().ready, added + 1);
        store.close().await.unwrap();
        let conn = Connection::open(&path).unwrap();
        let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        drop(conn);
        std::fs::remove_file(&path).unwrap();
    }
}

fn unavailable<T: std::fmt::Debug>(outcome: Result<T>) {
    let Err(Error::Unavailable { message, .. }) = &outcome else { panic!("{outcome:?}") };
    assert!(message.contains("no space is left"), "{message}");
}

/// Leaves so many bytes, and takes the rest of the disk.
fn leave(ballast: &Path, bytes: usize) {
    full(ballast);
    let taken = std::fs::metadata(ballast).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(ballast).unwrap();
    file.set_len(taken - bytes as u64).unwrap();
}

fn full(ballast: &Path) {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(ballast).unwrap();
    for size in [4096, 1] {
        while file.write(&vec![0x5a; size]).is_ok_and(|written| written > 0) {}
    }
}

/// Small and large jobs that wait together, so that they are one group.
async fn a_group(path: &Path, queue: &Queue) -> (Vec<JobId>, usize) {
    let large = "x".repeat(200 * 1024);
    let conn = Connection::open(path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut adding = Vec::new();
    for n in 0..32 {
        let (queue, large) = (queue.clone(), large.clone());
        adding.push(tokio::spawn(async move {
            if n % 8 == 4 { queue.enqueue(&large).await } else { queue.enqueue(&n).await }
        }));
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    conn.execute_batch("COMMIT").unwrap();
    let (mut added, mut refused) = (Vec::new(), 0);
    for task in adding {
        match task.await.unwrap() {
            Ok(id) => added.push(id),
            refusal => {
                unavailable(refusal);
                refused += 1;
            }
        }
    }
    (added, refused)
}

/// What was answered for is there, and nothing else.
async fn check(queue: &Queue, added: Vec<JobId>) -> u64 {
    assert_eq!(queue.stats().await.unwrap().ready, added.len() as u64);
    for id in &added {
        assert!(queue.get_job(*id).await.unwrap().is_some(), "job {id} was answered for");
    }
    added.len() as u64
}

async fn a_transaction(store: &SqliteStore, queue: &Queue) {
    let mut tx = store.begin_tx().await.unwrap();
    let staged = queue.enqueue_tx(&mut tx, &"x".repeat(9_000), EnqueueOpts::new()).await;
    let log = store.stream("log").unwrap();
    match staged {
        Ok(_) => {
            log.publish_tx(&mut tx, &1, PublishOpts::new()).await.unwrap();
            unavailable(tx.commit().await);
        }
        refused => {
            unavailable(refused);
            assert!(matches!(tx.commit().await, Err(Error::Engine { .. })));
        }
    }
    assert_eq!(log.info().await.unwrap().last.get(), 0);
}

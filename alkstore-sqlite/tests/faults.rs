//! Faults of the file and of those who share it: a clear error, nothing half-done, and where that
//! is possible the store works on.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

#[path = "support/directory.rs"]
mod directory;
#[path = "support/process.rs"]
mod process;

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, JobId, Queue, Result, StoreExt};
use alkstore_sqlite::rusqlite::Connection;
use alkstore_sqlite::{Durability, SqliteStore, SqliteStoreBuilder};
use directory::directory;
use tempfile::TempDir;

struct Fixture {
    directory: TempDir,
    path: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let directory = directory();
        let path = directory.path().join("app.db");
        Self { directory, path }
    }

    fn builder(&self) -> SqliteStoreBuilder {
        SqliteStore::builder(&self.path).durability(Durability::Normal).safety_poll(None)
    }

    async fn open(&self) -> Result<SqliteStore> {
        self.builder().open().await
    }

    /// The error that an opening ends with, as text.
    async fn refused(&self) -> String {
        match self.open().await {
            Err(error @ Error::Engine { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("it takes over {limit:?}"))
}

const TWO_SECONDS: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_kept() {
    let f = Fixture::new();
    let text = "no database at all; ".repeat(400);
    std::fs::write(&f.path, &text).unwrap();
    let error = f.refused().await;
    assert!(error.contains("is no SQLite database") && error.contains("app.db"), "{error}");
    assert_eq!(std::fs::read_to_string(&f.path).unwrap(), text);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_kept() {
    let f = Fixture::new();
    f.open().await.unwrap().close().await.unwrap();
    let newer = "UPDATE alkstore_meta SET value = 99 WHERE key = 'schema_version'";
    Connection::open(&f.path).unwrap().execute(newer, []).unwrap();
    let error = f.refused().await;
    assert!(error.contains("schema version 99") && error.contains("update alkstore"), "{error}");
    let version = "SELECT value FROM alkstore_meta WHERE key = 'schema_version'";
    let conn = Connection::open(&f.path).unwrap();
    assert_eq!(conn.query_row(version, [], |row| row.get::<_, i64>(0)).unwrap(), 99);
}

#[tokio::test]
async fn a_directory_that_is_missing_is_refused() {
    let f = Fixture::new();
    let missing = f.directory.path().join("missing").join("app.db");
    let error = SqliteStore::open(&missing).await.unwrap_err();
    assert!(matches!(error, Error::Engine { .. }), "{error:?}");
    assert!(error.to_string().contains("its directory has to exist"), "{error}");
    let error = SqliteStore::open(f.directory.path()).await.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "a directory as the file: {error:?}");
}

#[tokio::test]
async fn paths_that_name_no_file_are_refused() {
    for path in ["", ":memory:", "file:app.db?mode=memory", "app.db/", "a\0b"] {
        let error = SqliteStore::open(path).await.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{path:?}: {error:?}");
    }
}

/// Runs a test again as somebody whom permissions bind: root they don't.
fn as_nobody(test: &str, f: &Fixture) {
    const NOBODY: u32 = 65_534;
    chown(f.directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let run = |program: &Path| {
        let mut command = process::command(test, f.directory.path());
        let mut other = Command::new(program);
        other.args(command.get_args()).current_dir(f.directory.path()).uid(NOBODY).gid(NOBODY);
        for (name, value) in command.stdout(Stdio::piped()).get_envs() {
            other.env(name, value.unwrap());
        }
        other.output()
    };
    let program = std::env::current_exe().unwrap();
    // What was built may lie where only root goes.
    let ran = run(&program).or_else(|_| {
        let open_to_all =
            tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
        let copy = open_to_all.path().join("test");
        std::fs::copy(&program, &copy).unwrap();
        run(&copy)
    });
    let ran = ran.unwrap();
    let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
async fn a_read_only_file_or_directory_is_refused() {
    const TEST: &str = "a_read_only_file_or_directory_is_refused";
    let Some(directory) = process::file() else { return as_nobody(TEST, &Fixture::new()) };
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let path = directory.join("app.db");
    // There is nothing yet, and nothing can be made.
    set(&directory, 0o500);
    let refused = async || {
        let opened = SqliteStore::open(&path).await;
        let Err(Error::Engine { message, .. }) = &opened else { panic!("{opened:?}") };
        assert!(message.contains("writable") && message.contains("app.db"), "{message}");
    };
    refused().await;
    set(&directory, 0o700);
    SqliteStore::open(&path).await.unwrap().close().await.unwrap();
    for (shuts, shut, free) in [(&path, 0o400, 0o600), (&directory, 0o500, 0o700)] {
        set(shuts, shut);
        refused().await;
        set(shuts, free);
    }
    SqliteStore::open(&path).await.expect("it works again").close().await.unwrap();
}

async fn every_call_errs(store: &SqliteStore, queue: &Queue, what: &str) {
    let is_engine = |call: &str, error: Option<Error>| match error {
        Some(Error::Engine { message, .. }) => {
            assert!(message.contains(what), "{call}: {message}");
        }
        other => panic!("{call}: {other:?}"),
    };
    let id = JobId::try_from(1).unwrap();
    is_engine("enqueue", queue.enqueue(&2).await.err());
    is_engine("claim", queue.claim("w").await.err());
    is_engine("next", queue.next("w").await.err());
    is_engine("get_job", queue.get_job(id).await.err());
    is_engine("stats", queue.stats().await.err());
    is_engine("publish", store.stream("s").unwrap().publish(&1).await.err());
    is_engine("notify", store.notify("bell", &1).await.err());
    is_engine("listen", store.listen("bell").await.err());
    is_engine("try_lock", store.try_lock("l", "me", TWO_SECONDS).await.err());
    is_engine("schedules", store.schedules().await.err());
    is_engine("begin_tx", store.begin_tx().await.err());
    is_engine("maintain", store.maintain().await.err());
}

#[tokio::test]
async fn a_deleted_or_replaced_file_ends_everything_within_two_seconds() {
    for replaced in [false, true] {
        let f = Fixture::new();
        let store = f.open().await.unwrap();
        let queue = store.queue("q").unwrap();
        let mut bell = store.listen("bell").await.unwrap();
        let waiting = queue.clone();
        let next = tokio::spawn(async move { waiting.next("w").await });
        tokio::task::yield_now().await;
        if replaced {
            let other = f.directory.path().join("other.db");
            Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
            std::fs::rename(&other, &f.path).unwrap();
        } else {
            std::fs::remove_file(&f.path).unwrap();
        }
        assert!(within(TWO_SECONDS, bell.recv()).await.is_none());
        let error = within(TWO_SECONDS, next).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Engine { .. }), "{error:?}");
        let what = if replaced { "was replaced" } else { "was deleted" };
        every_call_errs(&store, &queue, what).await;
        within(TWO_SECONDS, store.close()).await.unwrap();
        // Opened again it is what is there now.
        for suffix in ["-wal", "-shm"] {
            let mut beside = f.path.clone().into_os_string();
            beside.push(suffix);
            let _ = std::fs::remove_file(beside);
        }
        let again = f.open().await.unwrap();
        again.queue("q").unwrap().enqueue(&1).await.unwrap();
        again.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_vanished_is_seen_by_the_very_next_write() {
    let f = Fixture::new();
    let store = f.open().await.unwrap();
    std::fs::remove_file(&f.path).unwrap();
    let error = store.queue("q").unwrap().enqueue(&1).await.unwrap_err();
    assert!(matches!(error, Error::Engine { .. }), "{error:?}");
}

#[tokio::test]
async fn somebody_elses_write_lock_is_waited_for_up_to_the_lock_timeout() {
    let f = Fixture::new();
    let patient = f.builder().lock_timeout(Duration::from_secs(10)).open().await.unwrap();
    let hasty = f.builder().lock_timeout(Duration::from_millis(50)).open().await.unwrap();
    let (queue, other) = (patient.queue("q").unwrap(), hasty.queue("q").unwrap());
    let conn = Connection::open(&f.path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = queue.clone();
    let waiting = tokio::spawn(async move { waiting.enqueue(&1).await });
    let error = within(TWO_SECONDS, other.enqueue(&2)).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let mut tx = hasty.begin_tx().await.unwrap();
    let error = other.enqueue_tx(&mut tx, &3, Default::default()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    drop(tx);
    assert!(!waiting.is_finished());
    assert_eq!(other.stats().await.unwrap().ready, 0, "reading goes on");
    conn.execute_batch("COMMIT").unwrap();
    within(TWO_SECONDS, waiting).await.unwrap().unwrap();
    other.enqueue(&2).await.expect("it works on");
    assert_eq!(queue.stats().await.unwrap().ready, 2);
}

#[tokio::test]
async fn a_close_doesn_t_wait_for_somebody_elses_lock() {
    let f = Fixture::new();
    let store = f.open().await.unwrap();
    let queue = store.queue("q").unwrap();
    let conn = Connection::open(&f.path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = tokio::spawn(async move { queue.enqueue(&1).await });
    tokio::task::yield_now().await;
    within(TWO_SECONDS, store.close()).await.unwrap();
    let refused = within(TWO_SECONDS, waiting).await.unwrap();
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
}

#[tokio::test]
async fn a_full_database_is_unavailable_and_the_store_works_on() {
    let f = Fixture::new();
    let store = f.open().await.unwrap();
    let queue = store.queue("q").unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    let sql = tx.engine::<alkstore_sqlite::SqliteTx>().unwrap();
    let pages = "SELECT page_count FROM pragma_page_count()";
    let limit = |conn: &Connection, spare: i64| {
        let pages: i64 = conn.query_row(pages, [], |row| row.get(0)).unwrap();
        conn.pragma_update(None, "max_page_count", pages + spare).unwrap();
    };
    sql.run(move |conn| limit(conn, 64)).await.unwrap();
    tx.commit().await.unwrap();

    let large = "x".repeat(100 * 1024);
    let mut adding = Vec::new();
    for n in 0..32 {
        let (queue, large) = (queue.clone(), large.clone());
        adding.push(tokio::spawn(async move {
            if n % 4 == 0 { queue.enqueue(&large).await } else { queue.enqueue(&n).await }
        }));
    }
    let (mut added, mut refused) = (Vec::new(), 0);
    for task in adding {
        match task.await.unwrap() {
            Ok(id) => added.push(id),
            Err(Error::Unavailable { message, .. }) => {
                assert!(message.contains("no space is left"), "{message}");
                refused += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(refused > 0 && added.len() >= 24, "{refused} refused, {} added", added.len());
    assert_eq!(queue.stats().await.unwrap().ready, added.len() as u64);
    for id in added {
        assert!(queue.get_job(id).await.unwrap().is_some(), "job {id} was answered for");
    }
    let mut tx = store.begin_tx().await.unwrap();
    let refused = queue.enqueue_tx(&mut tx, &large, Default::default()).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(tx.commit().await.is_err());
    queue.enqueue(&"small").await.expect("it works on");
}

/// A file with 2,000 jobs and one event, whose pages beyond the schema's own are overwritten.
async fn damaged() -> Fixture {
    let f = Fixture::new();
    let store = f.open().await.unwrap();
    let jobs = (0..2_000).map(|n| alkstore_core::NewJob::new(&n).unwrap()).collect();
    store.queue("q").unwrap().enqueue_many(jobs).await.unwrap();
    store.close().await.unwrap();
    let mut bytes = std::fs::read(&f.path).unwrap();
    bytes[24 * 4096..].fill(0x5a);
    std::fs::write(&f.path, bytes).unwrap();
    f
}

#[tokio::test]
async fn damage_is_told_by_the_call_that_meets_it_and_remembered() {
    for call in ["stats", "claim", "enqueue", "tx"] {
        let f = damaged().await;
        let store = f.open().await.unwrap();
        let queue = store.queue("q").unwrap();
        let mut bell = store.listen("bell").await.unwrap();
        let met = match call {
            "stats" => queue.stats().await.err(),
            "claim" => queue.claim_batch("w", 2_000).await.err(),
            "enqueue" => queue.enqueue_with(&1, EnqueueOpts::new().unique_key("k")).await.err(),
            _ => {
                let mut tx = store.begin_tx().await.unwrap();
                let staged = queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.err();
                assert!(tx.commit().await.is_err());
                staged
            }
        };
        let Some(Error::Engine { message, .. }) = &met else { panic!("{call}: {met:?}") };
        assert!(message.contains("is damaged"), "{call}: {message}");
        assert!(within(TWO_SECONDS, bell.recv()).await.is_none(), "{call}");
        every_call_errs(&store, &queue, "is damaged").await;
        store.close().await.unwrap();
    }
}

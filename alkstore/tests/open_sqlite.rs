//! What `sqlite:` makes of a URL, and what it says where it can't.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by a panic"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alkstore::{Error, Payload, SqliteTx, Store, StoreConfig, StoreExt, Synchronous};
use alkstore::{open, open_with};
use tempfile::TempDir;

/// A directory, and the URL of a file in it.
fn place(file: &str) -> (TempDir, PathBuf, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(file);
    let url = format!("sqlite:{}", path.display());
    (directory, path, url)
}

async fn error_of(config: StoreConfig) -> Error {
    match open_with(config.clone()).await {
        Err(error) => error,
        Ok(_) => panic!("{config:?} opens"),
    }
}

async fn assert_refused(url: &str, argument: &str, value: &str, expected: &str) {
    match error_of(StoreConfig::new(url)).await {
        Error::InvalidArgument { argument: a, value: v, expected: e } => {
            assert_eq!((a, v.as_str()), (argument, value), "{url:?}");
            assert!(e.contains(expected), "{url:?}: {e}");
        }
        other => panic!("{url:?} is refused with {other:?}"),
    }
}

async fn assert_fails(url: &str, part: &str) {
    let error = error_of(StoreConfig::new(url)).await;
    assert!(matches!(error, Error::Engine { .. }), "{url:?}: {error:?}");
    assert!(error.to_string().contains(part), "{url:?}: {error}");
}

/// What the store's own connection says of `PRAGMA synchronous`: 1 is normal, 2 is full.
async fn synchronous(store: &Arc<dyn Store>) -> i64 {
    let mut tx = store.begin_tx().await.unwrap();
    let sql = tx.engine::<SqliteTx>().expect("a SQLite store's transaction");
    let mode = sql.run(|conn| conn.query_row("PRAGMA synchronous", [], |row| row.get(0))).await;
    let mode = mode.unwrap().unwrap();
    tx.rollback().await.unwrap();
    mode
}

#[tokio::test]
async fn what_was_put_into_the_file_is_there_when_it_is_opened_again() {
    let (_directory, path, url) = place("app.db");
    let store = open(&url).await.unwrap();
    store.queue("emails").unwrap().enqueue(&"to: ada").await.unwrap();
    store.close().await.unwrap();
    assert!(path.is_file());

    let again = open(&url.replace("sqlite:", "SQLite:")).await.unwrap();
    let job = again.queue("emails").unwrap().claim("w").await.unwrap().expect("it is there");
    assert_eq!(job.decode::<String>().unwrap(), "to: ada");
    drop(job);
    again.close().await.unwrap();
}

#[tokio::test]
async fn a_path_without_a_slash_is_relative() {
    // Cargo runs a test in the folder of its crate.
    let directory = tempfile::tempdir_in("..").unwrap();
    let path = Path::new("..").join(directory.path().file_name().unwrap()).join("app.db");
    let store = open(&format!("sqlite:{}", path.display())).await.unwrap();
    store.close().await.unwrap();
    assert!(directory.path().join("app.db").is_file());
}

#[tokio::test]
async fn a_path_is_percent_decoded() {
    for (encoded, file) in [
        ("an%20app.db", "an app.db"),
        ("an app.db", "an app.db"),
        ("50%25.db", "50%.db"),
        ("what%3f.db", "what?.db"),
        ("f%C3%BCr.db", "für.db"),
        ("für.db", "für.db"),
        ("a:b@c#d&e=f.db", "a:b@c#d&e=f.db"),
    ] {
        let (directory, _, url) = place(encoded);
        open(&url).await.unwrap().close().await.unwrap();
        assert!(directory.path().join(file).is_file(), "{encoded}");
    }
    assert_refused("sqlite:a%FFb.db", "url", "a%FFb.db", "percent-encoded UTF-8").await;
    assert_refused("sqlite:a%00b.db", "path", "a\0b.db", "the path of a file").await;
}

#[tokio::test]
async fn parameters_and_fields_reach_the_engine() {
    let (_directory, _, url) = place("app.db");
    for (config, expected) in [
        (StoreConfig::new(&url), 2),
        (StoreConfig::new(format!("{url}?")), 2),
        (StoreConfig::new(format!("{url}?synchronous=full")), 2),
        (StoreConfig::new(format!("{url}?synchronous=normal")), 1),
        (StoreConfig::new(&url).synchronous(Synchronous::Full), 2),
        (StoreConfig::new(&url).synchronous(Synchronous::Normal), 1),
    ] {
        let store = open_with(config.clone()).await.unwrap();
        assert_eq!(synchronous(&store).await, expected, "{config:?}");
        store.close().await.unwrap();
    }

    for config in [
        StoreConfig::new(format!("{url}?payload_limit=10&synchronous=normal")),
        StoreConfig::new(&url).payload_limit(10),
    ] {
        let store = open_with(config).await.unwrap();
        assert_eq!(store.limits().payload, 10);
        let payload = Payload::from_json_text("\"012345678\"").unwrap();
        let refused = store.queue("q").unwrap().enqueue(payload).await.unwrap_err();
        assert!(matches!(refused, Error::PayloadTooLarge { size: 11, limit: 10 }), "{refused:?}");
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn the_lock_timeout_is_how_long_a_call_waits() {
    let (_directory, _, url) = place("app.db");
    for config in [
        StoreConfig::new(format!("{url}?lock_timeout=7ms")),
        StoreConfig::new(&url).lock_timeout(Duration::from_millis(7)),
    ] {
        let store = open_with(config).await.unwrap();
        let queue = store.queue("q").unwrap();
        let mut tx = store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &1, alkstore::EnqueueOpts::new()).await.unwrap();
        let refused = queue.enqueue(&2).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused:?}");
        assert!(refused.to_string().contains("lock timeout of 7ms"), "{refused}");
        tx.rollback().await.unwrap();
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_url_that_names_no_file_says_how_one_looks() {
    let form =
        "for instance \"sqlite:app.db\" or \"sqlite:/var/lib/app.db\"; for a store in memory";
    for url in [
        "sqlite:",
        "sqlite:?",
        "sqlite:?synchronous=full",
        "sqlite::memory:",
        "SQLite::memory:",
        "sqlite:%3Amemory%3A",
        "sqlite://app.db",
        "sqlite:///var/lib/app.db",
        "sqlite:%2f/app.db",
    ] {
        assert_refused(url, "url", url, form).await;
    }
    assert_refused("sqlite:file:app.db", "path", "file:app.db", "the path of a file").await;
}

#[tokio::test]
async fn a_directory_is_no_file() {
    let (directory, path, url) = place("app.db");
    for (url, value) in [
        (format!("sqlite:{}", directory.path().display()), directory.path().display().to_string()),
        (format!("{url}/"), format!("{}/", path.display())),
    ] {
        assert_refused(&url, "path", &value, "the path of a file").await;
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
}

#[tokio::test]
async fn an_unknown_parameter_says_which_there_are_and_makes_no_file() {
    let (directory, _, url) = place("app.db");
    let known = "a parameter that \"sqlite:\" has, \
                 \"synchronous\", \"lock_timeout\" or \"payload_limit\"";
    for name in ["sync", "mode", "cache", "Synchronous", "schema", "_pragma", ""] {
        assert_refused(&format!("{url}?{name}=1"), "parameter", name, known).await;
    }
    let twice = format!("{url}?synchronous=full&synchronous=full");
    assert_refused(&twice, "parameter", "synchronous", "once").await;
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_parameter_of_the_wrong_form_is_refused() {
    let (directory, _, url) = place("app.db");
    for value in ["", "off", "FULL", "2", "full "] {
        let wrong = format!("{url}?synchronous={value}");
        assert_refused(&wrong, "synchronous", value, "\"full\" or \"normal\"").await;
    }
    let wrong = format!("{url}?lock_timeout=5");
    assert_refused(&wrong, "lock_timeout", "5", "a duration, for instance \"500ms\"").await;
    let wrong = format!("{url}?payload_limit=1MiB");
    assert_refused(&wrong, "payload_limit", "1MiB", "a whole number of bytes").await;
    assert_refused(&format!("{url}?payload_limit=0"), "payload_limit", "0", "at least 1").await;

    let twice = StoreConfig::new(format!("{url}?synchronous=full"));
    let error = error_of(twice.synchronous(Synchronous::Normal)).await;
    assert!(error.to_string().contains("not both"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let (directory, _, url) = place("missing/app.db");
    assert_fails(&url, "missing/app.db can't be opened: its directory has to exist").await;
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_kept() {
    let (_directory, path, url) = place("notes.txt");
    let text = "no database at all; ".repeat(400);
    fs::write(&path, &text).unwrap();
    assert_fails(&url, "notes.txt is no SQLite database").await;
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

/// Root may write what is read-only; then it opens, as it would for anybody who may.
#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_read_only_is_refused_where_that_binds() {
    let (_directory, path, url) = place("app.db");
    open(&url).await.unwrap().close().await.unwrap();
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    if fs::OpenOptions::new().write(true).open(&path).is_ok() {
        open(&url).await.unwrap().close().await.unwrap();
    } else {
        assert_fails(&url, "can't be written").await;
    }
}

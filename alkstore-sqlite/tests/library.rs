//! Which SQLite library is linked, and what becomes of one that is too old.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by a panic")]

use alkstore_core::{Error, StoreExt};
use alkstore_sqlite::{SqliteStore, rusqlite};

#[tokio::test]
async fn a_library_that_can_damage_the_log_is_refused_and_makes_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let opened = SqliteStore::open(&path).await;
    if rusqlite::version_number() >= 3_051_003 {
        return opened.unwrap().close().await.unwrap();
    }
    let Err(Error::Engine { message, .. }) = &opened else { panic!("{opened:?}") };
    assert!(message.contains(rusqlite::version()) && message.contains("3.51.3"), "{message}");
    assert!(!path.exists());
}

#[cfg(feature = "bundled")]
#[test]
fn the_library_that_is_compiled_in_is_new_enough() {
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}

//! Files of every version of the schema that ever was are opened by this one.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "support/directory.rs"]
mod directory;

use std::time::Duration;

use alkstore_core::{DeadSelection, JobFilter, JobState, Offset, StoreExt};
use alkstore_sqlite::SqliteStore;
use alkstore_sqlite::rusqlite::Connection;
use directory::directory;

/// What `examples/schema_fixture.rs` wrote, by version.
const FIXTURES: [&[u8]; 1] = [include_bytes!("fixtures/schema-1.db")];

#[tokio::test]
async fn a_file_of_each_version_has_everything_it_had() {
    for (n, fixture) in FIXTURES.iter().enumerate() {
        let directory = directory();
        let path = directory.path().join(format!("schema-{}.db", n + 1));
        std::fs::write(&path, fixture).unwrap();
        let store = SqliteStore::open(&path).await.unwrap();

        let queue = store.queue("work").unwrap();
        let jobs = queue.jobs(JobFilter::new()).await.unwrap();
        let found: Vec<_> = jobs.iter().map(|job| (job.payload.as_str(), job.state)).collect();
        let (pending, claimed, dead) = (JobState::Pending, JobState::Claimed, JobState::Dead);
        assert_eq!(
            found,
            [
                ("\"fails\"", dead),
                ("\"is held\"", claimed),
                ("\"is ready\"", pending),
                ("\"is delayed\"", pending)
            ]
        );
        assert_eq!(jobs[0].last_error.as_deref(), Some("broken"));
        assert_eq!((jobs[2].priority, jobs[2].max_attempts), (5, 7));
        assert_eq!(jobs[2].unique_key.as_deref(), Some("k"));
        assert_eq!(jobs[2].headers.get("traceparent"), Some("00-4bf9"));
        assert_eq!(queue.requeue_dead(DeadSelection::All).await.unwrap(), 1);
        let mut job = queue.claim("w").await.unwrap().unwrap();
        assert_eq!(job.id(), jobs[2].id, "the higher priority first");
        job.ack().await.unwrap();
        assert!(queue.enqueue(&1).await.unwrap() > jobs[3].id, "no id is given out again");
        assert!(store.queue("resting").unwrap().stats().await.unwrap().paused);
        assert_eq!(store.outbox("mails").unwrap().stats().await.unwrap().ready, 1);

        let stream = store.stream("log").unwrap();
        let info = stream.info().await.unwrap();
        assert_eq!((info.first.get(), info.last.get(), info.count), (2, 3, 2));
        assert_eq!(stream.consumer("reader").unwrap().offset().await.unwrap().get(), 2);
        assert_eq!(stream.publish(&4).await.unwrap(), Offset::try_from(4).unwrap());
        let lock = store.lock("lock", "me", Duration::from_secs(9)).await.unwrap();
        assert_eq!(lock.token(), 2);
        lock.release().await.unwrap();
        assert_eq!(store.schedules().await.unwrap()[0].name, "nightly");
        store.close().await.unwrap();

        let conn = Connection::open(&path).unwrap();
        let text = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(text("PRAGMA integrity_check"), "ok");
        assert_eq!(text("SELECT name FROM sqlite_schema WHERE name = 'orders'"), "orders");
    }
}

#[tokio::test]
async fn a_database_of_the_application_keeps_what_is_its_own() {
    let directory = directory();
    let path = directory.path().join("app.db");
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(
        "PRAGMA user_version = 7; PRAGMA application_id = 99;
        CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT);
        INSERT INTO orders (total) VALUES ('42')",
    )
    .unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    store.queue("q").unwrap().enqueue(&1).await.unwrap();
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA user_version"), 7);
    assert_eq!(number("PRAGMA application_id"), 99);
    assert_eq!(number("SELECT count(*) FROM orders"), 1);
    let foreign =
        "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'alkstore\\_%' ESCAPE '\\'
        AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name <> 'orders'";
    assert_eq!(number(foreign), 0, "every name of the store's begins with alkstore_");
    let loose = "SELECT count(*) FROM pragma_table_list
        WHERE name LIKE 'alkstore\\_%' ESCAPE '\\' AND strict = 0";
    assert_eq!(number(loose), 0, "every table is STRICT");
    store.close().await.unwrap();
}

//! The statements of docs/guide/sql.md do what the page says.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by a panic")]

use alkstore::rusqlite::{Connection, types::Value};
use alkstore::{EnqueueOpts, StoreExt};

const PAGE: &str = include_str!("../../docs/guide/sql.md");

/// The SQL blocks of a section.
fn blocks(section: &str) -> Vec<&'static str> {
    let sections = PAGE.split("\n## ").skip(1);
    let mut found = sections.filter(|text| text.lines().next() == Some(section));
    let section = found.next().expect("the section");
    let blocks = section.split("```sql\n").skip(1);
    blocks.map(|rest| rest.split("```").next().expect("an end")).collect()
}

fn rows(db: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = db.prepare(sql).unwrap();
    let columns = statement.column_count();
    let row = |row: &alkstore::rusqlite::Row<'_>| (0..columns).map(|i| row.get(i)).collect();
    statement.query_map([], row).unwrap().map(Result::unwrap).collect()
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

#[tokio::test]
async fn the_statements_for_sqlite_read_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("app.db");
    let store = alkstore::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let emails = store.queue("emails").unwrap();
    let customer = serde_json::json!({ "customer": "ada" });
    emails.enqueue_with(&customer, EnqueueOpts::new().priority(1)).await.unwrap();
    emails.enqueue_many(vec![alkstore::NewJob::new(&1).unwrap(); 2]).await.unwrap();
    emails.claim("w").await.unwrap().unwrap().fail("no such address").await.unwrap();
    let orders = store.stream("orders").unwrap();
    for order in 1..=4 {
        orders.publish(&order).await.unwrap();
    }
    let billing = orders.consumer("billing").unwrap();
    billing
        .save_offset(orders.read(alkstore::Offset::START, 1).await.unwrap()[0].offset)
        .await
        .unwrap();

    let db = Connection::open(&file).unwrap();
    let [waiting, dead, lag, inbox, insert] = blocks("SQLite")[..] else { unreachable!() };
    let waiting = rows(&db, waiting);
    assert_eq!(waiting[0][..2], [text("emails"), Value::Integer(2)]);
    let age = &waiting[0][2];
    assert!(matches!(age, Value::Real(seconds) if (0.0..600.0).contains(seconds)), "{age:?}");
    let dead = rows(&db, dead);
    let expected = [text("emails"), Value::Integer(1), text("no such address"), text("ada")];
    assert_eq!(dead[0][1..], expected);
    assert_eq!(rows(&db, lag), [vec![text("orders"), text("billing"), Value::Integer(3)]]);

    db.execute_batch(inbox).unwrap();
    db.execute_batch(insert).unwrap();
    let expected = [vec![Value::Integer(1), text("emails"), text(r#"{"to":"ada"}"#)]];
    assert_eq!(rows(&db, "SELECT * FROM inbox"), expected);
    store.close().await.unwrap();
}

#[cfg(feature = "pg")]
mod needs_postgres {
    use alkstore::sqlx::{self, Connection, Executor, PgConnection, Row};
    use alkstore::{JobFilter, Offset};
    use alkstore_suite::pg::Cluster;

    use super::*;

    #[tokio::test]
    async fn the_statements_for_postgres_take_part() {
        let url = Cluster::shared().url();
        // The page speaks of the schema that a store has by default.
        let store = alkstore::open(&url).await.unwrap();
        let mut bell = store.listen("bell").await.unwrap();
        let mut db = PgConnection::connect(&url).await.unwrap();
        let mut rows = Vec::new();
        for block in blocks("Postgres") {
            rows = db.fetch_all(sqlx::raw_sql(block)).await.expect(block);
        }
        let waiting: (String, i64) = (rows[0].get(0), rows[0].get(1));
        assert_eq!((rows.len(), waiting), (1, ("emails".to_owned(), 1)));

        let jobs = store.queue("emails").unwrap().jobs(JobFilter::new()).await.unwrap();
        let payloads: Vec<_> = jobs.iter().map(|job| job.payload.as_str()).collect();
        assert_eq!(payloads, [r#"{"to": "ada"}"#, r#"{"to": "grace"}"#]);
        assert_eq!(jobs[1].unique_key.as_deref(), Some("welcome-7"));
        assert!(
            jobs[1].headers.get("traceparent").is_some() && jobs[1].ready_at > jobs[0].ready_at
        );
        let orders = store.stream("orders").unwrap();
        let events = orders.read(Offset::START, 9).await.unwrap();
        let payloads: Vec<_> = events.iter().map(|event| event.payload.as_str()).collect();
        assert_eq!(payloads, [r#"{"order": 7}"#, r#"{"order" : 7, "paid" : true}"#]);
        let message = bell.recv().await.unwrap().unwrap();
        assert_eq!(message.payload.as_str(), r#""look again""#);
        store.close().await.unwrap();
    }
}

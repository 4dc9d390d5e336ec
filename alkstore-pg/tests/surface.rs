//! What triggers and programs in other languages call: SQL functions that do what the store does,
//! refuse what it refuses, and wake whom it wakes.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

use std::time::{Duration, SystemTime};

use alkstore_core::{EnqueueOpts, Headers, LocalName, Offset, QueueName, QueueOpts, StoreExt};
use alkstore_pg::PgStore;
use alkstore_pg::sqlx::postgres::{PgConnection, PgRow};
use alkstore_pg::sqlx::{self, AssertSqlSafe, Connection, Executor, Row};
use alkstore_suite::pg::Cluster;

const LONG: Duration = Duration::from_secs(20);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it comes within 20 s")
}

struct Fixture {
    store: PgStore,
    sql: PgConnection,
}

impl Fixture {
    async fn new() -> Self {
        let url = Cluster::shared().url();
        let schema = Cluster::shared().fresh_schema();
        let store = PgStore::builder(&url).schema(schema).safety_poll(None).connect();
        Self { store: store.await.unwrap(), sql: PgConnection::connect(&url).await.unwrap() }
    }

    /// Runs SQL with `{s}` for the store's schema.
    async fn run(&mut self, sql: &str) -> sqlx::Result<Vec<PgRow>> {
        let sql = sql.replace("{s}", &format!("\"{}\"", self.store.schema()));
        self.sql.fetch_all(AssertSqlSafe(sql)).await
    }

    /// The error that SQL ends with: its SQLSTATE and its text.
    async fn refused(&mut self, sql: &str) -> (String, String) {
        match self.run(sql).await {
            Err(sqlx::Error::Database(error)) => {
                (error.code().unwrap().into_owned(), error.message().to_owned())
            }
            other => panic!("{sql}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_job_enqueued_by_sql_is_a_job_like_any_other() {
    let mut f = Fixture::new().await;
    let queue = f.store.queue_with("mails", QueueOpts::new()).unwrap();
    let waiting = queue.clone();
    let waiting = tokio::spawn(async move { waiting.next("w").await });
    let rows = f
        .run(r#"SELECT {s}.enqueue('mails', '{ "to": "ada\u0000", "n": 1.0 }', headers => '{"trace": "é"}')"#)
        .await
        .unwrap();
    let mut job = within(waiting).await.unwrap().unwrap();
    assert_eq!(job.id().get(), rows[0].get::<i64, _>(0));
    assert_eq!(job.payload().as_str(), r#"{ "to": "ada\u0000", "n": 1.0 }"#, "byte for byte");
    assert_eq!(job.headers(), &Headers::new([("trace", "é")]).unwrap());
    assert_eq!((job.attempt(), job.max_attempts()), (1, 3));
    assert_eq!(job.visibility_timeout(), Duration::from_secs(300));
    job.ack().await.unwrap();

    // The defaults, and every option, are those of the store.
    let own = queue.enqueue_with(&1, EnqueueOpts::new()).await.unwrap();
    let rows = f.run("SELECT {s}.enqueue('mails', '1')").await.unwrap();
    let by_id = |id| {
        let queue = queue.clone();
        async move { queue.get_job(id).await.unwrap().unwrap() }
    };
    let (ours, theirs) =
        (by_id(own).await, by_id(alkstore_core::JobId::stored(rows[0].get(0))).await);
    let same = |mut job: alkstore_core::JobRecord| {
        job.id = own;
        job.enqueued_at = SystemTime::UNIX_EPOCH;
        job.ready_at = SystemTime::UNIX_EPOCH;
        job
    };
    assert_eq!(same(ours), same(theirs));
}

#[tokio::test]
async fn options_of_a_job_mean_what_they_mean_elsewhere() {
    let mut f = Fixture::new().await;
    let rows = f
        .run(
            "SELECT {s}.enqueue('q', '1', delay => '1 hour', priority => 7, max_attempts => 2,
                expires => '2 hours', unique_key => 'k', visibility_timeout => '1.5 s',
                retry_base => '250 ms', dead_retention => '3 days'),
            {s}.enqueue('q', '2', unique_key => 'k'),
            {s}.enqueue('q', '3', run_at => 'infinity'),
            {s}.enqueue('q', '4', run_at => '1969-01-01'),
            {s}.enqueue('q', '5', delay => '200000 years', run_at => '2020-01-01')",
        )
        .await
        .unwrap();
    let ids: Vec<i64> = (0..5).map(|column| rows[0].get(column)).collect();
    assert_eq!(ids[0], ids[1], "the live job with the key");
    let queue = f.store.queue("q").unwrap();
    let job = |id: i64| {
        let queue = queue.clone();
        let id = alkstore_core::JobId::stored(id);
        async move { queue.get_job(id).await.unwrap().unwrap() }
    };
    let first = job(ids[0]).await;
    let since = |at: SystemTime| at.duration_since(first.enqueued_at).unwrap().as_secs();
    assert_eq!((first.priority, first.max_attempts), (7, 2));
    assert_eq!(first.unique_key.as_deref(), Some("k"));
    assert_eq!(since(first.ready_at), 3_600);
    assert_eq!(since(first.expires_at.unwrap()), 7_200);
    assert_eq!(first.visibility_timeout, Duration::from_millis(1_500));
    assert_eq!(first.retry_base, Duration::from_millis(250));
    assert_eq!(first.dead_retention, Some(Duration::from_secs(259_200)));
    let far = job(ids[2]).await.ready_at;
    assert_eq!(far, job(ids[4]).await.ready_at, "a delay wins over an instant");
    assert_eq!(
        far.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis(),
        253_402_300_799_999
    );
    let mut past = queue.claim("w").await.unwrap().expect("an instant that has passed is now");
    assert_eq!(past.id().get(), ids[3]);
    past.ack().await.unwrap();
}

#[tokio::test]
async fn a_trigger_takes_part_in_the_transaction_that_fires_it() {
    let mut f = Fixture::new().await;
    f.run(
        "CREATE TABLE {s}.orders (id bigint, total bigint);
        CREATE FUNCTION {s}.ordered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM {s}.enqueue('receipts', row_to_json(NEW), unique_key => 'order ' || NEW.id);
            PERFORM {s}.publish('orders', row_to_json(NEW), key => NEW.id::text);
            PERFORM {s}.notify('orders', to_json(NEW.id));
            RETURN NEW;
        END $$;
        CREATE TRIGGER ordered AFTER INSERT ON {s}.orders
            FOR EACH ROW EXECUTE FUNCTION {s}.ordered()",
    )
    .await
    .unwrap();
    let mut heard = f.store.listen("orders").await.unwrap();
    let mut events = f.store.stream("orders").unwrap().subscribe(Offset::START).await.unwrap();
    f.run("BEGIN; INSERT INTO {s}.orders VALUES (1, 10); ROLLBACK").await.unwrap();
    f.run("INSERT INTO {s}.orders VALUES (2, 20), (3, 30)").await.unwrap();
    for id in [2, 3] {
        let event = within(events.recv()).await.unwrap().unwrap();
        assert_eq!((event.offset.get(), event.key.unwrap().as_str()), (id - 1, &*id.to_string()));
        let message = within(heard.recv()).await.unwrap().unwrap();
        assert_eq!(message.payload.decode::<i64>().unwrap(), id);
        let mut job = within(f.store.queue("receipts").unwrap().next("w")).await.unwrap();
        assert_eq!(job.payload().as_str(), format!(r#"{{"id":{id},"total":{id}0}}"#));
        job.ack().await.unwrap();
    }
}

#[tokio::test]
async fn messages_of_sql_arrive_each_and_whole() {
    let mut f = Fixture::new().await;
    let channel = "é".repeat(127);
    let mut heard = f.store.listen(&channel).await.unwrap();
    let mut other = f.store.listen("other").await.unwrap();
    f.run(&format!(
        "BEGIN;
        SELECT {{s}}.notify('{channel}', '1') FROM generate_series(1, 3);
        SELECT {{s}}.notify('{channel}', to_json(repeat('🦀', 250000)));
        SELECT {{s}}.notify('{channel}', to_json(repeat('x', 1048574)));
        COMMIT"
    ))
    .await
    .unwrap();
    f.run("SELECT {s}.notify('other', '2')").await.unwrap();
    for _ in 0..3 {
        assert_eq!(within(heard.recv()).await.unwrap().unwrap().payload.as_str(), "1");
    }
    for (letter, times) in [("🦀", 250_000), ("x", 1_048_574)] {
        let message = within(heard.recv()).await.unwrap().unwrap();
        assert!(message.payload.as_str() == format!("\"{}\"", letter.repeat(times)), "{letter}");
    }
    assert_eq!(within(other.recv()).await.unwrap().unwrap().payload.as_str(), "2");
}

#[tokio::test]
async fn sql_takes_the_names_that_the_store_takes() {
    let mut f = Fixture::new().await;
    let mut names: Vec<String> =
        ["", "a", " ", "a b", "__alkstore_", "__alkstore_x", "__ALKSTORE_x"]
            .map(str::to_owned)
            .into();
    names.extend(["x".repeat(255), "x".repeat(256), "é".repeat(127), "é".repeat(128)]);
    // Every character that may be white space or a control character, and what is around them.
    let ranges = [
        '\u{1}'..='\u{ff}',
        '\u{1670}'..='\u{1690}',
        '\u{1ff0}'..='\u{2070}',
        '\u{2ff0}'..='\u{3010}',
        '\u{fe00}'..='\u{feff}',
    ];
    for letter in ranges.into_iter().flatten() {
        names.extend([format!("{letter}x"), format!("x{letter}"), format!("x{letter}x")]);
    }
    let check = format!(r#"SELECT "{}".check_name($1, $2)"#, f.store.schema());
    let mut refused = 0;
    for name in names {
        for (shared, taken) in
            [(true, QueueName::new(&name).is_ok()), (false, LocalName::new(&name).is_ok())]
        {
            let query = sqlx::query(AssertSqlSafe(check.clone())).bind(&name).bind(shared);
            let result = query.execute(&mut f.sql).await;
            assert_eq!(result.is_ok(), taken, "{name:?}, shared: {shared}: {result:?}");
            refused += usize::from(!taken);
        }
    }
    assert!(refused > 100, "{refused}");
}

#[tokio::test]
async fn sql_refuses_what_the_store_refuses() {
    let mut f = Fixture::new().await;
    for (sql, code, text) in [
        ("SELECT {s}.enqueue(' q', '1')", "22023", "white space"),
        ("SELECT {s}.enqueue(NULL, '1')", "22023", "null"),
        ("SELECT {s}.enqueue('__alkstore_outbox:x', '1')", "22023", "belong to the store"),
        ("SELECT {s}.publish('__alkstore_x', '1')", "22023", "belong to the store"),
        ("SELECT {s}.publish('s', '1', key => ' k')", "22023", "white space"),
        (r"SELECT {s}.notify(E'c\x01', '1')", "22023", "control character"),
        ("SELECT {s}.enqueue('q', NULL)", "22004", "payload is null"),
        ("SELECT {s}.enqueue('q', '{')", "22P02", "json"),
        ("SELECT {s}.notify('c', to_json(repeat('x', 1048575)))", "54000", "1048577 bytes"),
        ("SELECT {s}.publish('s', (repeat('[', 128) || repeat(']', 128))::json)", "54000", "127"),
        ("SELECT {s}.enqueue('q', '1', max_attempts => 0)", "22023", "at least 1"),
        ("SELECT {s}.enqueue('q', '1', visibility_timeout => '0')", "22023", "visibility_timeout"),
        ("SELECT {s}.enqueue('q', '1', visibility_timeout => '11 years')", "22023", "3650 days"),
        ("SELECT {s}.enqueue('q', '1', delay => '-1 s')", "22023", "negative"),
        ("SELECT {s}.enqueue('q', '1', unique_key => '')", "22023", "empty"),
        ("SELECT {s}.enqueue('q', '1', headers => '[]')", "22023", "object of strings"),
        (r#"SELECT {s}.enqueue('q', '1', headers => '{"a": 1}')"#, "22023", "is a string"),
        (r#"SELECT {s}.publish('s', '1', headers => '{"alkstore-x": ""}')"#, "22023", "reserved"),
        (r#"SELECT {s}.publish('s', '1', headers => '{" a": ""}')"#, "22023", "white space"),
        (
            "SELECT {s}.publish('s', '1', headers => json_build_object('a', repeat('x', 8192)))",
            "54000",
            "8193 bytes",
        ),
        (
            "SELECT {s}.publish('s', '1', headers =>
                (SELECT json_object_agg(n::text, '') FROM generate_series(1, 65) n))",
            "54000",
            "65 entries",
        ),
    ] {
        let (found, message) = f.refused(sql).await;
        assert!(found == code && message.contains(text), "{sql}: {found} {message}");
    }
    // At their very limits they are taken.
    for sql in [
        "SELECT {s}.enqueue('q', (repeat('[', 127) || repeat(']', 127))::json)",
        "SELECT {s}.enqueue('q', to_json(repeat('[\"{', 200)))",
        "SELECT {s}.enqueue('q', to_json(repeat('x', 1048574)))",
        "SELECT {s}.enqueue('q', '1', visibility_timeout => '1 ms', unique_key => '__alkstore_x')",
        "SELECT {s}.publish('s', '1', headers => json_build_object('a', repeat('x', 8191)))",
        "SELECT {s}.publish('s', '1', headers =>
            (SELECT json_object_agg(n::text, '') FROM generate_series(1, 64) n))",
        "SELECT {s}.publish('s', '1', headers => '{}')",
    ] {
        f.run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    assert_eq!(f.store.queue("q").unwrap().stats().await.unwrap().ready, 4);
    let events = f.store.stream("s").unwrap().read(Offset::START, 10).await.unwrap();
    let entries: Vec<_> = events.iter().map(|event| event.headers.len()).collect();
    assert_eq!(entries, [1, 64, 0]);
}

#[tokio::test]
async fn a_schema_may_have_any_name_that_can_be_quoted() {
    let url = Cluster::shared().url();
    let open = |schema: &str| PgStore::builder(&url).schema(schema).connect();
    let schema = r#"it's "odd" $1 % \ -- é"#;
    let store = open(schema).await.unwrap();
    let queue = store.queue("q").unwrap();
    let keyed = EnqueueOpts::new().unique_key("k");
    let id = queue.enqueue_with(&1, keyed.clone()).await.unwrap();
    assert_eq!(queue.enqueue_with(&1, keyed).await.unwrap(), id);
    queue.claim("w").await.unwrap().unwrap().ack().await.unwrap();
    store.stream("s").unwrap().publish(&1).await.unwrap();
    let mut sql = PgConnection::connect(&url).await.unwrap();
    let by_sql = format!(r#"SELECT "{}".enqueue('q', '1')"#, schema.replace('"', "\"\""));
    sql.execute(AssertSqlSafe(by_sql)).await.unwrap();
    assert_eq!(queue.stats().await.unwrap().ready, 1);
    store.close().await.unwrap();
    for schema in ["", "pg_jobs", "a$$b", "{s}", "a\nb", &"a".repeat(64)] {
        let refused = open(schema).await;
        assert!(
            matches!(
                refused,
                Err(alkstore_core::Error::InvalidArgument { argument: "schema", .. })
            ),
            "{schema}: {refused:?}"
        );
    }
}

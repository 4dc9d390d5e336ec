//! Faults of the server and of the way to it: a clear error, nothing half-done, and the work goes
//! on by itself when they are over.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

#[path = "support/load.rs"]
mod load;
#[path = "support/proxy.rs"]
mod proxy;

use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, Offset, Result, ScheduleOpts, StoreExt};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row};
use alkstore_pg::{PgStore, PgStoreBuilder, PgTx};
use alkstore_suite::pg::{Cluster, ClusterOptions, Shutdown};
use load::{Load, instant, pause, within};
use proxy::{Proxy, When, Wire};

/// How soon after the end of a fault the work has to go on.
const SOON: Duration = Duration::from_secs(5);

const LONG: Duration = Duration::from_secs(20);

/// A schema that is reached past a wire that can be cut, and straight.
struct Fixture {
    cluster: &'static Cluster,
    schema: String,
    proxy: Proxy,
}

impl Fixture {
    async fn new() -> Self {
        let cluster = Cluster::shared();
        let proxy = Proxy::to(cluster.port()).await;
        Self { cluster, schema: cluster.fresh_schema(), proxy }
    }

    /// How to open a store past the wire.
    fn builder(&self) -> PgStoreBuilder {
        let url = self.cluster.url_as("postgres", self.proxy.port);
        PgStore::builder(&url).schema(&self.schema).max_connections(4).safety_poll(None)
    }

    async fn open(&self) -> PgStore {
        self.builder().connect().await.unwrap()
    }

    /// A store that no fault of the wire touches.
    async fn straight(&self) -> PgStore {
        let builder = PgStore::builder(&self.cluster.url()).schema(&self.schema);
        builder.max_connections(2).safety_poll(None).connect().await.unwrap()
    }
}

async fn sql(url: &str, sql: impl Into<String>) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let rows = connection.fetch_all(AssertSqlSafe(sql.into())).await.unwrap();
    rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default()
}

async fn ready(store: &PgStore, queue: &str) -> u64 {
    store.queue(queue).unwrap().stats().await.unwrap().ready
}

/// Uses the store until it answers again.
async fn works_again(store: &PgStore) {
    let queue = store.queue("after the fault").unwrap();
    within(SOON, async {
        while let Err(error) = queue.enqueue(&1).await {
            assert!(
                matches!(error, Error::Unavailable { .. } | Error::CommitUnknown { .. }),
                "{error:?}"
            );
            pause(Duration::from_millis(20)).await;
        }
    })
    .await;
}

fn unknown<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::CommitUnknown { .. })), "{result:?}");
}

fn unavailable<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::Unavailable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::Engine { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_commit_that_is_cut_off_is_of_unknown_outcome() {
    let f = Fixture::new().await;
    let (store, straight) = (f.open().await, f.straight().await);
    let (queue, stream) = (store.queue("q").unwrap(), store.stream("s").unwrap());
    for (when, jobs) in [(When::Before, 0), (When::After, 1)] {
        let mut tx = store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
        stream.publish_tx(&mut tx, &1, Default::default()).await.unwrap();
        f.proxy.cut_at("COMMIT", when);
        unknown(within(LONG, tx.commit()).await);
        assert_eq!(ready(&straight, "q").await, jobs, "{when:?}");
        let events = straight.stream("s").unwrap().read(Offset::START, 10).await.unwrap();
        assert_eq!(events.len() as u64, jobs, "{when:?}");
        works_again(&store).await;
    }
    assert_eq!(f.proxy.sprung(), 2);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_write_that_is_cut_off_is_of_unknown_outcome() {
    let f = Fixture::new().await;
    let (store, straight) = (f.open().await, f.straight().await);
    let queue = store.queue("q").unwrap();
    // Its statements are prepared by now: what is cut is the write itself.
    queue.enqueue(&"before").await.unwrap();
    for (when, jobs) in [(When::Before, 1), (When::After, 2)] {
        f.proxy.cut_at("cut here", when);
        unknown(within(LONG, queue.enqueue(&"cut here")).await);
        assert_eq!(ready(&straight, "q").await, jobs, "{when:?}");
        works_again(&store).await;
    }
    assert_eq!(f.proxy.sprung(), 2);
}

#[tokio::test]
async fn a_read_that_is_cut_off_is_unavailable() {
    let f = Fixture::new().await;
    let store = f.open().await;
    let queue = store.queue("cut here").unwrap();
    queue.stats().await.unwrap();
    for when in [When::Before, When::After] {
        f.proxy.cut_at("cut here", when);
        unavailable(within(LONG, queue.stats()).await);
        within(SOON, queue.stats()).await.unwrap();
    }
    assert_eq!(f.proxy.sprung(), 2);
}

#[tokio::test]
async fn what_a_transaction_stages_on_a_cut_connection_is_undone() {
    let f = Fixture::new().await;
    let (store, straight) = (f.open().await, f.straight().await);
    let queue = store.queue("q").unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    f.proxy.set(Wire::Cut);
    unavailable(within(LONG, queue.enqueue_tx(&mut tx, &2, EnqueueOpts::new())).await);
    f.proxy.set(Wire::Sound);
    let error = queue.enqueue_tx(&mut tx, &3, EnqueueOpts::new()).await;
    refused(error);
    refused(tx.commit().await);
    assert_eq!(ready(&straight, "q").await, 0);
    works_again(&store).await;
}

/// Ends every connection of a store, which is told by its name.
async fn terminate(application: &str) -> i64 {
    let ended = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = '{application}' AND pid <> pg_backend_pid()"
    );
    sql(&Cluster::shared().url(), ended).await
}

fn named(application: &str) -> String {
    format!("{}?application_name={application}", Cluster::shared().url())
}

#[tokio::test]
async fn a_listener_whose_connection_ended_says_so_and_goes_on() {
    let f = Fixture::new().await;
    let store = PgStore::builder(&named("listening")).schema(&f.schema).safety_poll(None);
    let (store, other) = (store.connect().await.unwrap(), f.straight().await);
    let mut listener = store.listen("c").await.unwrap();
    other.notify("c", &1).await.unwrap();
    let first = within(LONG, listener.recv()).await.unwrap().unwrap();
    assert_eq!(first.payload.as_str(), "1");
    for round in 2..5 {
        assert!(terminate("listening").await > 0);
        let gap = within(SOON, listener.recv()).await.unwrap();
        assert!(matches!(gap, Err(Error::Lagged { missed: 0 })), "{gap:?}");
        other.notify("c", &round).await.unwrap();
        let next = within(LONG, listener.recv()).await.unwrap().unwrap();
        assert_eq!(next.payload.as_str(), round.to_string());
    }
    store.close().await.unwrap();
}

/// Calls again where a connection was lost in the middle of a call.
async fn on_and_on<T, F: Future<Output = Result<T>>>(call: impl Fn() -> F) -> T {
    loop {
        match call().await {
            Ok(value) => return value,
            Err(Error::Unavailable { .. } | Error::CommitUnknown { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn waiters_whose_connection_ended_miss_nothing() {
    let f = Fixture::new().await;
    let store = PgStore::builder(&named("waiting")).schema(&f.schema).safety_poll(None);
    let (store, other) = (store.connect().await.unwrap(), f.straight().await);
    let mut events = store.stream("s").unwrap().subscribe(Offset::START).await.unwrap();
    for round in 0..3 {
        let (queue, locking) = (store.queue("q").unwrap(), store.clone());
        let waiting = tokio::spawn(async move { on_and_on(|| queue.next("w")).await });
        let held = other.lock("l", "other", LONG).await.unwrap();
        let locked =
            tokio::spawn(async move { on_and_on(|| locking.lock("l", "waiter", LONG)).await });
        pause(Duration::from_millis(50)).await;
        assert!(terminate("waiting").await > 0);
        // Sent while nobody listens.
        other.queue("q").unwrap().enqueue(&round).await.unwrap();
        other.stream("s").unwrap().publish(&round).await.unwrap();
        held.release().await.unwrap();
        let mut job = within(SOON, waiting).await.unwrap();
        job.ack().await.unwrap();
        let event = within(SOON, async {
            loop {
                match events.recv().await.unwrap() {
                    Ok(event) => return event,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        })
        .await;
        assert_eq!(event.payload.as_str(), round.to_string());
        within(SOON, locked).await.unwrap().release().await.unwrap();
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn work_goes_on_while_connections_are_ended() {
    let f = Fixture::new().await;
    let open =
        || PgStore::builder(&named("working")).schema(&f.schema).max_connections(4).connect();
    let stores = [open().await.unwrap(), open().await.unwrap()];
    let load = Load::start(&stores, f.cluster.url()).await;
    load.progress(20, LONG).await;
    for _ in 0..10 {
        terminate("working").await;
        pause(Duration::from_millis(200)).await;
    }
    load.progress(20, SOON).await;
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_after_the_server_crashed() {
    let cluster = Cluster::start(ClusterOptions::new());
    let open = || PgStore::builder(&cluster.url()).max_connections(4).connect();
    let stores = [open().await.unwrap(), open().await.unwrap()];
    let mut listener = stores[0].listen("c").await.unwrap();
    let load = Load::start(&stores, cluster.url()).await;
    load.progress(20, LONG).await;
    for how in [Shutdown::Immediate, Shutdown::Fast, Shutdown::Immediate] {
        // It waits for the server, and what runs beside it has to meet the server's end.
        tokio::task::block_in_place(|| cluster.restart(how));
        let took = load.progress(20, SOON).await;
        println!("{how:?}: {took:?} from its end to 20 jobs done");
        let gap = within(SOON, listener.recv()).await.unwrap();
        assert!(matches!(gap, Err(Error::Lagged { missed: 0 })), "{gap:?}");
    }
    load.finish().await;
    for store in stores {
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn work_goes_on_after_a_stall() {
    let f = Fixture::new().await;
    let open = || f.builder().operation_timeout(Duration::from_secs(3)).connect();
    let stores = [open().await.unwrap(), open().await.unwrap()];
    let load = Load::start(&stores, f.cluster.url()).await;
    load.progress(20, LONG).await;
    f.proxy.set(Wire::Stalled);
    pause(Duration::from_secs(30)).await;
    f.proxy.set(Wire::Sound);
    let took = load.progress(20, SOON).await;
    println!("{took:?} from its end to 20 jobs done");
    load.finish().await;
}

#[tokio::test]
async fn no_call_hangs_on_a_half_open_connection() {
    let f = Fixture::new().await;
    let timeout = Duration::from_secs(3);
    let store = f.builder().operation_timeout(timeout).connect().await.unwrap();
    let queue = store.queue("q").unwrap();
    let id = queue.enqueue(&1).await.unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &2, EnqueueOpts::new()).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().unwrap();
    // Two more connections that are known to be sound.
    tokio::try_join!(queue.stats(), queue.get_job(id)).unwrap();
    f.proxy.set(Wire::Stalled);
    let began = instant();
    let (commit, ack, enqueue, read) = within(3 * timeout, async {
        tokio::join!(tx.commit(), job.ack(), queue.enqueue(&3), queue.stats())
    })
    .await;
    println!("after {:?}: {commit:?}, {ack:?}, {enqueue:?}, {read:?}", began.elapsed());
    // Where nothing that commits was sent yet, that is known.
    for written in [commit.map(drop), ack.map(drop), enqueue.map(drop)] {
        let cut = matches!(written, Err(Error::CommitUnknown { .. } | Error::Unavailable { .. }));
        assert!(cut, "{written:?}");
    }
    unavailable(read);
    f.proxy.set(Wire::Sound);
    works_again(&store).await;
    within(SOON, store.close()).await.unwrap();
}

#[tokio::test]
async fn a_listener_on_a_half_open_connection_finds_out() {
    let f = Fixture::new().await;
    let store = f.builder().operation_timeout(Duration::from_secs(3)).connect().await.unwrap();
    let mut listener = store.listen("c").await.unwrap();
    f.proxy.set(Wire::Stalled);
    pause(Duration::from_secs(6)).await;
    // What stalled is gone for good, as behind a router that has forgotten it.
    f.proxy.set(Wire::Cut);
    f.proxy.set(Wire::Sound);
    let gap = within(SOON, listener.recv()).await.unwrap();
    assert!(matches!(gap, Err(Error::Lagged { missed: 0 })), "{gap:?}");
    f.straight().await.notify("c", &1).await.unwrap();
    assert_eq!(within(SOON, listener.recv()).await.unwrap().unwrap().payload.as_str(), "1");
}

#[tokio::test]
async fn a_commit_of_an_aborted_transaction_is_an_error() {
    let f = Fixture::new().await;
    let store = f.open().await;
    let queue = store.queue("q").unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    let own = tx.engine::<PgTx>().unwrap();
    own.connection().execute("SELECT 1 / 0").await.unwrap_err();
    refused(tx.commit().await);
    assert_eq!(ready(&store, "q").await, 0);

    // A deferred constraint of the application's fails at the commit itself.
    sql(
        &f.cluster.url(),
        format!(
            r#"CREATE TABLE "{0}".parents (id int PRIMARY KEY);
            CREATE TABLE "{0}".children (id int REFERENCES "{0}".parents
                DEFERRABLE INITIALLY DEFERRED)"#,
            f.schema
        ),
    )
    .await;
    let mut tx = store.begin_tx().await.unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    let orphan = format!(r#"INSERT INTO "{}".children VALUES (1)"#, f.schema);
    let own = tx.engine::<PgTx>().unwrap();
    own.connection().execute(AssertSqlSafe(orphan)).await.unwrap();
    refused(tx.commit().await);
    assert_eq!(ready(&store, "q").await, 0);
    works_again(&store).await;
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable_at_open() {
    let f = Fixture::new().await;
    f.proxy.set(Wire::Cut);
    let opening = f.builder().connect();
    let error = unavailable(within(LONG, opening).await);
    assert!(!error.contains("password"), "{error}");
    // Nobody listens there at all.
    let url = f.cluster.url_as("postgres", 1);
    let opening = PgStore::builder(&url).operation_timeout(Duration::from_secs(1)).connect();
    unavailable(within(LONG, opening).await);
    f.proxy.set(Wire::Sound);
    works_again(&f.open().await).await;
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_repeated() {
    let f = Fixture::new().await;
    let url = f.cluster.url();
    sql(
        &url,
        "CREATE ROLE with_password NOLOGIN;
        CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right horse' IN ROLE with_password",
    )
    .await;
    let open = |password: &str| {
        let user = format!("guarded:{password}");
        let url = f.cluster.url_as(&user, f.cluster.port());
        let builder = PgStore::builder(&url).schema(&f.schema);
        assert!(!format!("{builder:?}").contains("horse"), "{builder:?}");
        builder
    };
    let error = open("wrong%20horse").connect().await.unwrap_err();
    assert!(!format!("{error:?} {error}").contains("horse"), "{error:?}");
    assert!(refused(Err::<(), _>(error)).contains("password"));
    let store = open("right%20horse").connect().await.unwrap();
    assert!(!format!("{store:?}").contains("horse"), "{store:?}");
    works_again(&store).await;
}

#[tokio::test]
async fn missing_privileges_are_named() {
    let f = Fixture::new().await;
    let url = f.cluster.url();
    sql(&url, "CREATE ROLE powerless LOGIN; CREATE ROLE reader LOGIN").await;
    let open = |role: &str| {
        PgStore::builder(&f.cluster.url_as(role, f.cluster.port())).schema(&f.schema).connect()
    };
    let error = refused(open("powerless").await);
    assert!(error.contains("privileges"), "{error}");
    let store = f.open().await;
    let error = refused(open("powerless").await);
    assert!(error.contains("privileges"), "{error}");
    // Enough to open it, and not to write.
    sql(
        &url,
        format!(
            r#"GRANT USAGE ON SCHEMA "{0}" TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA "{0}" TO reader"#,
            f.schema
        ),
    )
    .await;
    let reader = open("reader").await.unwrap();
    let error = refused(reader.queue("q").unwrap().enqueue(&1).await);
    assert!(error.contains("privileges"), "{error}");
    reader.queue("q").unwrap().stats().await.unwrap();
    works_again(&store).await;
    // All that it takes to use a schema that is there.
    sql(
        &url,
        format!(
            r#"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{0}" TO reader;
            GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{0}" TO reader"#,
            f.schema
        ),
    )
    .await;
    works_again(&reader).await;
    let stream = reader.stream("s").unwrap();
    let mut tx = reader.begin_tx().await.unwrap();
    stream.publish_tx(&mut tx, &1, Default::default()).await.unwrap();
    tx.notify_tx("c", &1).await.unwrap();
    tx.commit().await.unwrap();
    let mut job = within(SOON, reader.queue("after the fault").unwrap().next("w")).await.unwrap();
    job.ack().await.unwrap();
    stream.consumer("c").unwrap().save_offset(Offset::stored(1)).await.unwrap();
    reader.lock("l", "o", LONG).await.unwrap().release().await.unwrap();
    reader.schedule("s", "@every 1h", "q", &1, ScheduleOpts::new()).await.unwrap();
    sql(
        &f.cluster.url_as("reader", f.cluster.port()),
        format!(r#"SELECT "{}".enqueue('q', '1')"#, f.schema),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_unavailable_until_it_is_promoted() {
    let cluster = Cluster::start(ClusterOptions::new());
    let store = PgStore::builder(&cluster.url()).safety_poll(None).connect().await.unwrap();
    let queue = store.queue("q").unwrap();
    let id = queue.enqueue(&1).await.unwrap();
    tokio::task::block_in_place(|| cluster.demote());
    let error = within(LONG, async {
        loop {
            match queue.enqueue(&2).await {
                Err(Error::Unavailable { message, .. }) if message.contains("read-only") => {
                    return message;
                }
                Err(Error::Unavailable { .. } | Error::CommitUnknown { .. }) => {}
                other => panic!("{other:?}"),
            }
            pause(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(error.contains("stands by"), "{error}");
    // What is there can be read, and a store can be opened.
    assert!(queue.get_job(id).await.unwrap().is_some());
    let second = PgStore::builder(&cluster.url()).safety_poll(None).connect().await.unwrap();
    assert!(second.queue("q").unwrap().get_job(id).await.unwrap().is_some());
    tokio::task::block_in_place(|| cluster.promote());
    works_again(&store).await;
    works_again(&second).await;
    let job = within(SOON, second.queue("q").unwrap().next("w")).await.unwrap();
    assert_eq!(job.id(), id);
}

#[tokio::test]
async fn a_statement_that_the_server_times_out_is_unavailable() {
    let f = Fixture::new().await;
    let store = f.builder().operation_timeout(Duration::from_secs(3)).connect().await.unwrap();
    let queue = store.queue("q").unwrap();
    let id = queue.enqueue(&1).await.unwrap();
    let slow = format!(
        r#"CREATE FUNCTION "{0}".slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(60); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE INSERT ON "{0}".jobs
            FOR EACH ROW EXECUTE FUNCTION "{0}".slow()"#,
        f.schema
    );
    sql(&f.cluster.url(), slow).await;
    // The server says so before anybody has to guess what became of it.
    let error = unavailable(within(LONG, queue.enqueue(&2)).await);
    assert!(error.contains("statement timeout"), "{error}");
    // Its connection is as good as before.
    assert!(queue.get_job(id).await.unwrap().is_some());
    sql(&f.cluster.url(), format!(r#"DROP TRIGGER slow ON "{}".jobs"#, f.schema)).await;
    works_again(&store).await;
    assert_eq!(ready(&store, "q").await, 1);
}

#[tokio::test]
async fn a_lock_that_is_held_for_too_long_is_unavailable() {
    let f = Fixture::new().await;
    let store = f.builder().lock_timeout(Duration::from_secs(20));
    let store = store.operation_timeout(Duration::from_secs(1)).connect().await.unwrap();
    let queue = store.queue("q").unwrap();
    queue.enqueue(&1).await.unwrap();
    // Nobody is waited for longer than the server takes to answer.
    let mut holder = PgConnection::connect(&f.cluster.url()).await.unwrap();
    let lock = format!(r#"BEGIN; LOCK TABLE "{}".jobs"#, f.schema);
    holder.execute(AssertSqlSafe(lock)).await.unwrap();
    unavailable(within(LONG, queue.enqueue(&2)).await);
    unavailable(within(LONG, queue.stats()).await);
    holder.execute("ROLLBACK").await.unwrap();
    works_again(&store).await;
    assert_eq!(ready(&store, "q").await, 1);
}

#[tokio::test]
async fn a_server_without_room_is_unavailable() {
    let cluster = Cluster::start(
        ClusterOptions::new()
            .setting("max_connections", "6")
            .setting("superuser_reserved_connections", "0"),
    );
    let builder = |most| {
        let lock_timeout = Duration::from_secs(1);
        PgStore::builder(&cluster.url()).lock_timeout(lock_timeout).max_connections(most)
    };
    let store = builder(2).connect().await.unwrap();
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnection::connect(&cluster.url()).await {
        taken.push(connection);
    }
    let error = unavailable(within(LONG, builder(1).connect()).await);
    assert!(error.contains("too many"), "{error}");
    // It has what it has.
    works_again(&store).await;
    taken.clear();
    let late = within(SOON, async {
        loop {
            match builder(1).connect().await {
                Ok(store) => return store,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    })
    .await;
    works_again(&late).await;
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused() {
    let f = Fixture::new().await;
    f.open().await.close().await.unwrap();
    let newer =
        format!(r#"UPDATE "{}".meta SET value = value + 1 WHERE key = 'schema_version'"#, f.schema);
    sql(&f.cluster.url(), newer).await;
    let error = refused(f.builder().connect().await);
    assert!(error.contains("update alkstore"), "{error}");
}

//! The Postgres engine as a column of the suite: a schema of the process's cluster for each row.
#![allow(clippy::expect_used, clippy::panic, reason = "without it there is no test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use alkstore_core::{BoxFuture, Result, Store, Timestamp};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{self, AssertSqlSafe, Connection, Executor};
use alkstore_pg::{PgData, PgStore};
use alkstore_suite::pg::Cluster;
use alkstore_suite::{Capabilities, Data, OpenOptions, StoreFactory};
use async_trait::async_trait;

use crate::bouncer::Bouncer;

/// How the stores of a column are opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PgFactory {
    /// How many connections a store has.
    pub(crate) connections: u32,
    /// By how many hours the clock of this process is ahead of the server's. What the engine does
    /// may not depend on it.
    pub(crate) client_ahead: i64,
    /// Whether a pooler stands in between, past which the stores listen.
    pub(crate) pooled: bool,
    /// Whether claims find out what they may pass over, as they do where dead rows make them slow.
    pub(crate) floors: bool,
}

impl PgFactory {
    pub(crate) const fn new(connections: u32) -> Self {
        Self { connections, client_ahead: 0, pooled: false, floors: false }
    }
}

#[async_trait]
impl StoreFactory for PgFactory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            multi_process: true,
            unwinds: cfg!(panic = "unwind"),
            one_writer: false,
            one_connection: self.connections == 1,
        }
    }

    async fn fresh(&self) -> Arc<dyn Data> {
        Arc::new(Fresh::new(*self))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    fn waits_in_real_time(&self) -> bool {
        true
    }

    #[expect(clippy::disallowed_methods, reason = "the suite's own waits are in real time")]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A schema with a clock of its own, which stands still until it is moved.
pub(crate) struct Fresh {
    factory: PgFactory,
    pub(crate) schema: String,
    stores: Mutex<Vec<PgData>>,
    clock: tokio::sync::Mutex<Option<PgConnection>>,
    is_set: AtomicBool,
}

/// SQL after which claims find themselves slow, or not, and believe for so long what they found out.
pub(crate) fn slow_claims(schema: &str, slow: bool, believed: Duration) -> String {
    let believed = believed.as_millis();
    format!(
        r#"CREATE OR REPLACE FUNCTION "{schema}".took_long(p_since timestamptz, p_jobs bigint)
            RETURNS boolean LANGUAGE sql VOLATILE AS $$ SELECT {slow} $$;
        CREATE OR REPLACE FUNCTION "{schema}".believed_ms(p_floors bigint[]) RETURNS bigint
            LANGUAGE sql IMMUTABLE AS $$ SELECT {believed}::bigint $$;"#
    )
}

impl Fresh {
    pub(crate) fn new(factory: PgFactory) -> Self {
        Self {
            factory,
            schema: Cluster::shared().fresh_schema(),
            stores: Mutex::default(),
            clock: tokio::sync::Mutex::new(None),
            is_set: AtomicBool::new(false),
        }
    }

    pub(crate) async fn open_pg(&self, options: OpenOptions) -> Result<PgStore> {
        let straight = Cluster::shared().url();
        let builder = if self.factory.pooled {
            PgStore::builder(&Bouncer::shared().url).pooled(true).listen_url(straight)
        } else {
            PgStore::builder(&straight)
        };
        let mut builder = builder.schema(&self.schema).max_connections(self.factory.connections);
        if !options.safety_poll {
            builder = builder.safety_poll(None);
        }
        if let Some(limit) = options.payload_limit {
            builder = builder.payload_limit(limit);
        }
        if let Some(timeout) = options.lock_timeout {
            builder = builder.lock_timeout(timeout);
        }
        if let Some(limits) = options.listener {
            builder = builder.listener_limits(limits);
        }
        let store = builder.connect().await?;
        let first = !self.is_set.load(Ordering::SeqCst);
        if first {
            self.stop_clock().await;
        }
        let data = store.data();
        // It may have read the server's own clock when it was opened.
        data.set_clock(self.clock_us().await);
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(data);
        Ok(store)
    }

    /// The clock is a sequence from here on, which no transaction's snapshot holds back.
    #[expect(clippy::disallowed_methods, reason = "the clock that the engine must not read")]
    async fn stop_clock(&self) {
        let client = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let client = i64::try_from(client.expect("a year after 1970").as_micros());
        let server =
            client.expect("a year before 294,247") - self.factory.client_ahead * 3_600_000_000;
        // On a whole millisecond, so that rows can hit instants exactly.
        let server = server / 1000 * 1000;
        let sql = format!(
            r#"CREATE SEQUENCE "{0}".test_clock;
            SELECT setval('"{0}".test_clock', {server});
            CREATE OR REPLACE FUNCTION "{0}".clock_us() RETURNS bigint LANGUAGE sql VOLATILE AS
                $$ SELECT pg_sequence_last_value('"{0}".test_clock'::regclass) $$;"#,
            self.schema
        );
        self.run(sql).await;
        if self.factory.floors {
            self.run(slow_claims(&self.schema, true, Duration::ZERO)).await;
        }
        self.is_set.store(true, Ordering::SeqCst);
    }

    async fn clock_us(&self) -> i64 {
        let clock = format!(r#"'"{}".test_clock'::regclass"#, self.schema);
        self.run(format!("SELECT pg_sequence_last_value({clock})")).await
    }

    /// Runs SQL and gives the first number of its result, where it has one.
    async fn run(&self, sql: String) -> i64 {
        let mut connection = self.clock.lock().await;
        let connection = match &mut *connection {
            Some(connection) => connection,
            none => none.insert(connect().await),
        };
        let rows = connection.fetch_all(AssertSqlSafe(sql)).await.expect("the clock's own SQL");
        rows.first().and_then(|row| sqlx::Row::try_get(row, 0).ok()).unwrap_or_default()
    }
}

/// A connection to the cluster for a test's own SQL.
pub(crate) async fn connect() -> PgConnection {
    PgConnection::connect(&Cluster::shared().url()).await.expect("the cluster lets tests in")
}

impl Drop for Fresh {
    fn drop(&mut self) {
        /// Drops schemas, beside the tests: theirs may hold up nobody, and a runtime that is
        /// about to end can't do it.
        static DROPS: LazyLock<Mutex<Sender<String>>> = LazyLock::new(|| {
            let (sender, schemas) = channel::<String>();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    let mut connection = connect().await;
                    for schema in schemas {
                        // What a test has left open may hold it; it goes with the cluster then.
                        let sql = format!(
                            r#"SET lock_timeout = '1s'; DROP SCHEMA IF EXISTS "{schema}" CASCADE"#
                        );
                        let _ = connection.execute(AssertSqlSafe(sql)).await;
                    }
                });
            });
            Mutex::new(sender)
        });
        let drops = DROPS.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = drops.send(self.schema.clone());
    }
}

#[async_trait]
impl Data for Fresh {
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.open_pg(options).await?))
    }

    async fn advance(&self, by: Duration) {
        let us = i64::try_from(by.as_micros()).expect("a row moves the clock by less");
        let clock = format!(r#"'"{}".test_clock'::regclass"#, self.schema);
        let moved = format!("SELECT setval({clock}, pg_sequence_last_value({clock}) + {us})");
        let us = self.run(moved).await;
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for store in stores {
            store.set_clock(us);
        }
    }

    async fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock_us().await / 1000)
    }

    fn location(&self) -> Option<String> {
        Some(format!("{}?schema={}", Cluster::shared().url(), self.schema.replace(' ', "%20")))
    }
}

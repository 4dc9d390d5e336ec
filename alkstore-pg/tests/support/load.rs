//! Producers and workers that go on through faults, and leave a witness of what they did.
//!
//! A job's effect is a row that is written in the transaction that acks it. So nothing is lost
//! where every job that was enqueued for sure has one, and nothing is settled twice where none has
//! two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alkstore_core::{Error, Queue, QueueOpts, Result, StoreExt};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row};
use alkstore_pg::{PgStore, PgTx};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

/// What went wrong comes again after so long.
const PAUSE: Duration = Duration::from_millis(20);

/// A claim that a fault took its worker from comes again after so long.
const VISIBILITY: Duration = Duration::from_secs(2);

/// How long all of it may take to come to rest.
const REST: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "faults are of real time")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[expect(clippy::disallowed_methods, reason = "faults are of real time")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("it takes over {limit:?}"))
}

/// Two producers and four workers on a queue.
pub(crate) struct Load {
    /// Past every fault but the server's own.
    url: String,
    schema: String,
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Numbers whose enqueue returned Ok.
    enqueued: Mutex<BTreeSet<u64>>,
    last: AtomicU64,
    producing: AtomicBool,
    working: AtomicBool,
    /// What was heard, and how often.
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Shared {
    /// Passes over what a loop that owns its work goes on after.
    fn hear(&self, error: &Error) {
        let kind = match error {
            Error::Unavailable { .. } => "Unavailable",
            Error::CommitUnknown { .. } => "CommitUnknown",
            Error::ClaimLost { .. } => "ClaimLost",
            other => panic!("no fault excuses this: {other:?}"),
        };
        *self.errors.lock().entry(kind).or_default() += 1;
    }
}

fn queue(store: &PgStore) -> Queue {
    let opts = QueueOpts::new().visibility_timeout(VISIBILITY).max_attempts(10_000);
    store.queue_with("load", opts).expect("a name")
}

async fn produce(store: PgStore, shared: Arc<Shared>) {
    let queue = queue(&store);
    while shared.producing.load(Ordering::SeqCst) {
        let number = shared.last.fetch_add(1, Ordering::SeqCst);
        match queue.enqueue(&number).await {
            Ok(_) => {
                shared.enqueued.lock().insert(number);
            }
            Err(error) => {
                shared.hear(&error);
                pause(PAUSE).await;
            }
        }
        pause(Duration::from_millis(2)).await;
    }
}

async fn work(store: PgStore, shared: Arc<Shared>, name: String) {
    let queue = queue(&store);
    while shared.working.load(Ordering::SeqCst) {
        let Ok(next) = tokio::time::timeout(Duration::from_secs(1), queue.next(&name)).await else {
            continue;
        };
        let done = match next {
            Ok(job) => settle(&store, job).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            shared.hear(&error);
            pause(PAUSE).await;
        }
    }
}

async fn settle(store: &PgStore, mut job: alkstore_core::Job) -> Result<()> {
    let effect = format!(
        r#"INSERT INTO "{}".effects (number, job) VALUES ({}, {})"#,
        store.schema(),
        job.payload().as_str(),
        job.id()
    );
    store
        .with_tx(|tx| {
            Box::pin(async {
                let own = tx.engine::<PgTx>().expect("this store's transaction");
                if let Err(error) = own.connection().execute(AssertSqlSafe(effect)).await {
                    // Whatever it was, nothing of it is committed.
                    return Err(Error::unavailable(error.to_string()));
                }
                job.ack_tx(tx).await
            })
        })
        .await
}

impl Load {
    /// Begins to work with stores that are opened at one address, and to look on at another.
    pub(crate) async fn start(stores: &[PgStore], url: String) -> Self {
        let shared = Arc::new(Shared::default());
        shared.producing.store(true, Ordering::SeqCst);
        shared.working.store(true, Ordering::SeqCst);
        let schema = stores[0].schema().to_owned();
        let load = Self { url, schema: schema.clone(), shared: shared.clone(), tasks: Vec::new() };
        let table = format!(r#"CREATE TABLE "{schema}".effects (number bigint, job bigint)"#);
        load.connect().await.execute(AssertSqlSafe(table)).await.expect("the witness's table");
        let mut tasks = Vec::new();
        for (index, store) in stores.iter().cycle().take(6).enumerate() {
            tasks.push(if index < 2 {
                tokio::spawn(produce(store.clone(), shared.clone()))
            } else {
                tokio::spawn(work(store.clone(), shared.clone(), format!("worker {index}")))
            });
        }
        Self { tasks, ..load }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("the server is there")
    }

    async fn effects(&self) -> u64 {
        let count = format!(r#"SELECT count(*) FROM "{}".effects"#, self.schema);
        let row = self.connect().await.fetch_one(AssertSqlSafe(count)).await.expect("a count");
        row.get::<i64, _>(0).unsigned_abs()
    }

    /// Waits for so many more effects, and says how long that took.
    pub(crate) async fn progress(&self, more: u64, limit: Duration) -> Duration {
        let began = instant();
        let goal = self.effects().await + more;
        within(limit, async {
            while self.effects().await < goal {
                pause(Duration::from_millis(10)).await;
            }
        })
        .await;
        began.elapsed()
    }

    /// Lets the work come to an end and looks at what the witness says.
    pub(crate) async fn finish(self) {
        self.shared.producing.store(false, Ordering::SeqCst);
        let left = format!(r#"SELECT count(*) FROM "{}".jobs"#, self.schema);
        within(REST, async {
            let mut connection = self.connect().await;
            while connection.fetch_one(AssertSqlSafe(left.clone())).await.unwrap().get::<i64, _>(0)
                > 0
            {
                pause(Duration::from_millis(20)).await;
            }
        })
        .await;
        self.shared.working.store(false, Ordering::SeqCst);
        for task in self.tasks {
            within(REST, task).await.expect("no task has failed");
        }
        let effects = format!(r#"SELECT number FROM "{}".effects"#, self.schema);
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        let effects = connection.fetch_all(AssertSqlSafe(effects)).await.unwrap();
        let mut times = BTreeMap::<u64, u64>::new();
        for row in effects {
            *times.entry(row.get::<i64, _>(0).unsigned_abs()).or_default() += 1;
        }
        let enqueued = self.shared.enqueued.lock();
        let lost: Vec<_> = enqueued.iter().filter(|number| !times.contains_key(number)).collect();
        assert!(lost.is_empty(), "enqueued and lost: {lost:?}");
        let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "settled more than once: {twice:?}");
        let (errors, total) = (self.shared.errors.lock(), times.len());
        println!("{total} jobs, {} enqueued for sure; heard {errors:?}", enqueued.len());
    }
}

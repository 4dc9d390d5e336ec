//! Nothing is skipped: streams are contiguous and in the order of commits, whoever publishes to
//! them, in whatever order, and for however long.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what is not as it should be fails the test"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use alkstore_core::{Offset, PublishOpts, StoreExt, Tx};
use alkstore_pg::PgStore;
use alkstore_pg::sqlx::postgres::{PgConnection, PgPool, PgPoolOptions, Postgres};
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row, Transaction};
use alkstore_suite::pg::Cluster;

/// Nothing here waits for anybody for longer.
const PROMPT: Duration = Duration::from_secs(5);

const LONG: Duration = Duration::from_secs(60);

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("it takes over {limit:?}"))
}

async fn open(schema: &str) -> PgStore {
    // The server tells by the name whose connections wait.
    let name = schema.replace(' ', "");
    let url = format!("{}?application_name={name}", Cluster::shared().url());
    let builder = PgStore::builder(&url).schema(schema).safety_poll(None);
    builder.max_connections(16).lock_timeout(LONG).connect().await.unwrap()
}

async fn connect() -> PgConnection {
    PgConnection::connect(&Cluster::shared().url()).await.unwrap()
}

/// The place of the last of so many events.
fn place(events: usize) -> i64 {
    i64::try_from(events).unwrap()
}

/// Who publishes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each event by itself.
    Alone,
    /// In a transaction of the store.
    Store,
    /// In a transaction of the application's.
    Attached,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    Drop,
}

/// What one connection does: it publishes to these streams, one after the other, and ends.
#[derive(Debug, Clone, Copy)]
struct Script {
    kind: Kind,
    streams: &'static [&'static str],
    end: End,
}

impl Script {
    fn steps(&self) -> usize {
        self.streams.len() + usize::from(self.kind != Kind::Alone)
    }
}

/// A script that is under way.
struct Session {
    script: Script,
    label: usize,
    done: usize,
    tx: Open,
}

impl Session {
    /// Whether its last step is one that others see.
    fn is_visible(&self) -> bool {
        self.script.kind == Kind::Alone || self.done == self.script.steps()
    }
}

enum Open {
    None,
    Store(Tx<'static>),
    Attached(Transaction<'static, Postgres>),
}

/// What every stream holds, and what each session has staged.
#[derive(Debug, Default)]
struct Model {
    logs: BTreeMap<&'static str, Vec<String>>,
    staged: BTreeMap<usize, Vec<(&'static str, String)>>,
}

struct Scene {
    store: PgStore,
    reader: PgStore,
    own: PgPool,
    /// Tells the streams of one run from those of every other.
    run: usize,
}

impl Scene {
    async fn new() -> Self {
        let schema = Cluster::shared().fresh_schema();
        let url = Cluster::shared().url();
        let own = PgPoolOptions::new().max_connections(4).connect(&url).await.unwrap();
        Self { store: open(&schema).await, reader: open(&schema).await, own, run: 0 }
    }

    fn name(&self, stream: &str) -> String {
        format!("{stream} {}", self.run)
    }

    async fn step(&self, session: &mut Session, model: &mut Model) {
        let Session { script, label, done, tx } = session;
        let Some(&stream) = script.streams.get(*done) else {
            return self.end(session, model).await;
        };
        let payload = format!("{label} {done}");
        let to = self.store.stream(&self.name(stream)).unwrap();
        match script.kind {
            Kind::Alone => {
                let offset = to.publish(&payload).await.unwrap();
                model.logs.entry(stream).or_default().push(payload);
                assert_eq!(offset.get(), place(model.logs[stream].len()));
            }
            Kind::Store => {
                if matches!(tx, Open::None) {
                    *tx = Open::Store(self.store.begin_tx().await.unwrap());
                }
                let Open::Store(tx) = tx else { unreachable!() };
                to.publish_tx(tx, &payload, PublishOpts::new()).await.unwrap();
                model.staged.entry(*label).or_default().push((stream, payload));
            }
            Kind::Attached => {
                if matches!(tx, Open::None) {
                    *tx = Open::Attached(self.own.begin().await.unwrap());
                }
                let Open::Attached(own) = tx else { unreachable!() };
                let mut tx = self.store.attach(own).await.unwrap();
                to.publish_tx(&mut tx, &payload, PublishOpts::new()).await.unwrap();
                tx.commit().await.unwrap();
                model.staged.entry(*label).or_default().push((stream, payload));
            }
        }
        session.done += 1;
    }

    async fn end(&self, session: &mut Session, model: &mut Model) {
        let tx = std::mem::replace(&mut session.tx, Open::None);
        match (tx, session.script.end) {
            (Open::Store(tx), End::Commit) => tx.commit().await.unwrap(),
            (Open::Store(tx), End::Rollback) => tx.rollback().await.unwrap(),
            (Open::Attached(tx), End::Commit) => tx.commit().await.unwrap(),
            (Open::Attached(tx), End::Rollback) => tx.rollback().await.unwrap(),
            (tx, End::Drop) => drop(tx),
            (Open::None, _) => unreachable!(),
        }
        let staged = model.staged.remove(&session.label).unwrap_or_default();
        if session.script.end == End::Commit {
            for (stream, payload) in staged {
                model.logs.entry(stream).or_default().push(payload);
            }
        }
        session.done += 1;
    }

    /// What a reader sees is exactly what is committed.
    async fn check(&self, model: &Model, order: &[usize]) {
        for stream in ["a", "b"] {
            let read = self.reader.stream(&self.name(stream)).unwrap();
            let events = read.read(Offset::START, 100).await.unwrap();
            let texts: Vec<String> = events.iter().map(|e| e.payload.decode().unwrap()).collect();
            let expected = model.logs.get(stream).cloned().unwrap_or_default();
            assert_eq!(texts, expected, "stream {stream}, order {order:?}");
            let places: Vec<_> = events.iter().map(|event| event.offset.get()).collect();
            let contiguous: Vec<_> = (1..).take(places.len()).collect();
            assert_eq!(places, contiguous, "stream {stream}, order {order:?}");
        }
    }

    /// Runs the scripts in one order of their steps.
    async fn run(&mut self, scripts: &[Script], order: &[usize]) {
        self.run += 1;
        let mut model = Model::default();
        let mut sessions: Vec<_> = scripts
            .iter()
            .enumerate()
            .map(|(label, &script)| Session { script, label, done: 0, tx: Open::None })
            .collect();
        for &next in order {
            within(PROMPT, self.step(&mut sessions[next], &mut model)).await;
            if scripts.len() < 3 || sessions[next].is_visible() {
                self.check(&model, order).await;
            }
        }
    }

    /// Runs the scripts in every order of their steps and says how many there were.
    async fn run_all(&mut self, scripts: &[Script]) -> usize {
        let mut orders = Vec::new();
        let mut left: Vec<_> = scripts.iter().map(Script::steps).collect();
        interleave(&mut left, &mut Vec::new(), &mut orders);
        for order in &orders {
            self.run(scripts, order).await;
        }
        orders.len()
    }
}

fn interleave(left: &mut [usize], order: &mut Vec<usize>, orders: &mut Vec<Vec<usize>>) {
    if left.iter().all(|steps| *steps == 0) {
        orders.push(order.clone());
        return;
    }
    for next in 0..left.len() {
        if left[next] > 0 {
            left[next] -= 1;
            order.push(next);
            interleave(left, order, orders);
            order.pop();
            left[next] += 1;
        }
    }
}

const TO_BOTH: &[&str] = &["a", "b"];
const BACKWARD: &[&str] = &["b", "a"];

fn script(kind: Kind, streams: &'static [&'static str], end: End) -> Script {
    Script { kind, streams, end }
}

#[tokio::test]
async fn every_order_of_two_connections_is_contiguous_and_of_commits() {
    let mut scene = Scene::new().await;
    let mut orders = 0;
    for kind in [Kind::Store, Kind::Attached] {
        for end in [End::Commit, End::Rollback, End::Drop] {
            for other in [Kind::Alone, Kind::Store, Kind::Attached] {
                let scripts = [script(kind, TO_BOTH, end), script(other, BACKWARD, End::Commit)];
                orders += scene.run_all(&scripts).await;
            }
        }
    }
    println!("{orders} orders");
    assert_eq!(orders, 6 * (10 + 20 + 20));
}

#[tokio::test]
async fn every_order_of_three_connections_is_contiguous_and_of_commits() {
    let mut scene = Scene::new().await;
    let scripts = [
        script(Kind::Store, TO_BOTH, End::Commit),
        script(Kind::Attached, BACKWARD, End::Commit),
        script(Kind::Alone, &["a"], End::Commit),
    ];
    let mut orders = scene.run_all(&scripts).await;
    let scripts = [
        script(Kind::Store, BACKWARD, End::Rollback),
        script(Kind::Attached, &["a"], End::Commit),
        script(Kind::Store, &["b", "a"], End::Commit),
    ];
    orders += scene.run_all(&scripts).await;
    println!("{orders} orders");
    assert_eq!(orders, 140 + 560);
}

/// Two commits, and a publisher, that wait for the same counters at the same moment.
#[tokio::test]
async fn commits_that_meet_go_one_after_the_other() {
    let scene = Scene::new().await;
    for stream in ["a 0", "b 0"] {
        scene.store.stream(stream).unwrap().publish(&"first").await.unwrap();
    }
    let mut holder = connect().await;
    for (round, held) in ["a 0", "b 0", "a 0", "b 0"].into_iter().enumerate() {
        let mut txs = Vec::new();
        for (label, streams) in [TO_BOTH, BACKWARD].into_iter().enumerate() {
            let mut tx = scene.store.begin_tx().await.unwrap();
            for stream in streams {
                let stream = scene.store.stream(&scene.name(stream)).unwrap();
                let payload = format!("{round} {label}");
                stream.publish_tx(&mut tx, &payload, PublishOpts::new()).await.unwrap();
            }
            txs.push(tx);
        }
        let hold = format!(
            r#"BEGIN; SELECT 1 FROM "{}".streams WHERE name = '{held}' FOR UPDATE"#,
            scene.store.schema()
        );
        holder.execute(AssertSqlSafe(hold)).await.unwrap();
        let commits: Vec<_> = txs.into_iter().map(|tx| tokio::spawn(tx.commit())).collect();
        let alone = scene.store.stream(held).unwrap();
        let alone = tokio::spawn(async move { alone.publish(&"alone").await });
        until_waiting(scene.store.schema(), 3).await;
        holder.execute("COMMIT").await.unwrap();
        for commit in commits {
            within(PROMPT, commit).await.unwrap().unwrap();
        }
        within(PROMPT, alone).await.unwrap().unwrap();
    }
    for stream in ["a 0", "b 0"] {
        let events = scene.reader.stream(stream).unwrap().read(Offset::START, 100).await.unwrap();
        let places: Vec<_> = events.iter().map(|event| event.offset.get()).collect();
        assert_eq!(places, (1..=11).collect::<Vec<_>>(), "4 rounds of 2, 2 alone, the first");
    }
}

/// Waits until so many connections to a schema wait for the lock on a row.
async fn until_waiting(schema: &str, many: i64) {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'
            AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')",
        schema.replace(' ', "")
    );
    let mut connection = connect().await;
    within(PROMPT, async {
        while connection.fetch_one(AssertSqlSafe(waiting.clone())).await.unwrap().get::<i64, _>(0)
            < many
        {
            pause(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[expect(clippy::disallowed_methods, reason = "the server is waited for")]
async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[tokio::test]
async fn open_transactions_delay_nobody() {
    let scene = Scene::new().await;
    let stream = scene.store.stream("a").unwrap();
    // One that has staged, one that has written elsewhere, one that holds an old snapshot.
    let mut staged = scene.store.begin_tx().await.unwrap();
    stream.publish_tx(&mut staged, &"staged", PublishOpts::new()).await.unwrap();
    let mut elsewhere = connect().await;
    elsewhere
        .execute("BEGIN; CREATE TEMP TABLE t (x int); INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    let mut old = connect().await;
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()")
        .await
        .unwrap();
    let mut live = scene.reader.stream("a").unwrap().subscribe(Offset::START).await.unwrap();
    for n in 1..=20 {
        assert_eq!(within(PROMPT, stream.publish(&n)).await.unwrap().get(), n);
        let event = within(PROMPT, live.recv()).await.unwrap().unwrap();
        assert_eq!(event.payload.decode::<i64>().unwrap(), n);
    }
    staged.commit().await.unwrap();
    assert_eq!(within(PROMPT, live.recv()).await.unwrap().unwrap().offset.get(), 21);
    elsewhere.execute("COMMIT").await.unwrap();
    old.execute("COMMIT").await.unwrap();
}

/// A reader that reads on and on: what it has read never changes, and nothing appears behind it.
async fn read_on(store: PgStore, name: &'static str, done: Arc<AtomicBool>) -> Vec<String> {
    let stream = store.stream(name).unwrap();
    let mut seen = Vec::new();
    loop {
        let ended = done.load(Ordering::SeqCst);
        let after = Offset::stored(place(seen.len()));
        let events = stream.read(after, 7).await.unwrap();
        if events.is_empty() && ended {
            break;
        }
        for event in events {
            assert_eq!(event.offset.get(), place(seen.len() + 1), "{name}: skipped");
            seen.push(event.payload.decode::<String>().unwrap());
        }
    }
    let all = stream.read(Offset::START, seen.len() + 1).await.unwrap();
    let all: Vec<String> = all.iter().map(|event| event.payload.decode().unwrap()).collect();
    assert_eq!(all, seen, "{name}: what was read has changed");
    seen
}

const STREAMS: [&str; 3] = ["x", "y", "z"];

/// One of many publishers; it returns what it has committed, by stream.
async fn publish_on(
    store: PgStore,
    own: PgPool,
    label: usize,
) -> BTreeMap<&'static str, Vec<String>> {
    let random = &mut fastrand::Rng::with_seed(label as u64);
    let mut committed = BTreeMap::<_, Vec<_>>::new();
    for round in 0..12 {
        let mut order = STREAMS;
        random.shuffle(&mut order);
        let order = &order[..random.usize(1..=3)];
        let text = |step: usize| format!("{label} {round} {step}");
        let commits = random.u8(0..4) > 0;
        match random.u8(0..3) {
            0 => {
                store.stream(order[0]).unwrap().publish(&text(0)).await.unwrap();
                committed.entry(order[0]).or_default().push(text(0));
                continue;
            }
            1 => {
                let mut tx = store.begin_tx().await.unwrap();
                for (step, name) in order.iter().enumerate() {
                    let stream = store.stream(name).unwrap();
                    stream.publish_tx(&mut tx, &text(step), PublishOpts::new()).await.unwrap();
                    if random.u8(0..4) == 0 {
                        pause(Duration::from_millis(random.u64(1..40))).await;
                    }
                }
                if commits {
                    tx.commit().await.unwrap();
                }
            }
            _ => {
                let mut own = own.begin().await.unwrap();
                for (step, name) in order.iter().enumerate() {
                    let mut tx = store.attach(&mut own).await.unwrap();
                    let stream = store.stream(name).unwrap();
                    stream.publish_tx(&mut tx, &text(step), PublishOpts::new()).await.unwrap();
                }
                if commits {
                    own.commit().await.unwrap();
                } else {
                    own.rollback().await.unwrap();
                }
            }
        }
        if commits {
            for (step, name) in order.iter().enumerate() {
                committed.entry(*name).or_default().push(text(step));
            }
        }
    }
    committed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_publishers_leave_no_gap_and_no_reader_skips() {
    let schema = Cluster::shared().fresh_schema();
    let store = open(&schema).await;
    let own = PgPoolOptions::new().max_connections(16).acquire_timeout(LONG);
    let own = own.connect(&Cluster::shared().url()).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = STREAMS
        .into_iter()
        .map(|name| tokio::spawn(read_on(store.clone(), name, done.clone())))
        .collect();
    let publishers: Vec<_> =
        (0..16).map(|label| tokio::spawn(publish_on(store.clone(), own.clone(), label))).collect();
    let mut committed = BTreeMap::<_, Vec<_>>::new();
    for publisher in publishers {
        for (name, texts) in within(LONG, publisher).await.unwrap() {
            committed.entry(name).or_default().extend(texts);
        }
    }
    done.store(true, Ordering::SeqCst);
    for (name, reader) in STREAMS.into_iter().zip(readers) {
        let mut seen = within(LONG, reader).await.unwrap();
        let mut expected = committed.remove(name).unwrap_or_default();
        assert!(!expected.is_empty());
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected, "{name}");
    }
    let left = format!(
        r#"SELECT 1 FROM "{schema}".staged UNION ALL
        SELECT 1 FROM "{schema}".events WHERE stream < 0"#
    );
    let left = connect().await.fetch_all(AssertSqlSafe(left)).await.unwrap();
    assert!(left.is_empty(), "{} rows that were staged are left", left.len());
}

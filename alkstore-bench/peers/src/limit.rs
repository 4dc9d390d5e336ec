//! What a program reaches that was written for rusqlite and these workloads alone: a table of the
//! same shape without reclaiming, dead letters, expiry, unique keys and headers; one connection
//! behind a mutex, its statements cached, and a writer thread that commits in groups where many
//! enqueue.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use alkstore_bench::handles::{self, QUIET, WAKES, payload_text};
use alkstore_bench::measure::{Reading, now, percentile, wall_micros};
use alkstore_bench::sqlite::{BACKLOG, File};
use alkstore_sqlite::Durability;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use crate::threads;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, state INTEGER NOT NULL,
        at INTEGER NOT NULL, priority INTEGER NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
        max_attempts INTEGER NOT NULL, enqueued_at INTEGER NOT NULL,
        visibility_ms INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0, worker TEXT,
        payload TEXT NOT NULL) STRICT;
    CREATE INDEX ready ON jobs (queue, priority DESC, at, id) WHERE state = 0;
    CREATE INDEX due ON jobs (queue, at, id) WHERE state IN (1, 2);
    CREATE TABLE streams (name TEXT NOT NULL PRIMARY KEY, head INTEGER NOT NULL) STRICT,
        WITHOUT ROWID;
    CREATE TABLE events (
        stream TEXT NOT NULL, offset INTEGER NOT NULL, at INTEGER NOT NULL, key TEXT,
        headers TEXT, payload TEXT NOT NULL, PRIMARY KEY (stream, offset)) STRICT, WITHOUT ROWID;
    INSERT INTO streams VALUES ('s', 0);";

const ENQUEUE: &str = "INSERT INTO jobs
    (queue, state, at, priority, max_attempts, enqueued_at, visibility_ms, payload)
    VALUES (?1, 0, ?2, 0, 3, ?2, 300000, ?3)";

const ENQUEUE_MANY: &str = "INSERT INTO jobs
    (queue, state, at, priority, max_attempts, enqueued_at, visibility_ms, payload)
    SELECT ?1, 0, ?2, 0, 3, ?2, 300000, value FROM json_each(?3)";

const CLAIM: &str = "UPDATE jobs SET state = 2, at = ?2 + visibility_ms, attempt = attempt + 1,
        token = token + 1, worker = ?3
    WHERE id IN (SELECT id FROM jobs WHERE queue = ?1 AND state = 0
        ORDER BY priority DESC, at, id LIMIT ?4)
    RETURNING id, token, attempt, payload";

const ACK: &str = "DELETE FROM jobs WHERE id = ?1 AND token = ?2 AND state = 2 AND at > ?3";

const ACK_MANY: &str = "DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?1))
    AND state = 2 AND at > ?2";

const ADVANCE: &str = "UPDATE streams SET head = head + ?2 WHERE name = ?1 RETURNING head";

const APPEND: &str = "INSERT INTO events (stream, offset, at, payload) VALUES (?1, ?2, ?3, ?4)";

const APPEND_MANY: &str = "INSERT INTO events (stream, offset, at, payload)
    SELECT ?1, ?2 + key + 1, ?3, value FROM json_each(?4)";

const READ: &str = "SELECT offset, at, key, headers, payload FROM events
    WHERE stream = ?1 AND offset > ?2 ORDER BY offset LIMIT ?3";

fn open(path: &Path, durability: Durability) -> anyhow::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.execute_batch(SCHEMA)?;
    conn.pragma_update(None, "synchronous", format!("{durability:?}").to_uppercase())?;
    // As honker has it.
    conn.pragma_update(None, "wal_autocheckpoint", 10_000)?;
    Ok(conn)
}

fn millis() -> i64 {
    i64::try_from(wall_micros() / 1_000).unwrap_or(i64::MAX)
}

fn enqueue_one(conn: &Connection, payload: &str) -> anyhow::Result<i64> {
    conn.prepare_cached(ENQUEUE)?.execute(params!["q", millis(), payload])?;
    Ok(conn.last_insert_rowid())
}

/// A JSON array of strings, each of them a payload.
fn array(count: usize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&vec![payload_text(); count])?)
}

fn enqueue_hundreds(conn: &Connection, calls: usize) -> anyhow::Result<u64> {
    let mut statement = conn.prepare_cached(ENQUEUE_MANY)?;
    for _ in 0..calls {
        statement.execute(params!["q", millis(), array(100)?])?;
    }
    Ok(100 * calls as u64)
}

struct Row {
    id: i64,
    token: i64,
    _attempt: i64,
    _payload: String,
}

fn claim(conn: &Connection, max: usize) -> anyhow::Result<Vec<Row>> {
    let mut statement = conn.prepare_cached(CLAIM)?;
    let rows = statement.query_map(params!["q", millis(), "w", i64::try_from(max)?], |row| {
        let (id, token, _attempt) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Row { id, token, _attempt, _payload: row.get(3)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn ack(conn: &Connection, rows: &[Row]) -> anyhow::Result<u64> {
    let acknowledged = if let [row] = rows {
        conn.prepare_cached(ACK)?.execute(params![row.id, row.token, millis()])?
    } else {
        let ids = serde_json::to_string(&rows.iter().map(|row| row.id).collect::<Vec<_>>())?;
        conn.prepare_cached(ACK_MANY)?.execute(params![ids, millis()])?
    };
    anyhow::ensure!(acknowledged == rows.len());
    Ok(acknowledged as u64)
}

pub fn enqueue(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    let payload = payload_text();
    threads::repeat(1, || Ok(u64::from(enqueue_one(&conn.lock(), &payload)? > 0)))
}

pub fn enqueue_alone(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = open(&file.path(), durability)?;
    let (payload, mut times) = (payload_text(), Vec::new());
    for _ in 0..150 {
        threads::pause(Duration::from_millis(1));
        let start = now();
        enqueue_one(&conn, &payload)?;
        times.push(start.elapsed());
    }
    Ok(Reading::Time(percentile(times, 0.5)))
}

type Wanted = (String, oneshot::Sender<i64>);

/// Where enqueues wait for the next commit.
#[derive(Default)]
struct Inbox {
    waiting: Mutex<(Vec<Wanted>, bool)>,
    arrived: Condvar,
}

impl Inbox {
    async fn enqueue(&self, payload: String) -> anyhow::Result<u64> {
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().0.push((payload, answer));
        self.arrived.notify_one();
        Ok(u64::from(answered.await? > 0))
    }

    /// Commits what waits together; calls what is told of each group.
    fn serve(&self, conn: &Mutex<Connection>, told: impl Fn()) -> anyhow::Result<()> {
        loop {
            let group = {
                let mut waiting = self.waiting.lock();
                while waiting.0.is_empty() {
                    if waiting.1 {
                        return Ok(());
                    }
                    self.arrived.wait(&mut waiting);
                }
                std::mem::take(&mut waiting.0)
            };
            let mut ids = Vec::with_capacity(group.len());
            {
                let conn = conn.lock();
                conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
                for (payload, _) in &group {
                    ids.push(enqueue_one(&conn, payload)?);
                }
                conn.prepare_cached("COMMIT")?.execute([])?;
            }
            for ((_, answer), id) in group.into_iter().zip(ids) {
                let _ = answer.send(id);
            }
            told();
        }
    }

    fn close(&self) {
        self.waiting.lock().1 = true;
        self.arrived.notify_one();
    }
}

/// Many tasks enqueue, and one thread commits for all of them.
pub async fn enqueue_together(durability: Durability, tasks: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Arc::new(Mutex::new(open(&file.path(), durability)?));
    let inbox = Arc::new(Inbox::default());
    let serving = inbox.clone();
    let writer = std::thread::spawn(move || serving.serve(&conn, || {}));
    let (adding, payload) = (inbox.clone(), payload_text());
    let reading = handles::repeat(tasks, move || {
        let (inbox, payload) = (adding.clone(), payload.clone());
        async move { inbox.enqueue(payload).await }
    })
    .await;
    inbox.close();
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    reading
}

pub fn enqueue_many(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    threads::repeat(1, || enqueue_hundreds(&conn.lock(), 1))
}

pub fn drain(durability: Durability, workers: usize, batch: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    let fill = || enqueue_hundreds(&conn.lock(), BACKLOG / 100).map(drop);
    threads::drain(workers, fill, || {
        let mut done = 0;
        loop {
            let claimed = claim(&conn.lock(), batch)?;
            if claimed.is_empty() {
                return Ok(done);
            }
            done += ack(&conn.lock(), &claimed)?;
        }
    })
}

/// Counts what was told, so that nothing is missed between a look and a wait.
#[derive(Default)]
struct Bell {
    rung: Mutex<u64>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock() += 1;
        self.heard.notify_all();
    }

    fn rung(&self) -> u64 {
        *self.rung.lock()
    }

    /// Waits for more than what was rung, or for so long.
    fn wait(&self, seen: u64, most: Duration) {
        let mut rung = self.rung.lock();
        if *rung == seen {
            self.heard.wait_for(&mut rung, most);
        }
    }
}

fn work(
    conn: &Mutex<Connection>,
    bell: &Bell,
    is_over: &dyn Fn() -> bool,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    while !is_over() {
        let seen = bell.rung();
        let claimed = claim(&conn.lock(), 32)?;
        if claimed.is_empty() {
            bell.wait(seen, Duration::from_millis(2));
            continue;
        }
        done.fetch_add(ack(&conn.lock(), &claimed)?, Ordering::SeqCst);
    }
    Ok(())
}

pub fn pipeline(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    let (bell, payload) = (Bell::default(), payload_text());
    let enqueue = || {
        let added = enqueue_one(&conn.lock(), &payload)?;
        bell.ring();
        Ok(u64::from(added > 0))
    };
    threads::pipeline(2, enqueue, |is_over, done| work(&conn, &bell, is_over, done))
}

/// Two producers with many enqueues in flight, committed in groups, and four workers.
pub async fn pipeline_together(
    durability: Durability,
    in_flight: usize,
) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Arc::new(Mutex::new(open(&file.path(), durability)?));
    let (inbox, bell) = (Arc::new(Inbox::default()), Arc::new(Bell::default()));
    let (done, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (inbox, conn, bell) = (inbox.clone(), conn.clone(), bell.clone());
        std::thread::spawn(move || inbox.serve(&conn, || bell.ring()))
    };
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (conn, bell, done, over) = (conn.clone(), bell.clone(), done.clone(), over.clone());
            std::thread::spawn(move || work(&conn, &bell, &|| over.load(Ordering::SeqCst), &done))
        })
        .collect();
    let start = now();
    let (adding, payload) = (inbox.clone(), payload_text());
    let added = handles::repeat(2 * in_flight, move || {
        let (inbox, payload) = (adding.clone(), payload.clone());
        async move { inbox.enqueue(payload).await }
    })
    .await?;
    let Reading::Rate { count, .. } = added else { anyhow::bail!("a rate was expected") };
    while done.load(Ordering::SeqCst) < count {
        threads::pause(Duration::from_micros(200));
    }
    let took = start.elapsed();
    over.store(true, Ordering::SeqCst);
    inbox.close();
    for thread in workers.into_iter().chain([writer]) {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(Reading::Rate { count, took })
}

pub fn wake(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    let (bell, payload) = (Bell::default(), payload_text());
    let (sender, arrived) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (conn, bell) = (&conn, &bell);
        scope.spawn(move || {
            for _ in 0..WAKES {
                let claimed = loop {
                    let seen = bell.rung();
                    let claimed = claim(&conn.lock(), 1)?;
                    if !claimed.is_empty() {
                        break claimed;
                    }
                    bell.wait(seen, Duration::from_secs(1));
                };
                sender.send(now())?;
                ack(&conn.lock(), &claimed)?;
            }
            anyhow::Ok(())
        });
        let mut times = Vec::new();
        for _ in 0..WAKES {
            threads::pause(QUIET);
            let start = now();
            enqueue_one(&conn.lock(), &payload)?;
            bell.ring();
            times.push(arrived.recv()?.duration_since(start));
        }
        Ok(Reading::Time(percentile(times, 0.5)))
    })
}

fn append(conn: &Connection, batch: usize, payloads: &str) -> anyhow::Result<u64> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let count = i64::try_from(batch)?;
    let head: i64 =
        conn.prepare_cached(ADVANCE)?.query_row(params!["s", count], |row| row.get(0))?;
    if batch == 1 {
        conn.prepare_cached(APPEND)?.execute(params!["s", head, millis(), payloads])?;
    } else {
        let first = head - count;
        conn.prepare_cached(APPEND_MANY)?.execute(params!["s", first, millis(), payloads])?;
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(batch as u64)
}

pub fn publish(durability: Durability, batch: usize) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    threads::repeat(1, || {
        let payloads = if batch == 1 { payload_text() } else { array(batch)? };
        append(&conn.lock(), batch, &payloads)
    })
}

pub fn read(durability: Durability) -> anyhow::Result<Reading> {
    let file = File::new()?;
    let conn = Mutex::new(open(&file.path(), durability)?);
    append(&conn.lock(), 20_000, &array(20_000)?)?;
    threads::repeat(1, || {
        let conn = conn.lock();
        let mut statement = conn.prepare_cached(READ)?;
        let (mut after, mut count) = (0_i64, 0);
        loop {
            let rows = statement.query_map(params!["s", after, 1_000], |row| {
                let key: (Option<String>, Option<String>) = (row.get(2)?, row.get(3)?);
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, key, row.get::<_, String>(4)?))
            })?;
            let events = rows.collect::<Result<Vec<_>, _>>()?;
            let Some(last) = events.last() else { return Ok(count) };
            after = last.0;
            count += events.len() as u64;
        }
    })
}

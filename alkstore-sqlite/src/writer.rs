//! The one write connection of a file in this process, on a thread of its own, and its commits in
//! groups.
//!
//! Operations that wait while a commit is under way go into the next one together: one fsync for
//! all of them. A transaction of the application leases the connection; what else wants to write
//! waits meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use alkstore_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode};
use tokio::sync::watch;

use crate::clock::{Clock, Reading};
use crate::hub::Hub;
use crate::sql::{self, Failure, Outcome, Write};
use crate::store::Durability;
use crate::wake::Effects;
use crate::{lease, migrate};

/// How many operations one commit takes at most.
const GROUP: usize = 256;

/// How many operations go into the log before it is copied into the database.
const CHECKPOINT: usize = 512;

/// How long a pause between two attempts at another process's lock is, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(4));

/// How often the file is looked at while nothing happens.
const IDLE: Duration = Duration::from_millis(500);

/// How often commits of others are looked for where the directory can't be watched.
const POLL: Duration = Duration::from_millis(5);

/// When commits of others are looked for after something happened in the directory, one after the
/// other: what is written there comes a moment before the commit can be seen.
const LOOKS: [Duration; 12] = {
    let us = Duration::from_micros;
    [
        us(100),
        us(200),
        us(400),
        us(800),
        us(1_500),
        us(2_000),
        us(3_000),
        us(5_000),
        us(8_000),
        us(8_000),
        us(10_000),
        us(12_000),
    ]
};

/// How often what is given back at the close is tried beside another process.
const LAST_TRIES: u32 = 50;

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const CANCELLED: u8 = 2;

/// The way to the write connection.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) arrived: Condvar,
}

#[derive(Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Waiting>,
    /// The lease that is being served.
    pub(crate) lease: Option<lease::Serving>,
    /// Another connection writes.
    blocked: bool,
    /// Something happened in the directory.
    disturbed: bool,
    pub(crate) closing: bool,
    ended: bool,
}

struct Waiting {
    place: Arc<AtomicU8>,
    work: Work,
}

pub(crate) enum Work {
    Operation(Box<dyn Operation>),
    /// Nobody waits for it, and a close doesn't keep it away.
    GiveBack(Box<dyn Operation>),
    Lease(lease::Request),
}

impl Waiting {
    fn is_cancelled(&self) -> bool {
        self.place.load(Ordering::SeqCst) == CANCELLED
    }

    fn take(&self) -> bool {
        let taken = self.place.compare_exchange(QUEUED, TAKEN, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok()
    }

    fn refuse(self, error: Error) {
        match self.work {
            Work::Operation(operation) | Work::GiveBack(operation) => operation.answer(Err(error)),
            Work::Lease(request) => drop(request.answer.send(Err(error))),
        }
    }
}

/// A write that may be run again: a group whose transaction the database gave up is repeated one
/// by one.
pub(crate) trait Operation: Send {
    fn run(&mut self, conn: &Connection, effects: &mut Effects) -> Outcome<()>;
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct Call<T, F, A> {
    clock: Arc<dyn Clock>,
    run: F,
    value: Option<T>,
    answer: A,
}

impl<T, F, A> Operation for Call<T, F, A>
where
    T: Send,
    F: FnMut(&mut Write<'_>) -> Outcome<T> + Send,
    A: FnOnce(Result<T>) + Send,
{
    fn run(&mut self, conn: &Connection, effects: &mut Effects) -> Outcome<()> {
        let time = Reading::of(&*self.clock);
        self.value = Some((self.run)(&mut Write { conn, time, effects, heads: None })?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let value = self.value.ok_or_else(|| Error::engine("a write gave no result"));
        (self.answer)(committed.and(value));
    }
}

/// A place in the queue; it is given up with the future that waits in it.
pub(crate) struct Place(Arc<AtomicU8>);

/// How far what waits in a place has come.
pub(crate) struct Progress(Arc<AtomicU8>);

impl Progress {
    /// Whether it was begun, and may have ended.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::SeqCst) == TAKEN
    }
}

impl Place {
    pub(crate) fn progress(&self) -> Progress {
        Progress(self.0.clone())
    }

    /// Whether what waits there will not be begun.
    pub(crate) fn give_up(&self) -> bool {
        let given = self.0.compare_exchange(QUEUED, CANCELLED, Ordering::SeqCst, Ordering::SeqCst);
        given.is_ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Writer {
    /// Starts the thread; it ends, and lets the connection go, after [`close`](Self::close).
    pub(crate) fn start(
        hub: Arc<Hub>,
        conn: Connection,
        watched: bool,
        alive: Arc<watch::Sender<()>>,
    ) -> Result<JoinHandle<()>> {
        let durability = hub.durability();
        let mut thread = Thread {
            hub,
            conn,
            watched,
            durability,
            seen: None,
            looks: LOOKS.len(),
            written: 0,
            last_tries: 0,
            leases: 0,
        };
        std::thread::Builder::new()
            .name("alkstore-writer".to_owned())
            .spawn(move || {
                thread.serve();
                drop(thread);
                drop(alive);
            })
            .map_err(|error| Error::Engine {
                message: "the writer's thread can't be started".to_owned(),
                source: Some(Box::new(error)),
            })
    }

    pub(crate) fn close(&self) {
        self.inbox.lock().closing = true;
        self.arrived.notify_all();
    }

    /// Lets the thread look at what has changed around it.
    pub(crate) fn look(&self) {
        drop(self.inbox.lock());
        self.arrived.notify_all();
    }

    /// Something happened in the directory.
    pub(crate) fn disturb(&self) {
        let before = std::mem::replace(&mut self.inbox.lock().disturbed, true);
        if !before {
            self.arrived.notify_all();
        }
    }

    pub(crate) fn push(&self, work: Work) -> Result<Place> {
        let place = Arc::new(AtomicU8::new(QUEUED));
        {
            let mut inbox = self.inbox.lock();
            let late = !matches!(work, Work::GiveBack(_));
            if inbox.ended || inbox.closing && late {
                return Err(Error::Closed);
            }
            let waiting = Waiting { place: place.clone(), work };
            // What comes back comes before those who look for it.
            if late {
                inbox.waiting.push_back(waiting);
            } else {
                inbox.waiting.push_front(waiting);
            }
        }
        self.arrived.notify_one();
        Ok(Place(place))
    }

    /// Runs a write in a commit with whatever else waits, and answers once it is durable.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        clock: Arc<dyn Clock>,
        run: impl FnMut(&mut Write<'_>) -> Outcome<T> + Send + 'static,
        answer: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<Place> {
        self.push(Work::Operation(Box::new(Call { clock, run, value: None, answer })))
    }

    /// Runs a write that gives something back, for which nobody waits.
    pub(crate) fn give_back(
        &self,
        clock: Arc<dyn Clock>,
        run: impl FnMut(&mut Write<'_>) -> Outcome<()> + Send + 'static,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let call = Call { clock, run, value: None, answer };
        // Where the thread has ended already, what isn't given back runs out by itself.
        if let Ok(place) = self.push(Work::GiveBack(Box::new(call))) {
            // It keeps its place with nobody waiting in it.
            std::mem::forget(place);
        }
    }

    /// Whether what waits here waits for somebody's transaction.
    pub(crate) fn is_held(&self) -> bool {
        let inbox = self.inbox.lock();
        inbox.lease.is_some() || inbox.blocked
    }
}

enum Next {
    /// Somebody waits.
    Work,
    /// Nobody waits: time to look around.
    Look,
    End(Vec<Waiting>),
}

enum Taken {
    Group(Vec<Box<dyn Operation>>),
    Lease(lease::Request),
    Nothing,
}

/// Why a group was not written.
pub(crate) enum Unwritten {
    /// The database gave up the transaction, maybe on behalf of one of them.
    GivenUp(Error),
    /// Nobody knows whether it was.
    Unknown(Error),
}

impl From<Unwritten> for Error {
    fn from(unwritten: Unwritten) -> Self {
        match unwritten {
            Unwritten::GivenUp(error) | Unwritten::Unknown(error) => error,
        }
    }
}

struct Thread {
    hub: Arc<Hub>,
    conn: Connection,
    watched: bool,
    durability: Durability,
    /// The version of the data as it was when others' commits were last told.
    seen: Option<i64>,
    /// Which of the looks after a disturbance comes next.
    looks: usize,
    /// Operations since the last checkpoint.
    written: usize,
    last_tries: u32,
    /// How many leases there were.
    leases: u64,
}

impl Thread {
    fn serve(&mut self) {
        self.look_around();
        loop {
            match self.next() {
                Next::Work => self.work(),
                Next::Look => self.look_around(),
                Next::End(refused) => {
                    refused.into_iter().for_each(|waiting| waiting.refuse(Error::Closed));
                    return;
                }
            }
        }
    }

    fn next(&mut self) -> Next {
        let mut inbox = self.hub.writer.inbox.lock();
        loop {
            inbox.waiting.retain(|waiting| !waiting.is_cancelled());
            if inbox.closing {
                let given_back = |waiting: &Waiting| matches!(waiting.work, Work::GiveBack(_));
                if self.last_tries < LAST_TRIES && inbox.waiting.iter().any(given_back) {
                    self.last_tries += 1;
                    return Next::Work;
                }
                inbox.ended = true;
                return Next::End(inbox.waiting.drain(..).collect());
            }
            if !inbox.waiting.is_empty() {
                return Next::Work;
            }
            if std::mem::take(&mut inbox.disturbed) {
                self.looks = 0;
            }
            let idle = if self.watched { IDLE } else { POLL };
            let pause = LOOKS.get(self.looks).copied().unwrap_or(idle);
            let waited = self.hub.writer.arrived.wait_for(&mut inbox, pause);
            if waited.timed_out() && inbox.waiting.is_empty() {
                self.looks = (self.looks + 1).min(LOOKS.len());
                return Next::Look;
            }
        }
    }

    /// Looks for what others have done while nobody here wants anything.
    fn look_around(&mut self) {
        if self.hub.check_file().is_err() {
            return;
        }
        self.look_for_commits();
        if self.looks >= LOOKS.len() {
            self.checkpoint();
        }
    }

    /// Tells of commits of other connections; of those of this one the version says nothing.
    fn look_for_commits(&mut self) {
        // An error leaves the version as it was, so that nothing is missed.
        let version = sql::one(&self.conn, "PRAGMA data_version", [], |row| row.get(0));
        if let Ok(Some(version)) = version
            && self.seen.replace(version) != Some(version)
        {
            self.hub.fire_everything(&self.conn);
        }
    }

    fn checkpoint(&mut self) {
        if self.written > 0 {
            self.written = 0;
            // It does what it can beside those who read; the next one does the rest.
            let _ = sql::one(&self.conn, "PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }

    fn work(&mut self) {
        if let Err(error) = self.hub.check_file() {
            return self.refuse(&error);
        }
        let durability = self.hub.durability();
        if durability != self.durability && migrate::synchronous(&self.conn, durability).is_ok() {
            self.durability = durability;
        }
        match self.begin() {
            Ok(true) => {}
            Ok(false) => return self.hub.writer.inbox.lock().blocked = false,
            Err(failure) => return self.refuse(&self.hub.error(failure)),
        }
        self.look_for_commits();
        if let Err(error) = self.hub.ids.keep(&self.conn) {
            sql::rollback(&self.conn);
            return self.refuse(&self.hub.error(error.into()));
        }
        match self.take() {
            Taken::Group(group) => self.commit_group(group),
            Taken::Lease(request) => {
                self.leases += 1;
                self.written += 1;
                lease::serve(&self.hub, &self.conn, self.leases, request);
            }
            Taken::Nothing => sql::rollback(&self.conn),
        }
        if self.written >= CHECKPOINT {
            self.checkpoint();
        }
    }

    /// Begins a transaction, for as long as somebody here waits for it.
    fn begin(&self) -> Outcome<bool> {
        let mut pause = PAUSES.0;
        loop {
            match sql::begin(&self.conn).map_err(Failure::from) {
                Ok(()) => return Ok(true),
                Err(failure) if failure.is_busy() => {}
                Err(failure) => return Err(failure),
            }
            let mut inbox = self.hub.writer.inbox.lock();
            inbox.waiting.retain(|waiting| !waiting.is_cancelled());
            if inbox.waiting.is_empty() || inbox.closing {
                return Ok(false);
            }
            inbox.blocked = true;
            self.hub.writer.arrived.wait_for(&mut inbox, pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn refuse(&self, error: &Error) {
        let waiting: Vec<_> = self.hub.writer.inbox.lock().waiting.drain(..).collect();
        waiting.into_iter().for_each(|waiting| waiting.refuse(sql::copy(error)));
    }

    fn take(&self) -> Taken {
        let mut inbox = self.hub.writer.inbox.lock();
        inbox.blocked = false;
        let mut group = Vec::new();
        while group.len() < GROUP {
            let is_lease = |waiting: &Waiting| matches!(waiting.work, Work::Lease(_));
            if !group.is_empty() && inbox.waiting.front().is_some_and(is_lease) {
                break;
            }
            let Some(waiting) = inbox.waiting.pop_front() else { break };
            if !waiting.take() {
                continue;
            }
            match waiting.work {
                Work::Operation(operation) | Work::GiveBack(operation) => group.push(operation),
                Work::Lease(request) => return Taken::Lease(request),
            }
        }
        if group.is_empty() { Taken::Nothing } else { Taken::Group(group) }
    }

    /// Runs and commits a group in the transaction that has begun, and answers.
    fn commit_group(&mut self, mut group: Vec<Box<dyn Operation>>) {
        let mut effects = Effects::default();
        let outcome = self.try_group(&mut group, &mut effects);
        self.written += group.len();
        match outcome {
            Ok(results) => {
                self.hub.fire(&self.conn, &effects);
                for (operation, result) in group.into_iter().zip(results) {
                    operation.answer(result);
                }
            }
            Err(Unwritten::GivenUp(_)) if group.len() > 1 => {
                for operation in group {
                    match self.begin_again() {
                        Ok(()) => self.commit_group(vec![operation]),
                        Err(error) => operation.answer(Err(error)),
                    }
                }
            }
            Err(Unwritten::GivenUp(error) | Unwritten::Unknown(error)) => {
                group.into_iter().for_each(|operation| operation.answer(Err(sql::copy(&error))));
            }
        }
    }

    fn begin_again(&self) -> Result<()> {
        sql::begin(&self.conn).map_err(|error| self.hub.error(error.into()))
    }

    /// An operation that fails is undone alone; an error means that nothing of the group was
    /// written, as far as that is known.
    fn try_group(
        &self,
        group: &mut [Box<dyn Operation>],
        effects: &mut Effects,
    ) -> std::result::Result<Vec<Result<()>>, Unwritten> {
        let undo = Undo(&self.conn);
        let alone = group.len() == 1;
        let mut results = Vec::with_capacity(group.len());
        for operation in group {
            let mut own = Effects::default();
            let outcome = if alone {
                operation.run(&self.conn, &mut own)
            } else {
                sql::savepoint(&self.conn, || operation.run(&self.conn, &mut own))
            };
            let result = outcome.map_err(|failure| self.hub.error(failure));
            if self.conn.is_autocommit() {
                let ended = || Error::engine("the database ended the transaction by itself");
                return Err(Unwritten::GivenUp(result.err().unwrap_or_else(ended)));
            }
            if result.is_ok() {
                effects.extend(own);
            }
            results.push(result);
        }
        if results.iter().all(Result::is_err) {
            return Ok(results);
        }
        commit(&self.conn, &self.hub)?;
        std::mem::forget(undo);
        Ok(results)
    }
}

/// Commits; a failure says whether that is known to have written nothing.
pub(crate) fn commit(conn: &Connection, hub: &Hub) -> std::result::Result<(), Unwritten> {
    let ids = hub.ids.given();
    let committed = sql::commit(conn).map_err(|error| {
        let failure = Failure::from(error);
        let unknown = failure.code() == Some(ErrorCode::SystemIoFailure);
        match hub.error(failure) {
            Error::Engine { message, source } if unknown => {
                Unwritten::Unknown(Error::CommitUnknown { message, source })
            }
            error => Unwritten::GivenUp(error),
        }
    });
    if committed.is_ok() {
        hub.ids.kept(ids);
    }
    committed
}

/// Rolls back what is still open.
struct Undo<'c>(&'c Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        sql::rollback(self.0);
    }
}

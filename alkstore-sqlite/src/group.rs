//! The write connection, and its commits in groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use alkstore_core::{Error, Result};
use rusqlite::{Connection, ErrorCode, Row};

use crate::clock::{Clock, Reading, Stopwatch};
use crate::hub::Hub;
use crate::migrate;
use crate::sql::{self, Failure, Outcome, Write};
use crate::store::Durability;
use crate::wake::Effects;

/// For how long a group takes in one operation more: whoever else wants to write waits for it.
const LONGEST: Duration = Duration::from_millis(5);

/// How many pages go into the log before it is copied into the database.
const CHECKPOINT: usize = 4_000;

/// After how many small commits the log is looked at.
const LOOK: u32 = 32;

/// How many pages more it takes before that is tried again beside a reader that was in its way.
const AGAIN: usize = 1_000;

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const CANCELLED: u8 = 2;

/// A place in the queue, and how far what waits there has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU8>);

impl Progress {
    fn becomes(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst) == CANCELLED
    }

    /// Begins it, unless nobody waits any longer.
    pub(crate) fn begin(&self) -> bool {
        self.becomes(QUEUED, TAKEN)
    }

    /// It waits again.
    pub(crate) fn put_back(&self) {
        self.becomes(TAKEN, QUEUED);
    }

    /// Whether it will not be begun.
    pub(crate) fn cancel(&self) -> bool {
        self.becomes(QUEUED, CANCELLED)
    }

    /// Whether it was begun, and may have ended.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::SeqCst) == TAKEN
    }
}

/// A write that may be run again: a group that was given up is repeated, if need be one by one.
pub(crate) trait Operation: Send {
    fn run(&mut self, conn: &Connection, effects: &mut Effects) -> Outcome<()>;
    fn answer(self: Box<Self>, committed: Result<()>);
}

pub(crate) struct Call<T, F, A> {
    clock: Arc<dyn Clock>,
    run: F,
    value: Option<T>,
    answer: A,
}

impl<T, F, A> Call<T, F, A> {
    pub(crate) fn new(clock: Arc<dyn Clock>, run: F, answer: A) -> Self {
        Self { clock, run, value: None, answer }
    }
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

/// An operation that was taken from the queue.
pub(crate) struct Member {
    pub(crate) progress: Progress,
    pub(crate) operation: Box<dyn Operation>,
    /// Nobody waits for it.
    pub(crate) gives_back: bool,
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

/// How an operation of a group is undone that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undoing {
    /// With the whole group, which is then tried anew: few ever fail after they have written.
    Together,
    /// Alone, to a savepoint.
    Alone,
}

/// How far the log has grown, and how much of it the database has already; it changes nothing.
const LOG: &str = "PRAGMA wal_checkpoint(NOOP)";

const COPY: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// The write connection.
pub(crate) struct Desk {
    pub(crate) conn: Connection,
    durability: Durability,
    /// The version of the data as it was when others' commits were last told.
    seen: Option<i64>,
    /// How many pages the log has.
    pages: usize,
    /// How many it had when it was last copied, which is no longer so once it begins anew.
    copied: usize,
    /// How many commits there were since it was looked at.
    commits: u32,
    /// The next commit begins the log anew, and waits for the disk with that.
    begins_anew: bool,
}

impl Desk {
    pub(crate) fn new(conn: Connection, durability: Durability) -> Self {
        Self { conn, durability, seen: None, pages: 0, copied: 0, commits: 0, begins_anew: true }
    }

    /// Whether a commit returns without a wait for the disk.
    pub(crate) fn is_quick(&self, hub: &Hub) -> bool {
        let normal = hub.durability() == Durability::Normal;
        normal && self.durability == Durability::Normal && !self.begins_anew
    }

    /// Whether the log wants to be copied into the database.
    pub(crate) fn is_log_full(&self) -> bool {
        self.pages >= (self.copied + AGAIN).max(CHECKPOINT)
    }

    /// Begins a transaction; not where another connection writes.
    pub(crate) fn begin(&mut self, hub: &Hub) -> Result<bool> {
        hub.check_file()?;
        let durability = hub.durability();
        if durability != self.durability && migrate::synchronous(&self.conn, durability).is_ok() {
            self.durability = durability;
        }
        match sql::begin(&self.conn).map_err(Failure::from) {
            Ok(()) => {}
            Err(failure) if failure.is_busy() => return Ok(false),
            Err(failure) => return Err(hub.error(failure)),
        }
        self.look_for_commits(hub);
        if let Err(error) = hub.ids.keep(&self.conn) {
            sql::rollback(&self.conn);
            return Err(hub.error(error.into()));
        }
        Ok(true)
    }

    /// Tells of commits of other connections; of those of this one the version says nothing.
    pub(crate) fn look_for_commits(&mut self, hub: &Hub) {
        // An error leaves the version as it was, so that nothing is missed.
        let version = sql::one(&self.conn, "PRAGMA data_version", [], |row| row.get(0));
        if let Ok(Some(version)) = version
            && self.seen.replace(version) != Some(version)
        {
            hub.fire_everything(&self.conn);
        }
    }

    /// Copies the log into the database, as far as no reader is in the way; the next time does
    /// the rest.
    pub(crate) fn checkpoint(&mut self) {
        if self.commits == 0 && self.pages == self.copied {
            return;
        }
        let whole = self.log(COPY);
        self.copied = self.pages;
        self.begins_anew |= whole;
    }

    /// Asks for the log, and says whether the database has all of it.
    fn log(&mut self, statement: &str) -> bool {
        self.commits = 0;
        let pages = |row: &Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
        let Ok(Some((pages, copied))) = sql::one(&self.conn, statement, [], pages) else {
            return false;
        };
        self.pages = usize::try_from(pages).unwrap_or(0);
        if self.pages < self.copied {
            self.copied = 0;
        }
        pages == copied
    }

    /// Something was committed; much of it, or as little as most.
    pub(crate) fn has_written(&mut self, much: bool) {
        self.begins_anew = false;
        self.commits += 1;
        if much || self.commits >= LOOK {
            self.log(LOG);
        }
    }

    /// Runs and commits a group in the transaction that has begun, and answers. What there was no
    /// time for is given back.
    pub(crate) fn serve(&mut self, hub: &Hub, group: Vec<Member>, much: bool) -> Vec<Member> {
        let before = hub.commits.load(Ordering::Relaxed);
        let left = self.serve_as(hub, group, Undoing::Together);
        if hub.commits.load(Ordering::Relaxed) != before {
            self.has_written(much);
        }
        left
    }

    fn serve_as(&self, hub: &Hub, mut group: Vec<Member>, undoing: Undoing) -> Vec<Member> {
        let mut effects = Effects::default();
        match self.try_group(hub, &mut group, undoing, &mut effects) {
            Ok(results) => {
                hub.fire(&self.conn, &effects);
                let left = group.split_off(results.len());
                for (member, result) in group.into_iter().zip(results) {
                    member.operation.answer(result);
                }
                return left;
            }
            Err(Unwritten::GivenUp(_)) if group.len() > 1 => self.serve_again(hub, group, undoing),
            Err(Unwritten::GivenUp(error) | Unwritten::Unknown(error)) => {
                group.into_iter().for_each(|m| m.operation.answer(Err(sql::copy(&error))));
            }
        }
        Vec::new()
    }

    /// Together with savepoints first, then one by one.
    fn serve_again(&self, hub: &Hub, mut group: Vec<Member>, undone: Undoing) {
        while !group.is_empty() {
            let rest = if undone == Undoing::Together { Vec::new() } else { group.split_off(1) };
            match sql::begin(&self.conn) {
                Ok(()) => group = self.serve_as(hub, group, Undoing::Alone),
                Err(error) => {
                    let error = hub.error(error.into());
                    group.drain(..).for_each(|m| m.operation.answer(Err(sql::copy(&error))));
                }
            }
            group.extend(rest);
        }
    }

    /// What failed is undone without the others; an error means that nothing of the group was
    /// written, as far as that is known.
    fn try_group(
        &self,
        hub: &Hub,
        group: &mut [Member],
        undoing: Undoing,
        effects: &mut Effects,
    ) -> std::result::Result<Vec<Result<()>>, Unwritten> {
        let undo = Undo(&self.conn);
        let (alone, stopwatch) = (group.len() == 1, Stopwatch::start());
        let mut results = Vec::with_capacity(group.len());
        for Member { operation, .. } in group {
            if !results.is_empty() && stopwatch.elapsed() > LONGEST {
                break;
            }
            let (mut own, before) = (Effects::default(), self.conn.total_changes());
            let outcome = if alone || undoing == Undoing::Together {
                operation.run(&self.conn, &mut own)
            } else {
                sql::savepoint(&self.conn, || operation.run(&self.conn, &mut own))
            };
            let result = outcome.map_err(|failure| hub.error(failure));
            if self.conn.is_autocommit() {
                let ended = || Error::engine("the database ended the transaction by itself");
                return Err(Unwritten::GivenUp(result.err().unwrap_or_else(ended)));
            }
            let has_written = self.conn.total_changes() != before;
            match result {
                Ok(()) => effects.extend(own),
                Err(error) if undoing == Undoing::Together && has_written && !alone => {
                    return Err(Unwritten::GivenUp(error));
                }
                Err(_) => {}
            }
            results.push(result);
        }
        if results.iter().all(Result::is_err) {
            return Ok(results);
        }
        commit(&self.conn, hub)?;
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
        hub.commits.fetch_add(1, Ordering::Relaxed);
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

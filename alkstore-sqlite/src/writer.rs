//! The one write connection, on a thread of its own, and its commits in groups.
//!
//! Operations that wait while a commit is under way go into the next one together: one fsync for
//! all of them. A transaction of the application leases the connection; what else wants to write
//! waits meanwhile.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use alkstore_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::clock::{Clock, Reading};
use crate::sql::{self, Write};
use crate::wake::{Effects, Hub};

/// How many operations one commit takes at most.
const GROUP: usize = 256;

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const CANCELLED: u8 = 2;

/// The way to the write connection.
#[derive(Debug)]
pub(crate) struct Writer {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inbox {
    waiting: VecDeque<Waiting>,
    /// What the transaction that holds the lease asks for.
    leased: VecDeque<LeaseCall>,
    lease_dropped: bool,
    closing: bool,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

struct Waiting {
    place: Arc<AtomicU8>,
    work: Work,
}

enum Work {
    Operation(Box<dyn Operation>),
    Lease(oneshot::Sender<Result<()>>),
}

impl Waiting {
    fn take(&self) -> bool {
        let taken = self.place.compare_exchange(QUEUED, TAKEN, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok()
    }

    fn refuse(self, error: Error) {
        match self.work {
            Work::Operation(operation) => operation.answer(Err(error)),
            Work::Lease(answer) => drop(answer.send(Err(error))),
        }
    }
}

/// A write that may be run again: a group whose transaction the database gave up is repeated one
/// by one.
trait Operation: Send {
    fn run(&mut self, write: &mut Write<'_>) -> Result<()>;
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct Call<T, F> {
    run: F,
    value: Option<T>,
    answer: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Write<'_>) -> Result<T> + Send> Operation for Call<T, F> {
    fn run(&mut self, write: &mut Write<'_>) -> Result<()> {
        self.value = Some((self.run)(write)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let value = self.value.ok_or_else(|| Error::engine("a write gave no result"));
        // Where nobody waits any longer, the value's own drop gives back what has to be.
        drop(self.answer.send(committed.and(value)));
    }
}

/// What a lease's transaction does on the connection.
type LeaseCall = Box<dyn FnOnce(&mut Lease<'_>) -> Ended + Send>;

/// Whether the lease's transaction is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    No,
    Yes,
}

/// The connection as the transaction that leases it sees it.
pub(crate) struct Lease<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) clock: &'c dyn Clock,
    pub(crate) effects: &'c mut Effects,
}

/// Gives up a place in the queue with the future that waits in it.
struct Place(Arc<AtomicU8>);

impl Place {
    fn give_up(&self) -> bool {
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
    /// Starts the thread; it ends, and lets the connection go, once [`close`](Self::close) was
    /// called, and says so by dropping the sender.
    pub(crate) fn start(
        conn: Connection,
        clock: Arc<dyn Clock>,
        hub: Arc<Hub>,
        ended: tokio::sync::watch::Sender<()>,
    ) -> Result<Arc<Self>> {
        let writer = Arc::new(Self { inbox: Mutex::default(), arrived: Condvar::new() });
        let thread = Thread { writer: writer.clone(), conn, clock, hub };
        std::thread::Builder::new()
            .name("alkstore-writer".to_owned())
            .spawn(move || {
                thread.serve();
                drop(ended);
            })
            .map_err(|error| Error::Engine {
                message: "the writer's thread can't be started".to_owned(),
                source: Some(Box::new(error)),
            })?;
        Ok(writer)
    }

    pub(crate) fn close(&self) {
        self.inbox.lock().closing = true;
        self.arrived.notify_all();
    }

    fn push(&self, work: Work) -> Result<Place> {
        let place = Arc::new(AtomicU8::new(QUEUED));
        {
            let mut inbox = self.inbox.lock();
            if inbox.closing {
                return Err(Error::Closed);
            }
            inbox.waiting.push_back(Waiting { place: place.clone(), work });
        }
        self.arrived.notify_one();
        Ok(Place(place))
    }

    /// Runs a write, in a commit with whatever else waits, and answers once it is durable. Waits
    /// at most so long for its turn.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        lock_timeout: Duration,
        run: impl FnMut(&mut Write<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let place = self.push(Work::Operation(Box::new(Call { run, value: None, answer })))?;
        wait(place, answered, lock_timeout).await
    }

    /// As [`write`](Self::write), without waiting for the outcome: for what is given back.
    pub(crate) fn write_later(&self, run: impl FnMut(&mut Write<'_>) -> Result<()> + Send + 'static) {
        let (answer, _) = oneshot::channel();
        if let Ok(place) = self.push(Work::Operation(Box::new(Call { run, value: None, answer }))) {
            std::mem::forget(place);
        }
    }

    /// Leases the connection for a transaction, which has begun when this returns.
    pub(crate) async fn lease(&self, lock_timeout: Duration) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let place = self.push(Work::Lease(answer))?;
        wait(place, answered, lock_timeout).await
    }

    /// Runs a call of the transaction that holds the lease.
    pub(crate) fn call(&self, call: LeaseCall) -> Result<()> {
        {
            let mut inbox = self.inbox.lock();
            if inbox.closing {
                return Err(Error::Closed);
            }
            inbox.leased.push_back(call);
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// The transaction that holds the lease is gone.
    pub(crate) fn drop_lease(&self) {
        self.inbox.lock().lease_dropped = true;
        self.arrived.notify_one();
    }
}

async fn wait<T>(
    place: Place,
    mut answered: oneshot::Receiver<Result<T>>,
    lock_timeout: Duration,
) -> Result<T> {
    let gone = |_| Err(Error::Closed);
    match tokio::time::timeout(lock_timeout, &mut answered).await {
        Ok(answer) => answer.unwrap_or_else(gone),
        Err(_) if place.give_up() => Err(Error::unavailable(format!(
            "an open transaction held the database for longer than the lock timeout of {lock_timeout:?}"
        ))),
        Err(_) => answered.await.unwrap_or_else(gone),
    }
}

enum Next {
    Group(Vec<Box<dyn Operation>>),
    Lease(oneshot::Sender<Result<()>>),
    End(Vec<Waiting>),
}

enum NextCall {
    Call(LeaseCall),
    Dropped,
    Closing,
}

struct Thread {
    writer: Arc<Writer>,
    conn: Connection,
    clock: Arc<dyn Clock>,
    hub: Arc<Hub>,
}

impl Thread {
    fn serve(self) {
        loop {
            match self.next() {
                Next::Group(group) => self.commit_group(group),
                Next::Lease(answer) => self.serve_lease(answer),
                Next::End(refused) => {
                    refused.into_iter().for_each(|waiting| waiting.refuse(Error::Closed));
                    return;
                }
            }
        }
    }

    fn next(&self) -> Next {
        let mut inbox = self.writer.inbox.lock();
        loop {
            if inbox.closing {
                return Next::End(inbox.waiting.drain(..).collect());
            }
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
                    Work::Operation(operation) => group.push(operation),
                    Work::Lease(answer) => {
                        inbox.leased.clear();
                        inbox.lease_dropped = false;
                        return Next::Lease(answer);
                    }
                }
            }
            if !group.is_empty() {
                return Next::Group(group);
            }
            self.writer.arrived.wait(&mut inbox);
        }
    }

    fn commit_group(&self, mut group: Vec<Box<dyn Operation>>) {
        let mut effects = Effects::default();
        let alone = group.len() == 1;
        let outcome = self.try_group(&mut group, &mut effects, alone);
        match outcome {
            Ok(results) => {
                for (operation, result) in group.into_iter().zip(results) {
                    operation.answer(result);
                }
                self.hub.fire(effects);
            }
            Err(error) if alone => group.into_iter().for_each(|operation| {
                operation.answer(Err(sql::copy(&error)));
            }),
            // Given up by the database on behalf of one of them: each for itself.
            Err(_) => group.into_iter().for_each(|operation| self.commit_group(vec![operation])),
        }
    }

    /// Runs a group in one transaction. An operation that fails is undone alone; an error means
    /// that nothing of the group was written.
    fn try_group(
        &self,
        group: &mut [Box<dyn Operation>],
        effects: &mut Effects,
        alone: bool,
    ) -> Result<Vec<Result<()>>> {
        self.hub.check_file()?;
        sql::begin(&self.conn)?;
        let undo = Undo(&self.conn);
        let mut results = Vec::with_capacity(group.len());
        for operation in group {
            let mut own = Effects::default();
            let time = Reading::of(&*self.clock);
            let mut write = Write { conn: &self.conn, time, effects: &mut own };
            let result = if alone {
                operation.run(&mut write)
            } else {
                sql::savepoint(&self.conn, || operation.run(&mut write))
            };
            if self.conn.is_autocommit() {
                return Err(result.err().unwrap_or_else(|| Error::engine("the transaction ended by itself")));
            }
            if result.is_ok() {
                effects.extend(own);
            }
            results.push(result);
        }
        if results.iter().all(Result::is_err) {
            return Ok(results);
        }
        sql::commit(&self.conn)?;
        std::mem::forget(undo);
        Ok(results)
    }

    fn serve_lease(&self, answer: oneshot::Sender<Result<()>>) {
        let began = self.hub.check_file().and_then(|()| sql::begin(&self.conn));
        let failed = began.is_err();
        // Nobody waits any longer, or it didn't begin: then there is no lease.
        if answer.send(began).is_err() || failed {
            sql::rollback(&self.conn);
            return;
        }
        let mut effects = Effects::default();
        let _undo = Undo(&self.conn);
        loop {
            match self.next_call() {
                NextCall::Call(call) => {
                    let mut lease =
                        Lease { conn: &self.conn, clock: &*self.clock, effects: &mut effects };
                    if call(&mut lease) == Ended::Yes {
                        self.hub.fire(effects);
                        return;
                    }
                }
                NextCall::Dropped | NextCall::Closing => return,
            }
        }
    }

    fn next_call(&self) -> NextCall {
        let mut inbox = self.writer.inbox.lock();
        loop {
            if inbox.closing {
                inbox.leased.clear();
                return NextCall::Closing;
            }
            if let Some(call) = inbox.leased.pop_front() {
                return NextCall::Call(call);
            }
            if inbox.lease_dropped {
                return NextCall::Dropped;
            }
            self.writer.arrived.wait(&mut inbox);
        }
    }
}

/// Rolls back what is still open.
struct Undo<'c>(&'c Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        sql::rollback(self.0);
    }
}

/// What a closure of the application left: its value, or the panic that has to go on where it
/// was called.
pub(crate) type Caught<T> = std::result::Result<T, Box<dyn Any + Send>>;

/// Runs a closure of the application on the writer's thread, which survives its panic.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Caught<T> {
    catch_unwind(AssertUnwindSafe(run))
}

/// Lets a caught panic go on.
pub(crate) fn uncaught<T>(caught: Caught<T>) -> T {
    caught.unwrap_or_else(|panic| resume_unwind(panic))
}

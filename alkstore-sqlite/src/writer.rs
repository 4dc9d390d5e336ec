//! Who waits for the write connection, and who serves them.
//!
//! Operations that wait while a commit is under way go into the next one together: one fsync for
//! all of them, by a thread of its own. Where a commit doesn't wait for the disk and nobody has
//! the connection, a caller does it itself, and serves those who came meanwhile. A transaction of
//! the application leases the connection; what else wants to write waits meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use alkstore_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::group::{Call, Desk, Member, Operation, Progress};
use crate::hub::Hub;
use crate::lease;
use crate::sql::{self, Outcome, Write};
use crate::store::Durability;

/// How many operations one commit takes at most.
const GROUP: usize = 256;

/// How long a pause between two attempts at another process's lock is, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(4));

/// How often the file is looked at while nothing happens.
const IDLE: Duration = Duration::from_millis(500);

/// How often commits of others are looked for where the directory can't be watched.
const POLL: Duration = Duration::from_millis(5);

/// When commits of others are looked for after something happened in the directory, one after the
/// other: what is written there comes a moment before the commit can be seen.
const LOOKS: [Duration; 26] = {
    let us = Duration::from_micros;
    [
        us(40),
        us(40),
        us(40),
        us(50),
        us(60),
        us(70),
        us(80),
        us(100),
        us(120),
        us(150),
        us(200),
        us(250),
        us(300),
        us(400),
        us(500),
        us(700),
        us(1_000),
        us(1_400),
        us(1_800),
        us(2_400),
        us(3_200),
        us(4_200),
        us(5_600),
        us(7_500),
        us(9_500),
        us(12_000),
    ]
};

/// Where the looks begin after a disturbance that this process may have made itself.
const CALM: usize = 16;

/// How often what is given back at the close is tried beside another process.
const LAST_TRIES: u32 = 50;

/// How many operations one caller serves for others while it is at it, and how often it looks for
/// more of them.
const HERE: (usize, usize) = (64, 4);

/// How often a caller tries to get hold of the connection before it leaves that to the thread.
const TRIES: u32 = 40;

/// The way to the write connection.
#[derive(Default)]
pub(crate) struct Writer {
    /// Locked before the inbox, where both are.
    desk: Mutex<Option<Desk>>,
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) arrived: Condvar,
}

#[derive(Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Waiting>,
    /// The lease that is being served.
    pub(crate) lease: Option<lease::Serving>,
    /// A caller serves what waits, and will look again.
    is_served: bool,
    /// Another connection writes.
    blocked: bool,
    /// Something happened in the directory.
    disturbed: bool,
    /// This process has written since then.
    has_written: bool,
    /// The log wants to be copied into the database.
    log_is_full: bool,
    pub(crate) closing: bool,
    ended: bool,
}

struct Waiting {
    place: Progress,
    work: Work,
}

pub(crate) enum Work {
    Operation(Box<dyn Operation>, Size),
    /// Nobody waits for it, and a close doesn't keep it away.
    GiveBack(Box<dyn Operation>),
    Lease(lease::Request),
}

/// How much a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// So little that a caller can do it on its own thread.
    Small,
    /// It may take a while.
    Any,
}

impl Size {
    /// A write of so many rows, and of so many bytes in all of them.
    pub(crate) fn of(rows: usize, bytes: usize) -> Self {
        if rows <= 128 && bytes <= 64 * 1024 { Self::Small } else { Self::Any }
    }
}

impl Waiting {
    fn is_small(&self) -> bool {
        matches!(self.work, Work::Operation(_, Size::Small))
    }

    fn refuse(self, error: Error) {
        match self.work {
            Work::Operation(operation, _) | Work::GiveBack(operation) => {
                operation.answer(Err(error));
            }
            Work::Lease(request) => drop(request.answer.send(Err(error))),
        }
    }
}

impl Inbox {
    /// Whether whoever is asked first may serve what waits.
    fn is_free(&self) -> bool {
        !(self.is_served || self.lease.is_some() || self.blocked || self.closing)
    }

    /// Takes the next operations, or nothing where one of them is for the thread.
    fn take_small(&mut self) -> Vec<Member> {
        if self.closing || !self.waiting.iter().all(Waiting::is_small) {
            return Vec::new();
        }
        let mut group = Vec::new();
        while group.len() < HERE.0
            && let Some(Waiting { place: progress, work }) = self.waiting.pop_front()
        {
            if let Work::Operation(operation, _) = work
                && progress.begin()
            {
                group.push(Member { progress, operation, gives_back: false });
            }
        }
        group
    }

    /// There was no time for these.
    fn put_back(&mut self, members: Vec<Member>) {
        for Member { progress, operation, gives_back } in members.into_iter().rev() {
            progress.put_back();
            let work = match gives_back {
                true => Work::GiveBack(operation),
                false => Work::Operation(operation, Size::Any),
            };
            self.waiting.push_front(Waiting { place: progress, work });
        }
    }
}

/// Who serves what was put into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The thread.
    Others,
    /// Its caller, once those had their turn who run beside it: what they put into the queue
    /// meanwhile is done with it.
    Own,
}

/// A place in the queue; it is given up with the future that waits in it.
pub(crate) struct Place(Progress);

impl Place {
    pub(crate) fn progress(&self) -> Progress {
        self.0.clone()
    }

    /// Whether what waits there will not be begun.
    pub(crate) fn give_up(&self) -> bool {
        self.0.cancel()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A caller that serves what waits. When it ends, the thread takes over what is left.
struct Here<'w>(&'w Writer);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox.lock();
        inbox.is_served = false;
        if !inbox.waiting.is_empty() || inbox.log_is_full {
            self.0.arrived.notify_one();
        }
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
        *hub.writer.desk.lock() = Some(Desk::new(conn, hub.durability()));
        let mut thread = Thread { hub, watched, looks: LOOKS.len(), last_tries: 0, leases: 0 };
        std::thread::Builder::new()
            .name("alkstore-writer".to_owned())
            .spawn(move || {
                thread.serve();
                // The last connection that goes tidies up; of two that go at once neither may.
                thread.hub.readers.join();
                drop(thread.hub.writer.desk.lock().take());
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

    /// Something happened in the directory. Says whether this process has written lately.
    pub(crate) fn disturb(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let own = inbox.has_written;
        if !std::mem::replace(&mut inbox.disturbed, true) {
            self.arrived.notify_all();
        }
        own
    }

    fn queue(&self, work: Work) -> Result<Place> {
        let place = Progress::default();
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
        Ok(Place(place))
    }

    pub(crate) fn push(&self, work: Work) -> Result<Place> {
        let place = self.queue(work)?;
        self.arrived.notify_one();
        Ok(place)
    }

    /// Runs a write in a commit with whatever else waits, and answers once it is durable.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        hub: &Hub,
        clock: Arc<dyn Clock>,
        (size, run): (Size, impl FnMut(&mut Write<'_>) -> Outcome<T> + Send + 'static),
        answer: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<(Place, Turn)> {
        let call = Box::new(Call::new(clock, run, answer));
        let place = self.queue(Work::Operation(call, size))?;
        if size == Size::Any || hub.durability() == Durability::Full {
            self.arrived.notify_one();
            return Ok((place, Turn::Others));
        }
        Ok((place, Turn::Own))
    }

    /// Sees to it that what waits in a place is served, if that hasn't begun.
    pub(crate) fn see_to(&self, hub: &Hub, place: &Place) {
        if !place.0.has_begun() && !self.serve_here(hub) {
            self.arrived.notify_one();
        }
    }

    /// Serves what waits on the caller's own thread, where nobody else writes and no commit waits
    /// for the disk: a hop to another thread would cost more. Says whether it did, or somebody
    /// else is at it.
    fn serve_here(&self, hub: &Hub) -> bool {
        if self.inbox.lock().is_served {
            return true;
        }
        let mut tries = 0;
        let mut desk = loop {
            match self.desk.try_lock() {
                Some(desk) => break desk,
                None if tries == TRIES => return false,
                None => std::hint::spin_loop(),
            }
            tries += 1;
        };
        let Some(desk) = desk.as_mut().filter(|desk| desk.is_quick(hub)) else { return false };
        {
            let mut inbox = self.inbox.lock();
            if !inbox.is_free() {
                return false;
            }
            inbox.is_served = true;
        }
        let _here = Here(self);
        for _ in 0..HERE.1 {
            // What goes wrong here is met and told by the thread.
            if !desk.is_quick(hub) || !matches!(desk.begin(hub), Ok(true)) {
                break;
            }
            let group = self.inbox.lock().take_small();
            if group.is_empty() {
                sql::rollback(&desk.conn);
                break;
            }
            let left = desk.serve(hub, group, false);
            let mut inbox = self.inbox.lock();
            inbox.put_back(left);
            inbox.has_written = true;
            inbox.log_is_full = desk.is_log_full();
            if inbox.waiting.is_empty() || inbox.log_is_full {
                break;
            }
        }
        true
    }

    /// A short look at the data through the write connection, whose own commits it has at hand;
    /// nothing where somebody has the connection.
    pub(crate) fn glance<T>(&self, read: impl FnOnce(&Connection) -> Outcome<T>) -> Option<T> {
        let desk = self.desk.try_lock()?;
        let conn = &desk.as_ref()?.conn;
        // Who has an error looks again elsewhere.
        read(conn).ok()
    }

    /// Runs a write that gives something back, for which nobody waits.
    pub(crate) fn give_back(
        &self,
        clock: Arc<dyn Clock>,
        run: impl FnMut(&mut Write<'_>) -> Outcome<()> + Send + 'static,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let call = Call::new(clock, run, answer);
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
    /// The log is full.
    Checkpoint,
    End(Vec<Waiting>),
}

enum Taken {
    Group(Vec<Member>),
    Lease(lease::Request),
    Nothing,
}

struct Thread {
    hub: Arc<Hub>,
    watched: bool,
    /// Which of the looks after a disturbance comes next.
    looks: usize,
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
                Next::Checkpoint => self.checkpoint(),
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
            inbox.waiting.retain(|waiting| !waiting.place.is_cancelled());
            if inbox.closing {
                let given_back = |waiting: &Waiting| matches!(waiting.work, Work::GiveBack(_));
                if self.last_tries < LAST_TRIES && inbox.waiting.iter().any(given_back) {
                    self.last_tries += 1;
                    return Next::Work;
                }
                inbox.ended = true;
                return Next::End(inbox.waiting.drain(..).collect());
            }
            if !inbox.waiting.is_empty() && !inbox.is_served {
                return Next::Work;
            }
            if std::mem::take(&mut inbox.log_is_full) {
                return Next::Checkpoint;
            }
            if std::mem::take(&mut inbox.disturbed) {
                // What this process does itself disturbs as well.
                let own = std::mem::take(&mut inbox.has_written) || inbox.is_served;
                self.looks = if own { self.looks.min(CALM) } else { 0 };
            }
            let idle = if self.watched { IDLE } else { POLL };
            let pause = LOOKS.get(self.looks).copied().unwrap_or(idle);
            let waited = self.hub.writer.arrived.wait_for(&mut inbox, pause);
            if waited.timed_out() && inbox.waiting.is_empty() {
                return Next::Look;
            }
        }
    }

    /// Looks for what others have done while nobody here wants anything.
    fn look_around(&mut self) {
        let hub = &self.hub;
        self.looks = (self.looks + 1).min(LOOKS.len());
        // Who has the connection has looked, and while it writes nobody else commits.
        if let Some(mut desk) = hub.writer.desk.try_lock()
            && let Some(desk) = desk.as_mut()
            && hub.check_file().is_ok()
        {
            desk.look_for_commits(hub);
            if self.looks == LOOKS.len() {
                desk.checkpoint();
            }
        }
    }

    fn checkpoint(&self) {
        if let Some(desk) = self.hub.writer.desk.lock().as_mut() {
            desk.checkpoint();
        }
    }

    fn work(&mut self) {
        let hub = self.hub.clone();
        let mut desk = hub.writer.desk.lock();
        let Some(desk) = desk.as_mut() else { return };
        match self.begin(desk) {
            Ok(true) => {}
            Ok(false) => return hub.writer.inbox.lock().blocked = false,
            Err(error) => return self.refuse(&error),
        }
        match self.take() {
            Taken::Group(group) => {
                let left = desk.serve(&hub, group, true);
                hub.writer.inbox.lock().put_back(left);
            }
            Taken::Lease(request) => {
                self.leases += 1;
                lease::serve(&hub, &desk.conn, self.leases, request);
                desk.has_written(true);
            }
            Taken::Nothing => sql::rollback(&desk.conn),
        }
        hub.writer.inbox.lock().has_written = true;
        if desk.is_log_full() {
            desk.checkpoint();
        }
    }

    /// Begins a transaction, for as long as somebody here waits for it.
    fn begin(&self, desk: &mut Desk) -> Result<bool> {
        let mut pause = PAUSES.0;
        loop {
            if desk.begin(&self.hub)? {
                return Ok(true);
            }
            let mut inbox = self.hub.writer.inbox.lock();
            inbox.waiting.retain(|waiting| !waiting.place.is_cancelled());
            if inbox.waiting.is_empty() || inbox.closing {
                return Ok(false);
            }
            inbox.blocked = true;
            self.hub.writer.arrived.wait_for(&mut inbox, pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn refuse(&self, error: &Error) {
        let mut inbox = self.hub.writer.inbox.lock();
        inbox.blocked = false;
        let waiting: Vec<_> = inbox.waiting.drain(..).collect();
        drop(inbox);
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
            let Some(Waiting { place: progress, work }) = inbox.waiting.pop_front() else { break };
            if !progress.begin() {
                continue;
            }
            let gives_back = matches!(work, Work::GiveBack(_));
            match work {
                Work::Operation(operation, _) | Work::GiveBack(operation) => {
                    group.push(Member { progress, operation, gives_back });
                }
                Work::Lease(request) => return Taken::Lease(request),
            }
        }
        if group.is_empty() { Taken::Nothing } else { Taken::Group(group) }
    }
}

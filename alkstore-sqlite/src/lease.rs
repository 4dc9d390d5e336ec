//! Leases: the write connection in the hands of one transaction of the application, while what
//! else wants to write waits.

use std::collections::VecDeque;
use std::sync::Arc;

use alkstore_core::{Error, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::group::commit;
use crate::hub::Hub;
use crate::sql::{self, Heads};
use crate::wake::{CloseSignal, Effects};
use crate::writer::{Place, Work, Writer};

/// Who wants to lease the connection.
pub(crate) struct Request {
    pub(crate) answer: oneshot::Sender<Result<LeaseGuard>>,
    close: Arc<CloseSignal>,
}

/// The lease that is being served, and what its transaction asks for.
pub(crate) struct Serving {
    number: u64,
    calls: VecDeque<Call>,
    dropped: bool,
    close: Arc<CloseSignal>,
}

/// What a lease's transaction does on the connection.
type Call = Box<dyn FnOnce(&mut Lease<'_>) -> Ended + Send>;

/// Whether the lease's transaction is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    No,
    Yes,
}

/// The connection as the transaction that leases it sees it.
pub(crate) struct Lease<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) hub: &'c Hub,
    pub(crate) effects: &'c mut Effects,
    pub(crate) heads: &'c mut Heads,
}

impl Lease<'_> {
    /// Commits the transaction and tells what it changed.
    pub(crate) fn commit(&mut self) -> Result<()> {
        commit(self.conn, self.hub)?;
        self.hub.fire(self.conn, self.effects);
        Ok(())
    }

    /// Undoes everything.
    pub(crate) fn rollback(&self) {
        drop(Undo { conn: self.conn, hub: self.hub });
    }
}

/// A lease that is held; it ends when this is dropped.
pub(crate) struct LeaseGuard {
    hub: Arc<Hub>,
    number: u64,
}

impl LeaseGuard {
    /// Runs a call of the transaction.
    pub(crate) fn call(&self, call: Call) -> Result<()> {
        {
            let mut inbox = self.hub.writer.inbox.lock();
            match &mut inbox.lease {
                Some(lease) if lease.number == self.number => lease.calls.push_back(call),
                _ => return Err(Error::Closed),
            }
        }
        self.hub.writer.arrived.notify_one();
        Ok(())
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lease) = &mut self.hub.writer.inbox.lock().lease
            && lease.number == self.number
        {
            lease.dropped = true;
        }
        self.hub.writer.arrived.notify_one();
    }
}

impl Writer {
    /// Leases the connection for a transaction, which has begun when the answer comes.
    pub(crate) fn lease(
        &self,
        close: Arc<CloseSignal>,
        answer: oneshot::Sender<Result<LeaseGuard>>,
    ) -> Result<Place> {
        self.push(Work::Lease(Request { answer, close }))
    }

    /// Whether a transaction of this store holds the connection.
    fn serves(&self, close: &Arc<CloseSignal>) -> bool {
        let inbox = self.inbox.lock();
        inbox.lease.as_ref().is_some_and(|lease| Arc::ptr_eq(&lease.close, close))
    }

    /// Ends once no transaction of a closed store holds the connection.
    pub(crate) async fn lease_ended(&self, close: &Arc<CloseSignal>) {
        loop {
            let mut ended = std::pin::pin!(close.lease_ended.notified());
            ended.as_mut().enable();
            if !self.serves(close) {
                return;
            }
            ended.await;
        }
    }

    /// The next call of the lease that is being served; none once it has ended.
    fn next_call(&self) -> Option<Call> {
        let mut inbox = self.inbox.lock();
        loop {
            let closing = inbox.closing;
            let lease = inbox.lease.as_mut()?;
            if closing || lease.close.is_closed() {
                return None;
            }
            if let Some(call) = lease.calls.pop_front() {
                return Some(call);
            }
            if lease.dropped {
                return None;
            }
            self.arrived.wait(&mut inbox);
        }
    }
}

/// Serves a lease in the transaction that has begun, until it ends.
pub(crate) fn serve(hub: &Arc<Hub>, conn: &Connection, number: u64, request: Request) {
    let undo = Undo { conn, hub };
    let Request { answer, close } = request;
    if let Err(error) = undo.mark() {
        return drop(answer.send(Err(hub.error(error.into()))));
    }
    hub.writer.inbox.lock().lease =
        Some(Serving { number, calls: VecDeque::new(), dropped: false, close });
    // Where nobody waits any longer, the guard is dropped here, and ends the lease.
    drop(answer.send(Ok(LeaseGuard { hub: hub.clone(), number })));
    let (mut effects, mut heads) = (Effects::default(), Heads::default());
    while let Some(call) = hub.writer.next_call() {
        let mut lease = Lease { conn, hub, effects: &mut effects, heads: &mut heads };
        if call(&mut lease) == Ended::Yes || conn.is_autocommit() {
            break;
        }
    }
    // What was still asked for hears that the transaction is over.
    let lease = hub.writer.inbox.lock().lease.take();
    drop(undo);
    if let Some(lease) = lease {
        lease.close.lease_ended.notify_waiters();
    }
}

/// Undoes, when it is dropped, a transaction that wasn't committed.
struct Undo<'c> {
    conn: &'c Connection,
    hub: &'c Hub,
}

impl Undo<'_> {
    /// Where everything staged can be undone to without an end of the transaction.
    fn mark(&self) -> rusqlite::Result<()> {
        sql::run(self.conn, "SAVEPOINT alkstore_lease", []).map(drop)
    }

    /// Undoes everything but that some ids were given: nobody writes in between.
    fn keep_ids(&self) -> Result<()> {
        let kept = sql::run(self.conn, "ROLLBACK TO alkstore_lease", [])
            .and_then(|_| self.hub.ids.keep(self.conn));
        kept.map_err(|error| self.hub.error(error.into()))?;
        Ok(commit(self.conn, self.hub)?)
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if !self.conn.is_autocommit() && self.hub.ids.are_forgotten() {
            // Where that fails, they are written down before the next group.
            drop(self.keep_ids());
        }
        sql::rollback(self.conn);
    }
}

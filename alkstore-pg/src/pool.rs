//! Connections: at most so many, each in one hand at a time, and known to be clean when it is
//! taken.
//!
//! A connection comes back only by [`Conn::put_back`], after its work has ended; whatever else
//! happens to it, a dropped future or an error in the protocol, it is closed. So nobody gets one
//! that is inside of somebody else's transaction, and none has to be asked first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alkstore_core::{Error, Result};
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::address;
use crate::clock::{instant, pause};
use crate::error::Stage;

/// After so long without use a connection is asked whether it is alive before it is used.
const IDLE: Duration = Duration::from_secs(5);

/// How long it may take to answer.
const PING: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOptions {
    pub(crate) max: u32,
    /// How long a caller waits for a connection.
    pub(crate) wait: Duration,
    /// How long a server may take to let one in.
    pub(crate) connect: Duration,
}

pub(crate) struct Pool {
    connect: PgConnectOptions,
    options: PoolOptions,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    conn: PgConnection,
    since: Instant,
}

/// A connection in somebody's hand. Dropped, it is closed.
pub(crate) struct Conn {
    conn: PgConnection,
    permit: OwnedSemaphorePermit,
    pool: Arc<Pool>,
}

impl Pool {
    pub(crate) fn new(connect: PgConnectOptions, options: PoolOptions) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(options.max as usize));
        Arc::new(Self { connect, options, permits, idle: Mutex::default() })
    }

    /// A connection, once there is one.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<Conn> {
        let wait = self.options.wait;
        let permit = match timeout(wait, self.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::Closed),
            Err(_) => {
                return Err(Error::unavailable(format!(
                    "all {} connections of the pool were in use for {wait:?}; raise max_connections, or hold transactions for a shorter time",
                    self.options.max
                )));
            }
        };
        let conn = match self.take_idle().await {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        if self.permits.is_closed() {
            return Err(Error::Closed);
        }
        Ok(Conn { conn, permit, pool: self.clone() })
    }

    async fn take_idle(&self) -> Option<PgConnection> {
        loop {
            let Idle { mut conn, since } = self.idle.lock().pop()?;
            let fresh = instant().saturating_duration_since(since) < IDLE;
            if fresh || matches!(timeout(PING, conn.ping()).await, Ok(Ok(()))) {
                return Some(conn);
            }
        }
    }

    /// A new connection; a server that is about to be there is waited for.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let patience = self.options.connect;
        let mut last = None;
        let attempts = async {
            let mut wait = Duration::from_millis(20);
            loop {
                let connected = self.connect.connect().await;
                match connected.map_err(|error| address::failure(&self.connect, error)) {
                    Err(failure) if failure.is_passing() && !self.permits.is_closed() => {
                        last = Some(failure);
                        pause(wait).await;
                        wait = (wait * 2).min(Duration::from_millis(500));
                    }
                    outcome => return outcome,
                }
            }
        };
        let outcome = timeout(patience, attempts).await;
        match (outcome, last) {
            (Ok(connected), _) => connected.map_err(|failure| failure.into_error(Stage::Harmless)),
            (Err(_), Some(failure)) => Err(failure.into_error(Stage::Harmless)),
            (Err(_), None) => Err(Error::unavailable(format!(
                "{}:{} let nobody in within {patience:?}",
                self.connect.get_host(),
                self.connect.get_port()
            ))),
        }
    }

    /// Nobody gets a connection from now on; those that nobody holds are closed.
    pub(crate) async fn close(&self) {
        for conn in self.close_now() {
            let _ = timeout(PING, conn.close()).await;
        }
    }

    /// As [`close`](Self::close); what is returned is still to be said goodbye to.
    pub(crate) fn close_now(&self) -> Vec<PgConnection> {
        self.permits.close();
        std::mem::take(&mut *self.idle.lock()).into_iter().map(|idle| idle.conn).collect()
    }
}

impl Conn {
    pub(crate) fn get(&mut self) -> &mut PgConnection {
        &mut self.conn
    }

    /// Gives it back: nothing is open on it.
    pub(crate) fn put_back(self) {
        let Self { conn, permit, pool } = self;
        if !pool.permits.is_closed() {
            pool.idle.lock().push(Idle { conn, since: instant() });
            // Closed in between, it would be left.
            if pool.permits.is_closed() {
                drop(pool.close_now());
            }
        }
        drop(permit);
    }

    /// Throws it away, and with it those that may have met the same fate.
    pub(crate) fn discard(self) {
        self.pool.idle.lock().clear();
    }
}

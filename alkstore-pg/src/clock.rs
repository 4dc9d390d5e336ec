//! Time is the server's. To wait, a store estimates it: by the last reading it got, and what has
//! passed since on this process's monotonic clock.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alkstore_core::Timestamp;
use futures_util::future::select;
use parking_lot::Mutex;
use sqlx::Row;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::store::Open;

/// Waits in real time.
#[expect(clippy::disallowed_methods, reason = "the engine's one timer")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[expect(clippy::disallowed_methods, reason = "what passes between two readings of the server")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// The longest single sleep: a server's clock that was set forward is noticed after so long.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Clock {
    reading: Mutex<Reading>,
    moved: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Microseconds since 1970.
    us: i64,
    at: Instant,
}

impl Clock {
    pub(crate) fn new(us: i64) -> Self {
        Self { reading: Mutex::new(Reading { us, at: instant() }), moved: Notify::new() }
    }

    /// What the server's clock showed just now.
    pub(crate) fn learn(&self, us: i64) {
        *self.reading.lock() = Reading { us, at: instant() };
    }

    /// How long it is until an instant.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        let Reading { us, at: read } = *self.reading.lock();
        let wanted = Duration::from_millis(at.as_millis().unsigned_abs());
        let read_then = Duration::from_micros(us.max(0).unsigned_abs());
        wanted.saturating_sub(read_then).saturating_sub(instant().saturating_duration_since(read))
    }

    /// The server's clock was moved: whoever sleeps asks it.
    pub(crate) fn moved(&self) {
        self.moved.notify_waiters();
    }
}

const NOW: &str = "SELECT {s}.clock_us()";

/// How long a sleeper waits for a server that may be away.
const PATIENCE: Duration = Duration::from_secs(1);

impl Open {
    /// The server's clock, where it can be had.
    async fn ask_clock(self: &Arc<Self>) -> Option<i64> {
        let asked = self.read(|mut sql| {
            Box::pin(async move {
                let statement = sql.query(NOW);
                Ok(sql.one(statement).await?.try_get::<i64, _>(0)?)
            })
        });
        let us = timeout(PATIENCE, asked).await.ok()?.ok()?;
        self.clock.learn(us);
        Some(us)
    }

    /// Sleeps on the server's clock; without a server by this process's.
    pub(crate) async fn sleep(self: &Arc<Self>, duration: Duration) {
        let Some(us) = self.ask_clock().await else { return pause(duration).await };
        let begun = Timestamp::EPOCH.plus(Duration::from_micros(us.max(0).unsigned_abs()));
        let until = begun.plus(duration);
        loop {
            let mut moved = pin!(self.clock.moved.notified());
            moved.as_mut().enable();
            let rest = self.clock.until(until).min(LONGEST_SLEEP);
            select(moved, pin!(pause(rest.max(Duration::from_millis(1))))).await;
            if self.ask_clock().await.is_none() || self.clock.until(until).is_zero() {
                return;
            }
        }
    }
}

//! Time is the server's. To wait, a store estimates it: by the last reading it got, and what has
//! passed since on this process's monotonic clock.

use std::pin::pin;
use std::time::{Duration, Instant};

use alkstore_core::Timestamp;
use futures_util::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

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
    /// When it was read; a clock that a test moves stands still in between.
    at: Option<Instant>,
}

impl Reading {
    fn now(self) -> Duration {
        let since = self.at.map_or(Duration::ZERO, |at| instant().saturating_duration_since(at));
        Duration::from_micros(self.us.max(0).unsigned_abs()).saturating_add(since)
    }
}

impl Clock {
    pub(crate) fn new(us: i64) -> Self {
        let reading = Reading { us, at: Some(instant()) };
        Self { reading: Mutex::new(reading), moved: Notify::new() }
    }

    /// What the server's clock showed just now.
    pub(crate) fn learn(&self, us: i64) {
        let mut reading = self.reading.lock();
        if reading.at.is_some() {
            *reading = Reading { us, at: Some(instant()) };
        }
    }

    /// What the server's clock shows until it is moved.
    pub(crate) fn stand_still(&self, us: i64) {
        *self.reading.lock() = Reading { us, at: None };
        self.moved.notify_waiters();
    }

    /// How long it is until an instant.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        let now = self.reading.lock().now();
        at.since(Timestamp::EPOCH).saturating_sub(now)
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        let until = Timestamp::EPOCH.plus(self.reading.lock().now()).plus(duration);
        loop {
            let mut moved = pin!(self.moved.notified());
            moved.as_mut().enable();
            let rest = self.until(until);
            if rest.is_zero() {
                return;
            }
            select(moved, pin!(pause(rest.min(LONGEST_SLEEP)))).await;
        }
    }
}

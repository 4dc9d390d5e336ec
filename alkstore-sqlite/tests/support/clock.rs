//! A clock for tests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{BoxFuture, Timestamp};
use alkstore_sqlite::Clock;
use tokio::sync::Notify;

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub(crate) struct ManualClock {
    now: Mutex<Duration>,
    moved: Notify,
}

impl ManualClock {
    pub(crate) fn new() -> Self {
        // 2026-01-01T00:00:00Z
        Self { now: Mutex::new(Duration::from_secs(1_767_225_600)), moved: Notify::new() }
    }

    pub(crate) fn advance(&self, by: Duration) {
        {
            let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            *now = now.saturating_add(by);
        }
        self.moved.notify_waiters();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep_until(&self, instant: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let instant = instant.since(Timestamp::EPOCH);
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                moved.as_mut().enable();
                if self.now() >= instant {
                    return;
                }
                moved.await;
            }
        })
    }
}

//! The engine's clock: the host's wall clock, read once an operation.

use std::time::{Duration, SystemTime};

use alkstore_core::Timestamp;

/// Where a SQLite store reads time.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The time since 1970.
    fn now(&self) -> Duration;
}

/// The host's wall clock: the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock;

impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

/// One reading of a clock. What is compared with now is compared with the millisecond that has
/// begun, what lies a duration from now is counted from the next one, so that no delay is early
/// and no lease is short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// The millisecond that has begun.
    pub(crate) now: i64,
    next: Timestamp,
}

impl Reading {
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        let since_1970 = clock.now();
        let millis = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
        let now = Timestamp::from_millis(millis).as_millis();
        Self { now, next: Timestamp::EPOCH.plus(since_1970) }
    }

    /// The instant a duration from now; now itself where it is zero.
    pub(crate) fn after(&self, duration: Duration) -> i64 {
        if duration.is_zero() { self.now } else { self.next.plus(duration).as_millis() }
    }
}

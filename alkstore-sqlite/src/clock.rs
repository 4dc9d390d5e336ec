//! The engine's clock: the host's wall clock, read once an operation.

use std::time::{Duration, Instant, SystemTime};

use alkstore_core::{BoxFuture, Timestamp};

/// The longest single sleep: a wall clock that was set forward is noticed after so long.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Where a SQLite store reads time and waits.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The time since 1970.
    fn now(&self) -> Duration;

    /// Ends once the clock shows this instant or a later one.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn sleep_until(&self, instant: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let instant = instant.since(Timestamp::EPOCH);
            while let Some(rest) = instant.checked_sub(self.now()).filter(|rest| !rest.is_zero()) {
                pause(rest.min(LONGEST_SLEEP)).await;
            }
        })
    }
}

/// Waits in real time.
#[expect(clippy::disallowed_methods, reason = "the engine's one timer")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// For how long something has gone on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "no clock that is set tells how long others wait"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Still(Duration);

    impl Clock for Still {
        fn now(&self) -> Duration {
            self.0
        }
    }

    #[test]
    fn a_duration_from_now_is_never_short() {
        let reading = Reading::of(&Still(Duration::from_micros(1_000_900)));
        assert_eq!(reading.now, 1_000);
        assert_eq!(reading.after(Duration::from_millis(100)), 1_101);
        assert_eq!(reading.after(Duration::ZERO), reading.now);
    }
}

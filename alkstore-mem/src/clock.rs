//! The engine's clock: the one place that reads time.

use std::time::Duration;

use alkstore_core::{BoxFuture, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The longest single sleep; a longer one is made of several. Timers have limits of their own.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Where a memory store reads time and waits.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The time since 1970.
    fn now(&self) -> Duration;

    /// Ends once the clock shows this instant or a later one.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    fn sleep_until(&self, instant: Timestamp) -> BoxFuture<'_, ()>;
}

/// One reading of a clock. The contract's instants are whole milliseconds: what is compared with
/// now is compared with the one that has begun, what lies a duration from now is counted from the
/// one that comes next, so that no delay is early and no lease is short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// The millisecond that has begun.
    pub(crate) now: Timestamp,
    next: Timestamp,
}

impl Reading {
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        let since_1970 = clock.now();
        let millis = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
        Self { now: Timestamp::from_millis(millis), next: Timestamp::EPOCH.plus(since_1970) }
    }

    /// The instant a duration from now; now itself where it is zero.
    pub(crate) fn after(&self, duration: Duration) -> Timestamp {
        if duration.is_zero() { self.now } else { self.next.plus(duration) }
    }
}

/// The default clock: wall time where it was made, from then on monotonic.
///
/// It follows `tokio::time`, so that `tokio::time::pause` and `advance` move it together with
/// tokio's timers. On wasm it follows the browser's or Node's clock.
#[derive(Debug)]
pub struct SystemClock {
    wall: Duration,
    start: platform::Instant,
}

impl SystemClock {
    /// A clock that begins at the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        Self { wall: platform::since_1970(), start: platform::instant() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.wall + platform::instant().duration_since(self.start)
    }

    fn sleep_until(&self, instant: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let instant = instant.since(Timestamp::EPOCH);
            while let Some(rest) = instant.checked_sub(self.now()).filter(|rest| !rest.is_zero()) {
                platform::sleep(rest.min(LONGEST_SLEEP)).await;
            }
        })
    }
}

#[cfg(not(target_family = "wasm"))]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
mod platform {
    use std::time::{Duration, SystemTime};

    pub(super) use tokio::time::Instant;

    pub(super) async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    pub(super) fn instant() -> Instant {
        Instant::now()
    }

    pub(super) fn since_1970() -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

#[cfg(target_family = "wasm")]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
mod platform {
    use std::time::Duration;

    use gloo_timers::future::TimeoutFuture;
    use send_wrapper::SendWrapper;
    pub(super) use web_time::Instant;
    use web_time::SystemTime;

    /// JavaScript's own timeout, cleared when it is dropped. Futures here run on the one thread
    /// that they were made on, which is what the wrapper holds them to.
    pub(super) fn sleep(duration: Duration) -> SendWrapper<TimeoutFuture> {
        let millis = duration.as_micros().div_ceil(1_000);
        SendWrapper::new(TimeoutFuture::new(u32::try_from(millis).unwrap_or(u32::MAX)))
    }

    pub(super) fn instant() -> Instant {
        Instant::now()
    }

    pub(super) fn since_1970() -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

/// A clock for tests: it stands still until it is moved.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use alkstore_core::{EnqueueOpts, StoreExt};
/// use alkstore_mem::{ManualClock, MemStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let clock = Arc::new(ManualClock::new());
/// let store = MemStore::builder().clock(clock.clone()).build();
/// let queue = store.queue("later")?;
/// queue.enqueue_with(&1, EnqueueOpts::new().delay(Duration::from_secs(60))).await?;
/// assert!(queue.claim("w").await?.is_none());
/// clock.advance(Duration::from_secs(60));
/// assert!(queue.claim("w").await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Duration>,
    moved: Notify,
}

impl ManualClock {
    /// A clock that stands at 2026-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Timestamp::from_millis(1_767_225_600_000))
    }

    /// A clock that stands at this instant.
    #[must_use]
    pub fn at(instant: Timestamp) -> Self {
        Self { now: Mutex::new(instant.since(Timestamp::EPOCH)), moved: Notify::new() }
    }

    /// Moves it forward and wakes who waits for it.
    pub fn advance(&self, by: Duration) {
        {
            let mut now = self.now.lock();
            *now = now.saturating_add(by);
        }
        self.moved.notify_waiters();
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_from_now_is_never_short() {
        let clock = ManualClock::at(Timestamp::from_millis(1_000));
        clock.advance(Duration::from_micros(900));
        let reading = Reading::of(&clock);
        assert_eq!(reading.now.as_millis(), 1_000);
        assert_eq!(reading.after(Duration::from_millis(100)).as_millis(), 1_101);
        assert_eq!(reading.after(Duration::ZERO), reading.now);
    }
}

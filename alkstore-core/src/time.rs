//! Instants and durations: whole milliseconds inside, rounded up, saturating.

use std::time::{Duration, SystemTime};

use web_time::Instant;

use crate::error::{Error, Result};

/// The longest lease: 3,650 days.
pub const MAX_LEASE: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

/// Milliseconds of a duration, rounded up; `i64::MAX` where it has more.
#[must_use]
pub fn ceil_millis(duration: Duration) -> i64 {
    let part = i64::from(duration.subsec_nanos().div_ceil(1_000_000));
    let whole = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    whole.saturating_mul(1_000).saturating_add(part)
}

/// A duration as it is stored: whole milliseconds, rounded up.
pub(crate) fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(ceil_millis(duration).unsigned_abs())
}

/// An instant on an engine's clock: whole milliseconds since 1970, between 0 and
/// [`Timestamp::FAR_AWAY`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use alkstore_core::Timestamp;
///
/// let start = Timestamp::from_millis(1_000);
/// assert_eq!(start.plus(Duration::from_micros(1)).as_millis(), 1_001);
/// assert_eq!(start.plus(Duration::MAX), Timestamp::FAR_AWAY);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// 9999-12-31T23:59:59.999Z, where everything that would lie later lies.
    pub const FAR_AWAY: Self = Self(253_402_300_799_999);

    /// The instant so many milliseconds after 1970, moved into the range where it lies outside.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, Self::FAR_AWAY.0))
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant later by a duration, which is rounded up.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        self.plus_millis(ceil_millis(duration))
    }

    /// This instant later by so many milliseconds.
    #[must_use]
    pub fn plus_millis(self, millis: i64) -> Self {
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// How far this instant lies after another; zero where it doesn't.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    /// Rounds up to the millisecond; an instant before 1970 counts as 1970.
    fn from(time: SystemTime) -> Self {
        Self::EPOCH.plus(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        Self::UNIX_EPOCH + timestamp.since(Timestamp::EPOCH)
    }
}

/// The length of a lease: 1 ms to 10 years, in whole milliseconds, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(i64);

impl Lease {
    /// Checks a lease given as the argument of that name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] below 1 ms or above 10 years.
    pub fn new(argument: &'static str, duration: Duration) -> Result<Self> {
        if duration < Duration::from_millis(1) || duration > MAX_LEASE {
            return Err(Error::invalid_argument(
                argument,
                format_args!("{duration:?}"),
                "a duration of 1 ms to 10 years",
            ));
        }
        Ok(Self(ceil_millis(duration)))
    }

    /// For engines: a length that was checked before, moved into the range where it lies outside.
    #[must_use]
    pub fn saturating(duration: Duration) -> Self {
        Self(ceil_millis(duration.min(MAX_LEASE)).max(1))
    }

    /// Its length in milliseconds.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// Its length.
    #[must_use]
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.0.unsigned_abs())
    }
}

/// A lease as its holder counts it down: on the process's monotonic clock, from before the call
/// that took it, so that a wrong wall clock can't make it look longer than it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Countdown {
    started: Instant,
    length: Duration,
}

impl Countdown {
    #[expect(clippy::disallowed_methods, reason = "the one monotonic reading of a lease's holder")]
    fn now() -> Instant {
        Instant::now()
    }

    /// Call it before the lease is asked for.
    pub(crate) fn start(length: Duration) -> Self {
        Self { started: Self::now(), length }
    }

    pub(crate) fn with_length(self, length: Duration) -> Self {
        Self { length, ..self }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.length.saturating_sub(Self::now().saturating_duration_since(self.started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_round_up_and_stay_in_range() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(Timestamp::from(before), Timestamp::EPOCH);
        let between = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_000_001);
        assert_eq!(Timestamp::from(between).as_millis(), 2);
        assert_eq!(Timestamp::from_millis(i64::MAX), Timestamp::FAR_AWAY);
    }

    #[test]
    fn a_lease_has_two_ends() {
        for bad in [Duration::ZERO, Duration::from_micros(999), MAX_LEASE + Duration::from_nanos(1)]
        {
            assert!(Lease::new("ttl", bad).is_err(), "{bad:?}");
        }
        assert_eq!(Lease::new("ttl", Duration::from_micros(1_001)).unwrap().as_millis(), 2);
        assert_eq!(Lease::new("ttl", MAX_LEASE).unwrap().as_duration(), MAX_LEASE);
    }
}

//! The model's own arithmetic of time: milliseconds since 1970.

use std::time::Duration;

/// 9999-12-31T23:59:59.999Z.
pub(super) const FAR_AWAY: i64 = 253_402_300_799_999;

/// Whole milliseconds, rounded up; far more than there are where it has too many.
pub(super) fn ms(duration: Duration) -> i64 {
    let whole = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2);
    let part = i64::from(!duration.subsec_nanos().is_multiple_of(1_000_000));
    (whole + part).min(i64::MAX / 2)
}

pub(super) fn later(now: i64, duration: Duration) -> i64 {
    (now + ms(duration)).min(FAR_AWAY)
}

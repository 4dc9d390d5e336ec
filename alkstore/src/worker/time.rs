//! What the worker measures in its own time, and how long it pauses.

use std::time::{Duration, Instant, SystemTime};

/// For durations that are reported, and for how long a claim still holds. What the worker waits
/// for, it waits for on the engine's clock.
#[expect(clippy::disallowed_methods, reason = "measures; it decides nothing but a lapsed lease")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// For people to read.
#[expect(clippy::disallowed_methods, reason = "shown in the worker's health, decides nothing")]
pub(super) fn wall() -> SystemTime {
    SystemTime::now()
}

/// A pause after a fault: it doubles from 50 ms to 5 s, and half of it is random, so that workers
/// don't come back in step.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(5);

    pub(super) fn new() -> Self {
        Self(Self::FIRST)
    }

    pub(super) fn reset(&mut self) {
        self.0 = Self::FIRST;
    }

    pub(super) fn next(&mut self) -> Duration {
        let step = self.0;
        self.0 = (step * 2).min(Self::LONGEST);
        step.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The same without an own state, after so many tries.
    pub(super) fn after(tries: u32) -> Duration {
        let step = Self::FIRST.saturating_mul(2_u32.saturating_pow(tries)).min(Self::LONGEST);
        step.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Three to five quarters of a duration.
pub(super) fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.75 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound() {
        let mut backoff = Backoff::new();
        let first = backoff.next();
        assert!(first >= Duration::from_millis(25) && first <= Duration::from_millis(50));
        let last = (0..40).map(|_| backoff.next()).last().unwrap_or_default();
        assert!(last >= Duration::from_millis(2_500) && last <= Duration::from_secs(5), "{last:?}");
        assert!(Backoff::after(u32::MAX) <= Duration::from_secs(5));
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(50));
    }

    #[test]
    fn polls_are_not_in_step() {
        let every = Duration::from_secs(20);
        let polls: Vec<_> = (0..100).map(|_| jittered(every)).collect();
        assert!(polls.iter().all(|poll| *poll >= every * 3 / 4 && *poll <= every * 5 / 4));
        assert!(polls.iter().any(|poll| *poll != polls[0]));
    }
}

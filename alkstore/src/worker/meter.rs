//! The worker's metrics; nothing without the feature `metrics`.

#[cfg(feature = "metrics")]
mod enabled {
    use std::time::Duration;

    use metrics::{Counter, Histogram, counter, histogram};

    use super::super::report::Ended;
    use crate::metrics::names;

    /// The metrics of a lane: looked up once, so that a job costs a few additions.
    #[derive(Debug)]
    pub(crate) struct LaneMeter {
        claimed: Counter,
        lost: Counter,
        settled: [Counter; Ended::ALL.len()],
        wait: Histogram,
        run: Histogram,
    }

    impl LaneMeter {
        pub(crate) fn new(queue: &str) -> Self {
            let queue = queue.to_owned();
            let settled = |ended: Ended| counter!(names::SETTLED, "queue" => queue.clone(), "outcome" => ended.name());
            Self {
                claimed: counter!(names::CLAIMED, "queue" => queue.clone()),
                lost: counter!(names::LOST, "queue" => queue.clone()),
                settled: Ended::ALL.map(settled),
                wait: histogram!(names::WAIT, "queue" => queue.clone()),
                run: histogram!(names::RUN, "queue" => queue.clone()),
            }
        }

        pub(crate) fn claimed(&self, count: usize) {
            self.claimed.increment(u64::try_from(count).unwrap_or(u64::MAX));
        }

        pub(crate) fn lost(&self) {
            self.lost.increment(1);
        }

        pub(crate) fn settled(&self, ended: Ended) {
            let place = Ended::ALL.iter().position(|other| *other == ended);
            if let Some(counter) = place.and_then(|place| self.settled.get(place)) {
                counter.increment(1);
            }
        }

        pub(crate) fn waited(&self, waited: Duration) {
            self.wait.record(waited);
        }

        pub(crate) fn ran(&self, took: Duration) {
            self.run.record(took);
        }
    }

    pub(crate) fn fault(operation: &'static str) {
        counter!(names::FAULTS, "operation" => operation).increment(1);
    }

    pub(crate) fn ticked(fired: u64) {
        counter!(names::TICKS).increment(1);
        counter!(names::FIRED).increment(fired);
    }
}

#[cfg(not(feature = "metrics"))]
mod disabled {
    use std::time::Duration;

    use super::super::report::Ended;

    #[derive(Debug)]
    pub(crate) struct LaneMeter;

    #[expect(clippy::unused_self, reason = "as with the feature")]
    impl LaneMeter {
        pub(crate) fn new(_: &str) -> Self {
            Self
        }

        pub(crate) fn claimed(&self, _: usize) {}

        pub(crate) fn lost(&self) {}

        pub(crate) fn settled(&self, _: Ended) {}

        pub(crate) fn waited(&self, _: Duration) {}

        pub(crate) fn ran(&self, _: Duration) {}
    }

    pub(crate) fn fault(_: &'static str) {}

    pub(crate) fn ticked(_: u64) {}
}

#[cfg(not(feature = "metrics"))]
pub(super) use disabled::{LaneMeter, fault, ticked};
#[cfg(feature = "metrics")]
pub(super) use enabled::{LaneMeter, fault, ticked};

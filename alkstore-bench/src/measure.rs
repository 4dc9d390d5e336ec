//! Rounds, medians and ratios.

use std::future::Future;
use std::time::{Duration, Instant};

use serde::Serialize;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the monotonic clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What one run of a workload found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    /// So many things in so long: more is better.
    Rate { count: u64, took: Duration },
    /// So long for one thing: less is better.
    Time(Duration),
}

impl Reading {
    fn value(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
            Self::Rate { count, took } => count as f64 / took.as_secs_f64(),
            Self::Time(took) => took.as_secs_f64() * 1e6,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Rate { .. } => "per s",
            Self::Time(_) => "µs",
        }
    }
}

/// Times a loop of so many steps.
pub(crate) async fn rate<F: Future<Output = anyhow::Result<()>>>(
    count: u64,
    work: impl FnOnce() -> F,
) -> anyhow::Result<Reading> {
    let start = now();
    work().await?;
    Ok(Reading::Rate { count, took: start.elapsed() })
}

/// The readings of one workload over all rounds.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) rounds: Vec<f64>,
}

impl Series {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub(crate) fn add(&mut self, reading: Reading) {
        self.unit = reading.unit();
        self.rounds.push(reading.value());
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// How far the rounds lie apart, as a part of their median.
    pub(crate) fn spread(&self) -> f64 {
        let (least, most) = self
            .rounds
            .iter()
            .fold((f64::MAX, f64::MIN), |(least, most), &v| (least.min(v), most.max(v)));
        (most - least) / self.median()
    }
}

/// Round by round, what one workload read against another, the median of that, and in how many
/// rounds it met a bound.
pub(crate) fn ratio(ours: &Series, other: &Series) -> Vec<f64> {
    ours.rounds.iter().zip(&other.rounds).map(|(ours, other)| ours / other).collect()
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The value below which this part of the readings lies.
pub(crate) fn percentile(mut times: Vec<Duration>, part: f64) -> Duration {
    times.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a few thousand readings"
    )]
    let place = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(place).copied().unwrap_or_default()
}

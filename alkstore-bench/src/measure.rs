//! Rounds, medians and ratios.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the monotonic clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// The microseconds since 1970, which two processes agree on.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the wall clock")]
pub fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Lets a moment pass, so that what waits comes to rest.
#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// What one run of a workload found.
#[derive(Debug, Clone, Copy)]
pub enum Reading {
    /// So many things in so long: more is better.
    Rate { count: u64, took: Duration },
    /// So long for one thing: less is better.
    Time(Duration),
    /// So much of a core's time: less is better.
    Core { used: Duration, of: Duration },
    /// So many times as long as something else took in turn with it: less is better.
    Times { took: Duration, other: Duration },
}

impl Reading {
    pub fn value(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
            Self::Rate { count, took } => count as f64 / took.as_secs_f64(),
            Self::Time(took) => took.as_secs_f64() * 1e6,
            Self::Core { used, of } => used.as_secs_f64() / of.as_secs_f64() * 100.0,
            Self::Times { took, other } => took.as_secs_f64() / other.as_secs_f64(),
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Self::Rate { .. } => "per s",
            Self::Time(_) => "µs",
            Self::Core { .. } => "% of a core",
            Self::Times { .. } => "times",
        }
    }

    pub fn is_better_when_more(self) -> bool {
        matches!(self, Self::Rate { .. })
    }
}

/// Times a loop of so many steps.
pub async fn rate<F: Future<Output = anyhow::Result<()>>>(
    count: u64,
    work: impl FnOnce() -> F,
) -> anyhow::Result<Reading> {
    let start = now();
    work().await?;
    Ok(Reading::Rate { count, took: start.elapsed() })
}

/// The processor time that this process has used.
pub fn processor_time() -> anyhow::Result<Duration> {
    let mut used = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread may end between the listing and the look.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        used += text.split_whitespace().next().map_or(Ok(0), str::parse::<u64>)?;
    }
    Ok(Duration::from_nanos(used))
}

/// The readings of one workload over all rounds.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Series {
    pub name: String,
    pub unit: &'static str,
    pub rounds: Vec<f64>,
}

impl Series {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub fn add(&mut self, reading: Reading) {
        self.unit = reading.unit();
        self.rounds.push(reading.value());
    }

    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// How far the rounds lie apart, as a part of their median.
    pub fn spread(&self) -> f64 {
        let (least, most) = self
            .rounds
            .iter()
            .fold((f64::MAX, f64::MIN), |(least, most), &v| (least.min(v), most.max(v)));
        (most - least) / self.median()
    }
}

/// Round by round, what one workload read against another.
pub fn ratio(ours: &Series, other: &Series) -> Vec<f64> {
    ours.rounds.iter().zip(&other.rounds).map(|(ours, other)| ours / other).collect()
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The value below which this part of the readings lies.
pub fn percentile(mut times: Vec<Duration>, part: f64) -> Duration {
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

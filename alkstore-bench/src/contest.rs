//! Contests: every workload once a round by each contestant in turn, so that a drift of the
//! machine's speed meets all alike.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;

use crate::measure::Reading;
use crate::table::Readings;
use crate::workload::{Target, Workload};

/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The contestant that the others are held against.
pub const OURS: &str = "alkstore";

/// The contestant that shows what the bare driver reaches.
pub const LIMIT: &str = "limit";

type Running = Pin<Box<dyn Future<Output = anyhow::Result<Reading>>>>;
pub type Run = Box<dyn Fn() -> Running>;

/// What is asked of a case.
#[derive(Debug, Clone, Copy)]
pub enum Bar {
    /// So many times the best peer, or the given part of the limit where that is lower.
    Peer(f64),
    /// So many times what a peer reads in another case of the round, or the given part of the
    /// limit where that is lower.
    PeerIn(f64, &'static str, &'static str),
    /// The best peer's reading of another case of the round.
    PeerOf(&'static str),
    /// So many times our own reading of another case of the round.
    OursOf(f64, &'static str),
    /// So many times the limit.
    Limit(f64),
    /// So much time.
    AtMost(f64),
}

pub struct Case {
    pub name: String,
    pub runs: Vec<(&'static str, Run)>,
    pub bars: Vec<Bar>,
}

pub fn run<F: Future<Output = anyhow::Result<Reading>> + 'static>(
    who: &'static str,
    run: impl Fn() -> F + 'static,
) -> (&'static str, Run) {
    (who, Box::new(move || -> Running { Box::pin(run()) }))
}

/// A driver that blocks.
pub fn blocking(
    who: &'static str,
    run: impl Fn() -> anyhow::Result<Reading> + 'static,
) -> (&'static str, Run) {
    (who, Box::new(move || -> Running { Box::pin(std::future::ready(run())) }))
}

impl From<Workload> for Case {
    /// A case without others.
    fn from(workload: Workload) -> Self {
        let bars = match workload.target {
            Some(Target::NotBelow(part, other)) => vec![Bar::OursOf(part, other)],
            Some(Target::AtMost(most)) => vec![Bar::AtMost(most)],
            Some(Target::PerSecond(_)) | None => vec![],
        };
        let name = workload.name.to_owned();
        Self { name, runs: vec![(OURS, Box::new(move || (workload.run)()))], bars }
    }
}

/// How a contest is run.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How many rounds are counted, after one to warm up.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// One round and no warm-up: to see that it works, and roughly where it stands.
    #[arg(long)]
    pub quick: bool,
    /// Only workloads whose name has this in it; may be given more than once.
    #[arg(long)]
    pub only: Vec<String>,
    /// Only this contestant: what a profiler is to see; may be given more than once.
    #[arg(long)]
    pub who: Vec<String>,
    /// Also writes the readings to this file, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

/// Runs once, on a runtime of its own.
fn once(run: &Run) -> anyhow::Result<Reading> {
    let runtime = runtime()?;
    let reading = runtime.block_on(async { tokio::time::timeout(PATIENCE, run()).await });
    // Nobody waits for what a contestant has left running.
    runtime.shutdown_timeout(Duration::from_millis(100));
    reading.with_context(|| format!("not done within {PATIENCE:?}"))?
}

/// Runs all rounds, and prints the table.
pub fn compare(mut cases: Vec<Case>, options: &Options) -> anyhow::Result<()> {
    let wanted = |name: &str, only: &[String]| {
        only.is_empty() || only.iter().any(|part| name.contains(part))
    };
    cases.retain(|case| wanted(&case.name, &options.only));
    let mut readings = Readings::default();
    let rounds = if options.quick { 1 } else { options.rounds + 1 };
    for round in 1..=rounds {
        for case in &cases {
            for (who, run) in case.runs.iter().filter(|(who, _)| wanted(who, &options.who)) {
                let counts = round > 1 || options.quick;
                match once(run).with_context(|| format!("{who}: {}", case.name)) {
                    Ok(reading) if counts => readings.add(&case.name, who, reading),
                    Ok(_) => {}
                    // What a peer fails at is missing in the table.
                    Err(error) if *who != OURS && *who != LIMIT => {
                        eprintln!("{error:#}");
                        if counts {
                            readings.miss(&case.name, who);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    println!("{}", readings.table(&cases));
    if let Some(path) = &options.json {
        std::fs::write(path, readings.json(&cases)?)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

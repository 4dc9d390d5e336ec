//! Benchmarks of alkstore: every workload once a round, all of them in turn, so that a drift of
//! the machine's speed meets all alike. Prints medians, spreads and ratios, and says which
//! targets are met.

use std::path::PathBuf;

use alkstore_bench::measure::Series;
use alkstore_bench::{mem, report, worker, workload};
use anyhow::Context;
use clap::Parser;

/// Measures the engines and the worker runtime and holds them against their targets.
#[derive(Debug, Parser)]
struct Args {
    /// How many rounds are counted, after one to warm up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Runs only workloads whose name has this in it, and those they are held against.
    #[arg(long)]
    only: Option<String>,
    /// Also writes the readings to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut workloads = mem::workloads();
    #[cfg(feature = "sqlite")]
    workloads.extend(alkstore_bench::sqlite::workloads());
    #[cfg(feature = "pg")]
    workloads.extend(alkstore_bench::pg::workloads());
    workloads.extend(worker::workloads());
    if let Some(only) = &args.only {
        let mut wanted: Vec<_> =
            workloads.iter().filter(|w| w.name.contains(only.as_str())).map(|w| w.name).collect();
        wanted.extend(
            workloads
                .iter()
                .filter(|w| wanted.contains(&w.name))
                .filter_map(|w| match w.target {
                    Some(workload::Target::NotBelow(_, other)) => Some(other),
                    _ => None,
                })
                .collect::<Vec<_>>(),
        );
        workloads.retain(|w| wanted.contains(&w.name));
        anyhow::ensure!(!workloads.is_empty(), "no workload has {only:?} in its name");
    }
    let mut series: Vec<_> = workloads.iter().map(|w| Series::new(w.name)).collect();
    for round in 0..=args.rounds {
        for (workload, series) in workloads.iter().zip(&mut series) {
            let reading = workload.measure().with_context(|| workload.name)?;
            if round > 0 {
                series.add(reading);
            }
        }
        report::progress(round, args.rounds);
    }
    report::table(&workloads, &series);
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&series)?;
        std::fs::write(path, json).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

//! Holds alkstore's SQLite engine against honker and against a program written for rusqlite alone:
//! every workload once a round by each of them in turn, so that a drift of the machine's speed
//! meets all alike. Prints medians, spreads, ratios and which targets are met.

mod cases;
mod honker;
mod limit;
mod table;
mod threads;

use std::path::{Path, PathBuf};

use alkstore_bench::sqlite::{PRODUCER, produce};
use alkstore_sqlite::Durability;
use anyhow::Context;
use clap::Parser;

/// Holds the SQLite engine against honker and a raw driver.
#[derive(Debug, Parser)]
struct Args {
    /// How many rounds are counted, after one to warm up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// One round and no warm-up: to see that it works, and roughly where it stands.
    #[arg(long)]
    quick: bool,
    /// Only workloads whose name has this in it; may be given more than once.
    #[arg(long)]
    only: Vec<String>,
    /// Only this contestant: what a profiler is to see.
    #[arg(long, value_enum)]
    who: Option<cases::Who>,
    /// Instead: what a million rows beside cost the engine, and its longest claim.
    #[arg(long)]
    growth: bool,
    /// Claims at a million jobs as well, once: the peer takes half a minute for a few.
    #[arg(long)]
    million: bool,
    /// Also writes the readings to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_time().build()?)
}

fn durability(name: &str) -> Durability {
    if name == "Full" { Durability::Full } else { Durability::Normal }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, PRODUCER, name, path] => {
            return runtime()?.block_on(produce(Path::new(path), durability(name)));
        }
        [_, honker::PRODUCER, name, path] => {
            return honker::produce(Path::new(path), durability(name));
        }
        _ => compare(&Args::parse()),
    }
}

fn compare(args: &Args) -> anyhow::Result<()> {
    let mut cases = if args.growth { cases::alone() } else { cases::all() };
    cases.retain(|case| {
        args.only.is_empty() || args.only.iter().any(|part| case.name.contains(part.as_str()))
    });
    let mut readings = table::Readings::default();
    let rounds = if args.quick { 1 } else { args.rounds + 1 };
    for round in 1..=rounds {
        for case in &cases {
            let wanted = |who| args.who.is_none_or(|wanted| wanted == who);
            for (who, run) in case.runs.iter().filter(|(who, _)| wanted(*who)) {
                let reading = runtime()?
                    .block_on(run())
                    .with_context(|| format!("{who:?}: {}", case.name))?;
                if round > 1 || args.quick {
                    readings.add(&case.name, *who, reading);
                }
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    if args.million {
        let case = cases::growth();
        for (who, run) in &case.runs {
            readings.add(&case.name, *who, runtime()?.block_on(run())?);
        }
        cases.push(case);
    }
    println!("{}", readings.table(&cases));
    if let Some(path) = &args.json {
        std::fs::write(path, readings.json(&cases)?)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

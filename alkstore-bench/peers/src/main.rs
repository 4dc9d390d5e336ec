//! Holds alkstore's SQLite engine against honker and against a program written for rusqlite alone:
//! every workload once a round by each of them in turn.

mod cases;
mod honker;
mod limit;
mod threads;

use std::path::Path;

use alkstore_bench::contest::{Options, compare};
use alkstore_bench::sqlite::{PRODUCER, produce};
use alkstore_sqlite::Durability;
use clap::Parser;

/// Holds the SQLite engine against honker and a raw driver.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Instead: what a million rows beside cost the engine, and its longest claim.
    #[arg(long)]
    growth: bool,
    /// Instead: claims at a million jobs, once; the peer takes half a minute for a few.
    #[arg(long)]
    million: bool,
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
        _ => {}
    }
    let Args { mut options, growth, million } = Args::parse();
    let cases = match (growth, million) {
        (true, _) => cases::alone(),
        (_, true) => {
            options.quick = true;
            vec![cases::growth()]
        }
        _ => cases::all(),
    };
    compare(cases, &options)
}

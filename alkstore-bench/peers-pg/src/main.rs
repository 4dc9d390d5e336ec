//! Holds alkstore's Postgres engine against pgmq, graphile_worker, underway, apalis and a program
//! written for sqlx alone, all on one private cluster that waits for the disk at every commit.

mod apalis;
mod cases;
mod graphile;
mod handlers;
mod limit;
mod pgmq;
mod underway;

use alkstore_bench::contest::{Options, compare};
use clap::Parser;

/// Holds the Postgres engine against others and a raw driver.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Instead: what up to a million rows beside cost the engine.
    #[arg(long)]
    growth: bool,
}

fn main() -> anyhow::Result<()> {
    let Args { options, growth } = Args::parse();
    compare(if growth { cases::alone() } else { cases::all() }, &options)
}

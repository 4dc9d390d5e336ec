//! Holds alkstore's memory engine against the one that another party publishes by the same name,
//! as a black box, by its documentation: every workload once a round by each of them in turn.

mod ours;
mod published_one;

use alkstore_bench::contest::{Bar, Case, OURS, Options, Run, compare, run};
use clap::Parser;
use serde_json::{Value, json};

/// The engine in the registry.
const PUBLISHED: &str = "published 0.1.0";

/// How many jobs or events a run writes or reads.
const MANY: u64 = 100_000;

/// How many jobs stand ready where some are claimed: few, as the peer's claims get slower with them.
const READY: u64 = 5_000;

/// How many of them are claimed and acked one by one.
const ONE_BY_ONE: u64 = 1_000;

/// Holds the memory engine against a published one.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// A hundred bytes of JSON, which each has to write as text itself.
fn payload() -> Value {
    json!({ "body": "x".repeat(89) })
}

fn case(name: &str, runs: [(&'static str, Run); 2], bar: Option<f64>) -> Case {
    let bars = bar.into_iter().map(Bar::Peer).collect();
    Case { name: name.to_owned(), runs: runs.into(), bars }
}

fn main() -> anyhow::Result<()> {
    let cases = vec![
        case(
            "enqueue, one producer",
            [run(OURS, ours::enqueue), run(PUBLISHED, published_one::enqueue)],
            Some(1.5),
        ),
        case(
            "claim + ack one by one, 5,000 ready",
            [run(OURS, ours::one_by_one), run(PUBLISHED, published_one::one_by_one)],
            None,
        ),
        case(
            "claim 32 + ack 32, one worker",
            [run(OURS, ours::batches), run(PUBLISHED, published_one::batches)],
            Some(3.0),
        ),
        case(
            "publish, one by one",
            [run(OURS, ours::publish), run(PUBLISHED, published_one::publish)],
            None,
        ),
        case(
            "read, 1,000 a call",
            [run(OURS, ours::read), run(PUBLISHED, published_one::read)],
            Some(1.0),
        ),
    ];
    compare(cases, &Args::parse().options)
}

//! The engines beside each other: random sequences of operations, in which every answer and
//! everything that can be read is the same on all of them.
//!
//! `ALKSTORE_OPERATIONS` says how many operations are run at least.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic, and says what it has covered"
)]

// The engines' columns of the conformance suite: stores with a clock that a test moves.
#[path = "../../alkstore-pg/tests/support/bouncer.rs"]
mod bouncer;
#[path = "../../alkstore-sqlite/tests/support/clock.rs"]
mod clock;
#[path = "../../alkstore-sqlite/tests/support/directory.rs"]
mod directory;
#[path = "../../alkstore-mem/tests/support/mod.rs"]
mod memory;
#[path = "../../alkstore-pg/tests/support/factory.rs"]
mod postgres;
#[path = "../../alkstore-sqlite/tests/support/factory.rs"]
mod sqlite;

use std::sync::Arc;

use alkstore_suite::StoreFactory;
use alkstore_suite::model::{Covered, Engines, Plan, run_side_by_side};
use postgres::PgFactory;

/// How many operations a sequence has at most.
const OPS: usize = 80;

/// `engines` is told whether claims on Postgres do as they do where dead rows are in their way.
fn compare(engines: fn(bool) -> Engines, share: u64, regressions: &'static str) {
    let wanted = std::env::var("ALKSTORE_OPERATIONS").map_or(1_200, |count| count.parse().unwrap());
    let wanted = wanted / share;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let plan = Plan { cases: 8, ops: OPS, regressions: Some(regressions) };
    let mut covered = Covered::new();
    let mut floors = false;
    while operations(&covered) < wanted {
        let of_a_run =
            run_side_by_side(plan, || engines(floors), |sequence| runtime.block_on(sequence));
        for (what, times) in of_a_run {
            *covered.entry(what).or_default() += times;
        }
        floors = !floors;
    }
    let names: Vec<_> = engines(floors).into_iter().map(|(name, _)| name).collect();
    println!("side by side: {} operations on {names:?}", operations(&covered));
    println!("{covered:#?}");
}

/// Those that were done, and not left out.
fn operations(covered: &Covered) -> u64 {
    covered.iter().filter(|(what, _)| !what.ends_with("left out")).map(|(_, times)| times).sum()
}

fn memory() -> (&'static str, Arc<dyn StoreFactory>) {
    ("memory", Arc::new(memory::MemFactory))
}

fn sqlite() -> (&'static str, Arc<dyn StoreFactory>) {
    ("SQLite", Arc::new(sqlite::SqliteFactory))
}

fn postgres(floors: bool) -> (&'static str, Arc<dyn StoreFactory>) {
    let factory = PgFactory { floors, ..PgFactory::new(4) };
    ("Postgres", Arc::new(factory))
}

#[test]
fn needs_postgres_three_engines_do_the_same() {
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/three.proptest-regressions");
    compare(|floors| vec![memory(), sqlite(), postgres(floors)], 1, regressions);
}

/// Where nobody waits for SQLite's one writer, more is done while a transaction is open.
#[test]
fn needs_postgres_two_engines_do_the_same_beside_a_transaction() {
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/two.proptest-regressions");
    compare(|floors| vec![memory(), postgres(floors)], 4, regressions);
}

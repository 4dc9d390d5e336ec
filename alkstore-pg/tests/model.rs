//! The Postgres engine against the model of the contract.
//!
//! `ALKSTORE_CASES` says how many sequences are run.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/bouncer.rs"]
mod bouncer;
#[path = "support/factory.rs"]
mod factory;

use std::sync::Arc;

use alkstore_suite::model::{Covered, Plan, run};
use factory::PgFactory;

#[test]
fn the_engine_does_what_the_model_does() {
    let cases = std::env::var("ALKSTORE_CASES").map_or(8, |cases| cases.parse().unwrap());
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model.proptest-regressions");
    let plan = Plan { cases: u32::div_ceil(cases, 2), ops: 80, regressions: Some(regressions) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut covered = Covered::new();
    for floors in [false, true] {
        let factory = PgFactory { floors, ..PgFactory::new(4) };
        for (what, times) in run(plan, || Arc::new(factory), |sequence| runtime.block_on(sequence))
        {
            *covered.entry(what).or_default() += times;
        }
    }
    println!("{} operations in {cases} sequences: {covered:#?}", covered.values().sum::<u64>());
}

//! The rows bite: each of these engines breaks one rule, and the rows of that rule fail on it.
#![cfg(not(target_family = "wasm"))]
#![allow(clippy::expect_used, reason = "a test fails by a panic")]

mod claims;
mod edits;
mod harness;
mod locks;
mod queues;
mod schedules;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod txs;
mod wakes;

use std::fmt::Write;

use crate::harness::{Broken, Outcome, Verdict, run_all};

/// How many rows beyond the named ones may fail: rules lean on each other.
const OTHERS: usize = 10;

#[test]
fn every_broken_engine_is_caught() {
    let mut wrong = String::new();
    for (engine, verdict) in judged(table::all()) {
        let mut others = Vec::new();
        let mut missed = engine.rows.to_vec();
        for (row, outcome) in verdict {
            match outcome {
                Outcome::Held => {}
                Outcome::Stumbled(why) => {
                    let _ = writeln!(wrong, "{}: {row} stumbles: {why}", engine.name);
                }
                Outcome::Caught(why) => match missed.iter().position(|named| *named == row) {
                    Some(n) => drop(missed.remove(n)),
                    None => others.push(format!("{row} ({why})")),
                },
            }
        }
        if engine.rows.is_empty() || !missed.is_empty() || others.len() > OTHERS {
            let _ = writeln!(wrong, "{}: these hold: {missed:?}", engine.name);
            for other in others {
                let _ = writeln!(wrong, "    also fails: {other}");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn an_engine_without_a_fault_passes_under_the_same_layers() {
    let mut wrong = String::new();
    for (engine, verdict) in judged(table::whole()) {
        for (row, outcome) in verdict {
            if outcome != Outcome::Held {
                let _ = writeln!(wrong, "{}: {row}: {outcome:?}", engine.name);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Every engine, or those whose name contains what `ALKSTORE_BITES` says, and how the rows ended.
fn judged(mut engines: Vec<Broken>) -> impl Iterator<Item = (Broken, Verdict)> {
    if let Ok(part) = std::env::var("ALKSTORE_BITES") {
        engines.retain(|engine| engine.name.contains(&part));
        assert!(!engines.is_empty(), "no engine of that name");
    }
    let verdicts = run_all(&engines);
    engines.into_iter().zip(verdicts)
}

//! The worker runtime on the engines that need no server.

#![allow(
    clippy::expect_used,
    clippy::future_not_send,
    clippy::large_futures,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic, says on which engine it was, and runs on one thread"
)]

// The engines' columns of the conformance suite: stores with a clock that a test moves.
#[path = "../../../alkstore-sqlite/tests/support/clock.rs"]
mod clock;
#[path = "../../../alkstore-sqlite/tests/support/directory.rs"]
mod directory;
#[path = "../../../alkstore-sqlite/tests/support/factory.rs"]
mod factory;
#[path = "../../../alkstore-mem/tests/support/mod.rs"]
mod memory;

mod building;
mod claiming;
mod faults;
mod idle;
mod keeping;
mod load;
mod outboxes;
mod outcomes;
mod seeing;
mod side;
mod stage;
mod stopping;

use std::sync::Arc;

use alkstore_suite::StoreFactory;

fn engines() -> Vec<(&'static str, Arc<dyn StoreFactory>)> {
    vec![("memory", Arc::new(memory::MemFactory)), ("SQLite", Arc::new(factory::SqliteFactory))]
}

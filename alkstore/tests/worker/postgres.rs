//! The worker runtime on Postgres.

#![allow(
    clippy::expect_used,
    clippy::future_not_send,
    clippy::large_futures,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic, says on which engine it was, and runs on one thread"
)]

#[path = "../../../alkstore-pg/tests/support/bouncer.rs"]
mod bouncer;
#[path = "../../../alkstore-pg/tests/support/factory.rs"]
mod factory;

mod stage;

/// The same tests.
#[path = "."]
mod needs_postgres {
    mod building;
    mod claiming;
    mod faults;
    mod keeping;
    mod load;
    mod outboxes;
    mod outcomes;
    mod seeing;
    mod side;
    mod stopping;
}

use std::sync::Arc;

use alkstore_suite::StoreFactory;

fn engines() -> Vec<(&'static str, Arc<dyn StoreFactory>)> {
    let factory = factory::PgFactory::new(8);
    vec![("Postgres", Arc::new(factory))]
}

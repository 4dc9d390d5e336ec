//! Every row of the suite on the SQLite engine.

#[path = "support/clock.rs"]
mod clock;
#[path = "support/directory.rs"]
mod directory;
#[path = "support/factory.rs"]
mod factory;

mod current_thread {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "current_thread")]
        crate::factory::SqliteFactory
    }
}

mod multi_thread {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        crate::factory::SqliteFactory
    }
}

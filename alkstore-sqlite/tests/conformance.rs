//! Every row of the suite on the SQLite engine.

mod support;

mod current_thread {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "current_thread")]
        crate::support::SqliteFactory
    }
}

mod multi_thread {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        crate::support::SqliteFactory
    }
}

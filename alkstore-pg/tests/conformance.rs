//! Every row of the suite on the Postgres engine.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "support/bouncer.rs"]
mod bouncer;
#[path = "support/factory.rs"]
mod factory;

use factory::PgFactory;

mod one_connection {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "current_thread")]
        crate::PgFactory { client_ahead: 1, ..crate::PgFactory::new(1) }
    }
}

mod eight_connections {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        crate::PgFactory { client_ahead: -1, floors: true, ..crate::PgFactory::new(8) }
    }
}

mod behind_a_pooler {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "current_thread")]
        crate::PgFactory { pooled: true, ..crate::PgFactory::new(4) }
    }
}

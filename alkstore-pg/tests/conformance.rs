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
        crate::PgFactory { connections: 1, client_ahead: 1, pooled: false }
    }
}

mod eight_connections {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        crate::PgFactory { connections: 8, client_ahead: -1, pooled: false }
    }
}

mod behind_a_pooler {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "current_thread")]
        crate::PgFactory { connections: 4, client_ahead: 0, pooled: true }
    }
}

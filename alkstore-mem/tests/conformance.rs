//! Every row of the suite on the memory engine.
#![cfg(not(target_family = "wasm"))]

mod support;

mod current_thread {
    alkstore_suite::conformance! { #[tokio::test(flavor = "current_thread")] crate::support::MemFactory }
}

mod multi_thread {
    alkstore_suite::conformance! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        crate::support::MemFactory
    }
}

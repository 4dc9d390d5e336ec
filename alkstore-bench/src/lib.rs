//! The workloads of alkstore's engines and how they are measured, for the programs that run them:
//! the one of this crate, and the one that holds them against others.
#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "for two programs of this repository alone"
)]

pub mod measure;
pub mod mem;
pub mod report;
pub mod sqlite;
pub mod worker;
pub mod workload;

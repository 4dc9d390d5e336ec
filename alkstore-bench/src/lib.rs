//! The workloads of alkstore's engines and how they are measured, for the programs that run them:
//! the one of this crate, and those that hold them against others.
#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "for programs of this repository alone"
)]

pub mod beside;
pub mod contest;
pub mod handles;
pub mod measure;
pub mod mem;
#[cfg(feature = "pg")]
pub mod pg;
pub mod report;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod table;
pub mod worker;
pub mod workload;

//! The conformance suite of alkstore: every rule of the contract is a row, every engine a column.
//!
//! An engine brings a [`StoreFactory`]; [`conformance!`] turns every row into a named test on it.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::future_not_send,
    missing_debug_implementations,
    reason = "a row that doesn't hold fails by a panic"
)]

mod cx;
mod factory;
pub mod fault;
#[cfg(feature = "model")]
pub mod model;
#[cfg(all(feature = "pg", unix))]
pub mod pg;
mod rows;

use std::sync::Arc;

pub use cx::{Cx, Task, drop_at_every_await};
pub use factory::{Capabilities, Data, OpenOptions, StoreFactory};
pub use rows::{ROWS, Row};

/// Runs one row on a column. Prints it where the engine lacks what the row needs.
///
/// # Panics
///
/// Where the rule doesn't hold, and where there is no row of that name.
pub async fn run(name: &str, factory: Arc<dyn StoreFactory>) {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row of that name");
    if let Some(need) = missing(row, &*factory) {
        println!("skipped: {name} needs the capability {need:?}, which the engine doesn't declare");
        return;
    }
    (row.run)(Cx::new(factory).await).await;
}

/// Prints how many rows run on a column and which are skipped, and returns their names.
pub fn skips(factory: &dyn StoreFactory) -> Vec<&'static str> {
    let skipped: Vec<_> =
        ROWS.iter().filter(|row| missing(row, factory).is_some()).map(|row| row.name).collect();
    let (rows, run) = (ROWS.len(), ROWS.len() - skipped.len());
    println!("{rows} rows: {run} run, {} skipped {skipped:?}", skipped.len());
    skipped
}

fn missing(row: &Row, factory: &dyn StoreFactory) -> Option<&'static str> {
    let capabilities = factory.capabilities();
    row.needs.iter().copied().find(|need| !capabilities.has(need))
}

/// Makes every row a test of its own on a column.
///
/// The attribute is put on each test, an `async fn`; the expression makes the column's factory,
/// afresh for each.
#[macro_export]
macro_rules! conformance {
    (#[$($attr:tt)*] $factory:expr) => {
        $crate::__rows! { [$crate::__tests] (#[$($attr)*]) ($factory) }

        #[test]
        fn rows_that_are_skipped_are_counted() {
            $crate::skips(&$factory);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($attr:tt $factory:tt $($module:ident { $($row:ident $needs:tt)* })*) => {
        $($($crate::__test! { $attr $factory $row })*)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __test {
    (($($attr:tt)*) ($factory:expr) $row:ident) => {
        $($attr)*
        async fn $row() {
            $crate::run(stringify!($row), ::std::sync::Arc::new($factory)).await;
        }
    };
}

/// The guide's program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/writing-an-engine.md")]
mod guide {}

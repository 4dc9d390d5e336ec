//! The rows: each states one rule of the contract and fails where it is broken.

use alkstore_core::BoxFuture;

use crate::cx::Cx;

#[macro_use]
mod list;

mod common;
mod lock;
mod notify;
mod outbox;
mod queue;
mod schedule;
mod stream;
mod tools;
mod tx;

/// One rule of the contract as a test. Its name begins with the rule's id in lower case.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name: the rule's id, then what it states.
    pub name: &'static str,
    /// Without these capabilities of the engine it has no meaning.
    pub needs: &'static [&'static str],
    pub(crate) run: fn(Cx) -> BoxFuture<'static, ()>,
}

impl Row {
    /// The id of the rule it states, as the map in `docs/architecture/` writes it.
    #[must_use]
    pub fn rule(&self) -> String {
        self.name.split('_').next().unwrap_or_default().to_uppercase()
    }
}

macro_rules! table {
    ($($module:ident { $($row:ident [$($need:ident)*])* })*) => {
        /// Every row of the suite.
        pub static ROWS: &[Row] = &[$($(Row {
            name: stringify!($row),
            needs: &[$(stringify!($need)),*],
            run: |cx| Box::pin($module::$row(cx)),
        },)*)*];
    };
}

__rows! { [table] }

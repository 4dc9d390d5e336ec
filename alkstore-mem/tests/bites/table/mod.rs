//! The broken engines, each with the rows that have to fail on it.

mod common;
mod leases;
mod queues;
mod settlements;
mod streams;
mod txs;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{Due, Headers, Payload, SettleAction, Timestamp};
use alkstore_suite::Data;

use crate::claims::{self, *};
use crate::edits::Edits;
use crate::harness::{Broken, LONG, MakeLayer, SHORT};
use crate::locks::*;
use crate::queues::*;
use crate::schedules::*;
use crate::streams::*;
use crate::txs::*;
use crate::wakes::*;

const NONE: Edits = Edits::NONE;

fn normalized(payload: &Payload) -> Payload {
    let value: serde_json::Value = payload.decode().unwrap_or_default();
    Payload::stored(value.to_string())
}

fn early(at: SystemTime, millis: i64) -> SystemTime {
    Timestamp::from(at).plus_millis(-millis).into()
}

fn settles<F>(data: Arc<dyn Data>, otherwise: F) -> Arc<dyn alkstore_suite::fault::Layer>
where
    F: Fn(SettleAction, &alkstore_core::JobRecord, Timestamp) -> SettleAction
        + Send
        + Sync
        + 'static,
{
    Arc::new(SettlesOtherwise(otherwise, data))
}

fn broken(name: &'static str, make: MakeLayer, rows: &'static [&'static str]) -> Broken {
    Broken { name, mechanisms: "", patience: SHORT, make, rows }
}

/// All of them.
pub(crate) fn all() -> Vec<Broken> {
    let groups = [
        ("C", common::common()),
        ("Q", queues::queues()),
        ("Q", settlements::settlements()),
        ("S", streams::streams()),
        ("N", streams::notify()),
        ("L", leases::locks()),
        ("H", leases::schedules()),
        ("X", txs::txs()),
        ("QSLHO", txs::wakes()),
    ];
    let of_group = |(mechanisms, engines): (_, Vec<Broken>)| {
        engines.into_iter().map(move |engine| Broken { mechanisms, ..engine })
    };
    groups.into_iter().flat_map(of_group).collect()
}

/// The layers that the broken engines are made of, with no fault in them.
pub(crate) fn whole() -> Vec<Broken> {
    struct Forwards;
    impl alkstore_suite::fault::Layer for Forwards {}

    let engines = vec![
        broken("everything is forwarded", |_| Arc::new(Forwards), &[]),
        broken("nothing is edited", |_| NONE.layer(), &[]),
        broken("no wake is missed", |_| Misses::layer(Miss::Nothing), &[]),
        broken("transactions are staged well", |data| StagesBadly::layer(Slip::Nothing, data), &[]),
    ];
    engines
        .into_iter()
        .map(|engine| Broken { mechanisms: "CQSNLHOX", patience: LONG, ..engine })
        .collect()
}

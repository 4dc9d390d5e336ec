//! One engine of those that are compared, and what it says in words that all of them share.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{Error, JobId, Result};
use futures_util::future::{Either, select};

use super::answer::{Answer, Fault, Value, kind};
use super::conflict::Conflict;
use super::op::Op;
use super::seen::{Outcome, Seen, same};
use super::state::Model;
use super::system::{LOCK_TIMEOUT, System};
use crate::factory::StoreFactory;

/// How long an operation that may have to wait is watched, in real time, before the clock goes on.
const PAUSE: Duration = Duration::from_millis(5);

/// An engine, and the model that says what it may answer.
pub(super) struct Side {
    pub(super) name: &'static str,
    system: System,
    pub(super) model: Model,
    numbers: Numbers,
}

/// What an engine answered.
#[derive(Debug)]
pub(super) struct Told {
    /// For the count of what was covered.
    pub(super) kind: String,
    pub(super) answer: Answer,
    /// What an error says, where the contract fixes that.
    pub(super) text: Option<String>,
    /// How many milliseconds its clock was moved to get it.
    pub(super) waited: i64,
}

impl Side {
    pub(super) async fn new(name: &'static str, factory: Arc<dyn StoreFactory>) -> Self {
        let system = System::new(factory).await;
        let model = Model::new(system.now().await);
        Self { name, system, model, numbers: Numbers::default() }
    }

    fn one_writer(&self) -> bool {
        self.system.factory.capabilities().one_writer
    }

    pub(super) fn conflict(&self, op: &Op) -> Conflict {
        self.model.conflict(op, self.one_writer())
    }

    /// Moves its clock, which operations don't do on every engine.
    pub(super) async fn advance(&mut self, millis: i64) {
        if millis > 0 {
            self.system.data.advance(Duration::from_millis(millis.unsigned_abs())).await;
            self.model.now += millis;
        }
    }

    /// Does one operation, on the engine and on its model.
    pub(super) async fn step(&mut self, op: &Op) -> Outcome<Told> {
        let conflict = self.conflict(op);
        let (result, waited) = self.answer(op, conflict).await?;
        self.model.now += waited;
        let answer = result.as_ref().map(Value::clone).map_err(Fault::from);
        // What it waited for may have been lost meanwhile.
        let later = self.conflict(op);
        match (&answer, later.min(conflict)) {
            (Err(Fault::Unavailable), _) if conflict != Conflict::None => {}
            (answer, Conflict::Must) => {
                return Err(format!(
                    "a transaction holds what it needs, but it answered {answer:?}"
                ));
            }
            _ => {
                let expected = self.model.step(op, Some(&answer));
                same("the answer", ["engine", "model"], &answer, &expected).map_err(|differs| {
                    match &result {
                        Ok(_) => differs,
                        Err(error) => format!("{differs}\n  it says: {error}"),
                    }
                })?;
            }
        }
        Ok(self.told(result, waited))
    }

    /// An answer in words that other engines share.
    fn told(&mut self, result: Result<Value>, waited: i64) -> Told {
        let (answer, text) = match result {
            Ok(value) => (Ok(value), None),
            Err(error) => (Err(Fault::from(&error)), self.numbers.text(error)),
        };
        let kind = kind(&answer);
        Told { kind, answer: answer.map(|value| self.numbers.value(value)), text, waited }
    }

    /// The answer of the engine, and how many milliseconds its clock was moved to get one.
    async fn answer(&mut self, op: &Op, conflict: Conflict) -> Outcome<(Result<Value>, i64)> {
        let (factory, data) = (self.system.factory.clone(), self.system.data.clone());
        let patience = factory.patience();
        let has_tx = self.model.tx.is_some();
        let mut applying = pin!(self.system.apply(&self.model, op));
        let mut waited = Duration::ZERO;
        loop {
            // With a transaction open, one that waits although it needn't is to end, and to be found.
            let pause = match conflict {
                Conflict::None if has_tx => patience / 10,
                Conflict::None => patience,
                _ if factory.waits_in_real_time() => patience,
                _ => PAUSE,
            };
            match select(applying.as_mut(), factory.sleep(pause)).await {
                Either::Left((answer, _)) => {
                    return Ok((answer, i64::try_from(waited.as_millis()).unwrap_or(i64::MAX)));
                }
                Either::Right(_) if !has_tx || waited > patience => {
                    return Err(format!("no answer within {patience:?}"));
                }
                Either::Right(_) => {
                    data.advance(LOCK_TIMEOUT).await;
                    waited += LOCK_TIMEOUT;
                }
            }
        }
    }

    /// Everything that can be read, as in the model, and in words that other engines share.
    pub(super) async fn look(&mut self, via: usize, few: usize) -> Outcome<Seen> {
        let seen = Seen::read(&self.system, &self.model, via, few).await;
        let mut seen = seen.map_err(|error| format!("reading failed: {error}"))?;
        seen.as_in(&self.model)?;
        seen.jobs_mut().for_each(|job| job.id = self.numbers.id(job.id));
        Ok(seen)
    }
}

/// The jobs by the order in which they were first told of: their ids are the engine's own, which
/// may leave gaps.
#[derive(Debug, Default)]
struct Numbers(BTreeMap<i64, i64>);

impl Numbers {
    fn of(&mut self, id: i64) -> i64 {
        let next = i64::try_from(self.0.len()).unwrap_or(i64::MAX) + 1;
        *self.0.entry(id).or_insert(next)
    }

    fn id(&mut self, id: JobId) -> JobId {
        JobId::try_from(self.of(id.get())).expect("a number from 1 on")
    }

    fn value(&mut self, mut value: Value) -> Value {
        match &mut value {
            Value::Ids(ids) => ids.iter_mut().for_each(|id| *id = self.of(*id)),
            Value::Claims(claims) => claims.iter_mut().for_each(|one| one.id = self.of(one.id)),
            Value::Job(job) => job.iter_mut().for_each(|job| job.id = self.of(job.id)),
            Value::Jobs(jobs) => jobs.iter_mut().for_each(|job| job.id = self.of(job.id)),
            Value::Ticked { fires, .. } => fires.iter_mut().for_each(|f| f.id = self.of(f.id)),
            // What is left to be swept depends on what an engine has swept by the way.
            Value::Swept { .. } => value = Value::Done,
            _ => {}
        }
        value
    }

    /// The reason of a spec's refusal is the parser's own, as is what stands in the way.
    fn text(&mut self, mut error: Error) -> Option<String> {
        match &mut error {
            Error::InvalidSpec { .. } | Error::Unavailable { .. } | Error::Engine { .. } => None,
            // Which names a job, or two stores.
            Error::InvalidArgument { argument: argument @ ("jobs" | "tx"), .. } => {
                Some((*argument).to_owned())
            }
            Error::ClaimLost { id, .. } => {
                *id = self.id(*id);
                Some(error.to_string())
            }
            _ => Some(error.to_string()),
        }
    }
}

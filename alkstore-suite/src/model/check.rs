//! One sequence on an engine and on the model, or on several engines side by side.
//!
//! Engines that are compared with each other begin at the same instant. While a transaction is
//! open, what is written beside it may have to wait on one engine and not on another: it is put
//! off on all of them until the transaction has ended, as is what was unavailable.

use std::collections::VecDeque;

use super::answer::Fault;
use super::conflict::Conflict;
use super::op::{Ending, Op};
use super::seen::{Outcome, same};
use super::side::{Side, Told};
use crate::model::Engines;

/// Queues with more jobs are looked at in full only at the end.
const FEW: usize = 200;

/// After how many operations all that can be read of several engines is looked at; answers are
/// compared each time.
const EVERY: usize = 4;

/// Runs a sequence. `began` is called before each operation, `ended` hears what came of it.
pub(super) async fn sequence(
    engines: Engines,
    ops: &[Op],
    began: impl Fn(),
    ended: impl Fn(&Op, String),
) -> Outcome<()> {
    let mut sides = Sides::new(engines).await;
    let mut step = 0;
    for op in ops {
        began();
        sides.run(&mut step, op.clone(), &ended).await?;
    }
    if !sides.put_off.is_empty() {
        sides.run(&mut step, Op::End(Ending::Rollback), &ended).await?;
    }
    sides.look(0, usize::MAX).await.map_err(|error| format!("at the end: {error}"))
}

struct Sides {
    sides: Vec<Side>,
    put_off: Vec<Op>,
}

impl Sides {
    async fn new(engines: Engines) -> Self {
        let mut sides = Vec::new();
        for (name, factory) in engines {
            sides.push(Side::new(name, factory).await);
        }
        let start = sides.iter().map(|side| side.model.now).max().unwrap_or_default();
        for side in &mut sides {
            side.advance(start - side.model.now).await;
        }
        Self { sides, put_off: Vec::new() }
    }

    fn are_several(&self) -> bool {
        self.sides.len() > 1
    }

    /// Does an operation, and then what was put off where it can be done now.
    async fn run(&mut self, step: &mut usize, op: Op, ended: impl Fn(&Op, String)) -> Outcome<()> {
        let op = if self.are_several() { op.without_a_draw() } else { op };
        let every = if self.are_several() { EVERY } else { 1 };
        let mut due = VecDeque::from([op]);
        while let Some(op) = due.pop_front() {
            let done = async {
                if let Some(answer) = self.step(&op).await? {
                    ended(&op, answer);
                }
                match step.is_multiple_of(every) {
                    true => self.look(*step / every % 2, FEW).await,
                    false => Ok(()),
                }
            };
            done.await.map_err(|error| format!("step {step}, {op:?}: {error}"))?;
            *step += 1;
            if self.sides.iter().all(|side| side.model.tx.is_none()) {
                due.extend(self.put_off.drain(..));
            }
        }
        Ok(())
    }

    /// Does one operation and says what kind of answer came; nothing where it was put off.
    async fn step(&mut self, op: &Op) -> Outcome<Option<String>> {
        let conflict = self.sides.iter().map(|side| side.conflict(op)).max();
        match conflict {
            Some(Conflict::Unclear) => return Ok(Some("left out".to_owned())),
            Some(Conflict::May) if self.are_several() => {
                self.put_off.push(op.clone());
                return Ok(None);
            }
            _ => {}
        }
        let mut told = Vec::new();
        for side in &mut self.sides {
            let answer = side.step(op).await;
            told.push(answer.map_err(|error| format!("on {}: {error}", side.name))?);
        }
        let waited = told.iter().map(|told| told.waited).max().unwrap_or_default();
        for (side, told) in self.sides.iter_mut().zip(&told) {
            side.advance(waited - told.waited).await;
        }
        self.agree(op, &told)
    }

    /// Compares the answers; that of one that had to wait in vain doesn't count.
    fn agree(&mut self, op: &Op, told: &[Told]) -> Outcome<Option<String>> {
        let names = self.sides.iter().map(|side| side.name);
        let (waited, spoke): (Vec<_>, Vec<_>) =
            names.zip(told).partition(|(_, told)| told.answer == Err(Fault::Unavailable));
        for pair in spoke.windows(2) {
            let [(one, left), (other, right)] = pair else { continue };
            same("the answer", [*one, *other], &left.answer, &right.answer)?;
            same("the error's text", [*one, *other], &left.text, &right.text)?;
        }
        if !waited.is_empty() && self.are_several() {
            if let Some((name, told)) = spoke.iter().find(|(_, told)| told.answer.is_ok()) {
                return Err(format!("only on {name} it is done: {:?}", told.answer));
            }
            self.put_off.push(op.clone());
        }
        Ok(told.first().map(|told| told.kind.clone()))
    }

    /// Compares everything that can be read.
    async fn look(&mut self, via: usize, few: usize) -> Outcome<()> {
        let mut all = Vec::new();
        for side in &mut self.sides {
            let seen = side.look(via, few).await;
            let seen = seen.map_err(|error| format!("on {}: {error}", side.name))?;
            all.push((side.name, seen));
        }
        for pair in all.windows(2) {
            let [(one, left), (other, right)] = pair else { continue };
            left.as_on([*one, *other], right)?;
        }
        Ok(())
    }
}

//! A model of the contract, and random sequences of operations that compare an engine with it.
//!
//! The model is written from the contract's text alone, as simply as can be: lists that are looked
//! through, one step after the other, no index and no arithmetic of any engine. Time, two stores
//! on the same data and one transaction at a time are part of a sequence. After each operation
//! its answer and everything that can be read are compared; a sequence that differs is shrunk.
//!
//! What the contract leaves to the engine (ids, tokens, the jitter of a backoff, what was swept
//! before) the model takes over from the answer, if it is one that may be.
//!
//! Several engines can run one sequence side by side: then they are compared with each other as
//! well, and what the model leaves open has to be the same on all of them.

mod answer;
mod check;
mod conflict;
mod lock;
mod machine;
mod op;
mod queue;
mod schedule;
mod seen;
mod side;
mod state;
mod stream;
mod system;
mod time;
mod tx;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::LocalBoxFuture;
use proptest::test_runner::{
    Config, FailurePersistence, FileFailurePersistence, TestCaseError, TestError, TestRunner,
};
use proptest_state_machine::ReferenceStateMachine;

use crate::factory::StoreFactory;

/// How much is run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How many sequences.
    pub cases: u32,
    /// How many operations each has at most.
    pub ops: usize,
    /// The file that keeps the seeds of sequences that failed; they are run first.
    pub regressions: Option<&'static str>,
}

/// How often each operation was answered in which way: `Claim some`, `Settle(Ack ClaimLost`.
pub type Covered = BTreeMap<String, u64>;

/// Engines that are compared, with their names.
pub type Engines = Vec<(&'static str, Arc<dyn StoreFactory>)>;

/// Compares an engine with the model and says what that covered.
///
/// Each sequence gets a factory of its own and is one future, run by `block_on`.
///
/// # Panics
///
/// Where engine and model differ, with the shortest sequence found that shows it.
pub fn run<F, B>(plan: Plan, factory: F, block_on: B) -> Covered
where
    F: Fn() -> Arc<dyn StoreFactory>,
    B: Fn(LocalBoxFuture<'_, Result<(), String>>) -> Result<(), String>,
{
    run_side_by_side(plan, || vec![("the engine", factory())], block_on)
}

/// Compares engines with the model and with each other, and says what that covered.
///
/// # Panics
///
/// Where they differ, with the shortest sequence found that shows it.
pub fn run_side_by_side<F, B>(plan: Plan, engines: F, block_on: B) -> Covered
where
    F: Fn() -> Engines,
    B: Fn(LocalBoxFuture<'_, Result<(), String>>) -> Result<(), String>,
{
    let persistence = plan
        .regressions
        .map(|file| Box::new(FileFailurePersistence::Direct(file)) as Box<dyn FailurePersistence>);
    let mut runner = TestRunner::new(Config {
        cases: plan.cases,
        failure_persistence: persistence,
        max_shrink_iters: 20_000,
        max_shrink_time: 60_000,
        ..Config::default()
    });
    let covered = RefCell::new(Covered::new());
    let sequences = machine::Machine::sequential_strategy(plan.ops.div_ceil(2)..=plan.ops);
    let result = runner.run(&sequences, |(_, ops, seen)| {
        // What comes after a failure is cut off at once, by this count.
        let began = || {
            if let Some(seen) = &seen {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        };
        let ended = |op: &op::Op, answer: String| {
            *covered.borrow_mut().entry(format!("{} {answer}", op.kind())).or_default() += 1;
        };
        let sequence = check::sequence(engines(), &ops, began, ended);
        block_on(Box::pin(sequence)).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => covered.into_inner(),
        Err(TestError::Fail(reason, (_, ops, _))) => {
            let mut steps = String::new();
            for (index, op) in ops.iter().enumerate() {
                let _ = writeln!(steps, "  {index:3}. {op:?}");
            }
            panic!("{reason}\n\nin the sequence\n{steps}")
        }
        Err(error) => panic!("{error}"),
    }
}

//! One sequence on an engine and on the model side by side.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{JobFilter, StoreExt};
use futures_util::future::{Either, select};

use super::answer::{Answer, EventView, Fault, JobView, LockView, ScheduleView, StatsView};
use super::answer::{StreamView, kind};
use super::conflict::Conflict;
use super::op::{Op, STREAMS};
use super::state::Model;
use super::system::{LOCK_TIMEOUT, System};
use crate::factory::StoreFactory;

/// How long an operation that may have to wait is watched, in real time, before the clock goes on.
const PAUSE: Duration = Duration::from_millis(5);

/// Queues with more jobs are looked at in full only at the end.
const FEW: usize = 200;

type Outcome<T> = Result<T, String>;

/// Runs a sequence. `began` is called before each operation, `ended` hears what came of it.
pub(super) async fn sequence(
    factory: Arc<dyn StoreFactory>,
    ops: &[Op],
    began: impl Fn(),
    ended: impl Fn(&Op, String),
) -> Outcome<()> {
    let mut system = System::new(factory).await;
    let mut model = Model::new(system.now().await);
    for (index, op) in ops.iter().enumerate() {
        began();
        let step = async {
            ended(op, one(&mut system, &mut model, op).await?);
            observe(&system, &model, index % 2, FEW).await
        };
        step.await.map_err(|error| format!("step {index}, {op:?}: {error}"))?;
    }
    observe(&system, &model, 0, usize::MAX).await.map_err(|error| format!("at the end: {error}"))
}

/// Does one operation and says what kind of answer came.
async fn one(system: &mut System, model: &mut Model, op: &Op) -> Outcome<String> {
    let one_writer = system.factory.capabilities().one_writer;
    let conflict = model.conflict(op, one_writer);
    if conflict == Conflict::Unclear {
        return Ok("left out".to_owned());
    }
    let (answer, waited) = answer(system, model, op, conflict).await?;
    model.now += waited;
    // What it waited for may have been lost meanwhile.
    let later = model.conflict(op, one_writer);
    match (&answer, later.min(conflict)) {
        (Err(Fault::Unavailable), _) if conflict != Conflict::None => {
            return Ok(kind(&answer));
        }
        (answer, Conflict::Must) => {
            return Err(format!("a transaction holds what it needs, but it answered {answer:?}"));
        }
        _ => {}
    }
    let expected = model.step(op, Some(&answer));
    same("the answer", &answer, &expected)?;
    Ok(kind(&answer))
}

/// The answer of the engine, and how many milliseconds its clock was moved to get one.
async fn answer(
    system: &mut System,
    model: &Model,
    op: &Op,
    conflict: Conflict,
) -> Outcome<(Answer, i64)> {
    let (factory, data) = (system.factory.clone(), system.data.clone());
    let patience = factory.patience();
    let mut applying = pin!(system.apply(model, op));
    let mut waited = Duration::ZERO;
    loop {
        // With a transaction open, one that waits although it needn't is to end, and to be found.
        let pause = match (conflict, &model.tx) {
            (Conflict::None, None) => patience,
            (Conflict::None, Some(_)) => patience / 10,
            _ if factory.waits_in_real_time() => patience,
            _ => PAUSE,
        };
        match select(applying.as_mut(), factory.sleep(pause)).await {
            Either::Left((answer, _)) => {
                return Ok((answer, i64::try_from(waited.as_millis()).unwrap_or(i64::MAX)));
            }
            Either::Right(_) if model.tx.is_none() || waited > patience => {
                return Err(format!("no answer within {patience:?}"));
            }
            Either::Right(_) => {
                data.advance(LOCK_TIMEOUT).await;
                waited += LOCK_TIMEOUT;
            }
        }
    }
}

/// Compares everything that can be read.
async fn observe(system: &System, model: &Model, via: usize, few: usize) -> Outcome<()> {
    compare(system, model, via, few).await.map_err(|failed| match failed {
        Failed::Engine(error) => format!("reading failed: {error}"),
        Failed::Differs(text) => text,
    })
}

enum Failed {
    Engine(alkstore_core::Error),
    Differs(String),
}

impl From<alkstore_core::Error> for Failed {
    fn from(error: alkstore_core::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<String> for Failed {
    fn from(text: String) -> Self {
        Self::Differs(text)
    }
}

async fn compare(system: &System, model: &Model, via: usize, few: usize) -> Result<(), Failed> {
    let (now, store) = (model.now, &system.stores[via]);
    same("the clock", &system.now().await, &now)?;

    let mut listed = Vec::new();
    for (handle, queue) in system.queues(via).iter().zip(model.data.queues.values()) {
        let stats = queue.stats(now);
        if stats.ready + stats.delayed + stats.claimed + stats.dead > 0 || stats.paused {
            listed.push(stats.clone());
        }
        if !model.is_unclear(&queue.name) {
            same("stats()", &StatsView::from(handle.stats().await?), &stats)?;
        }
        if queue.jobs.len() <= few {
            let jobs = handle.jobs(JobFilter::new().limit(usize::MAX)).await?;
            let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
            same_each("jobs()", &jobs, &queue.views(now))?;
        }
    }
    let queues = store.queues().await?;
    let mut queues: Vec<_> = queues.into_iter().map(StatsView::from).collect();
    for list in [&mut queues, &mut listed] {
        list.retain(|stats| !model.is_unclear(&stats.name));
    }
    same_each("queues()", &queues, &listed)?;

    let known = model.data.streams.values().filter(|stream| stream.is_known());
    let known: Vec<_> = known.map(|stream| stream.view()).collect();
    let streams: Vec<_> = store.streams().await?.into_iter().map(StreamView::from).collect();
    same_each("streams()", &streams, &known)?;
    for (index, name) in STREAMS.into_iter().enumerate() {
        let (handle, stream) = (system.stream(via, index), &model.data.streams[name]);
        same("info()", &StreamView::from(handle.info().await?), &stream.view())?;
        let events = handle.read(alkstore_core::Offset::START, usize::MAX).await?;
        let events: Vec<_> = events.into_iter().map(EventView::from).collect();
        same_each("read()", &events, &stream.read(0, usize::MAX))?;
    }

    let locks: Vec<_> = store.locks().await?.into_iter().map(LockView::from).collect();
    let held: Vec<_> = model.data.locks.values().filter_map(|lock| lock.view(now)).collect();
    same_each("locks()", &locks, &held)?;

    let schedules = store.schedules().await?;
    let schedules: Vec<_> = schedules.into_iter().map(|s| ScheduleView::at(now, s)).collect();
    let registered = model.data.schedules.iter();
    let registered: Vec<_> = registered.map(|(name, s)| s.view(name, now)).collect();
    same_each("schedules()", &schedules, &registered)?;
    Ok(())
}

fn same<T: PartialEq + Debug>(what: &str, engine: &T, model: &T) -> Outcome<()> {
    match engine == model {
        true => Ok(()),
        false => Err(format!("{what} differs\n  engine: {engine:?}\n  model:  {model:?}")),
    }
}

/// As [`same`], but shows only where two lists begin to differ.
fn same_each<T: PartialEq + Debug>(what: &str, engine: &[T], model: &[T]) -> Outcome<()> {
    match (0..engine.len().max(model.len())).find(|place| engine.get(*place) != model.get(*place)) {
        None => Ok(()),
        Some(place) => same(&format!("{what}[{place}]"), &engine.get(place), &model.get(place)),
    }
}

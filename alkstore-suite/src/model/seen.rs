//! Everything that can be read of an engine at one moment, for the model and for other engines.

use std::fmt::Debug;

use alkstore_core::{
    Event, JobFilter, JobRecord, LockInfo, Offset, QueueStats, Result, Schedule, StoreExt,
    StreamInfo,
};

use super::answer::{EventView, JobView, LockView, ScheduleView, StatsView, StreamView};
use super::op::STREAMS;
use super::state::Model;
use super::system::System;

pub(super) type Outcome<T> = std::result::Result<T, String>;

/// Who is compared, in the order in which [`same`] is given what they say.
pub(super) type Names = [&'static str; 2];

const TO_MODEL: Names = ["engine", "model"];

#[derive(Debug)]
pub(super) struct Seen {
    now: i64,
    /// Of each queue; `None` where they are the engine's, see [`Model::is_unclear`].
    stats: Vec<Option<QueueStats>>,
    /// Of each queue; nothing of one that holds too many.
    jobs: Vec<Option<Vec<JobRecord>>>,
    queues: Vec<QueueStats>,
    streams: Vec<StreamInfo>,
    infos: Vec<StreamInfo>,
    /// Of each stream.
    events: Vec<Vec<Event>>,
    locks: Vec<LockInfo>,
    schedules: Vec<Schedule>,
}

impl Seen {
    /// Reads what there is through one of the stores. Queues of more than `few` jobs are left out.
    pub(super) async fn read(
        system: &System,
        model: &Model,
        via: usize,
        few: usize,
    ) -> Result<Self> {
        let store = &system.stores[via];
        // One after the other: what is asked at once waits for a connection, and not for long.
        let (mut stats, mut jobs) = (Vec::new(), Vec::new());
        for (handle, queue) in system.queues(via).iter().zip(model.data.queues.values()) {
            stats.push(match model.is_unclear(&queue.name) {
                true => None,
                false => Some(handle.stats().await?),
            });
            jobs.push(match queue.jobs.len() <= few {
                true => Some(handle.jobs(JobFilter::new().limit(usize::MAX)).await?),
                false => None,
            });
        }
        let mut queues = store.queues().await?;
        queues.retain(|stats| !model.is_unclear(&stats.name));
        let (mut infos, mut events) = (Vec::new(), Vec::new());
        for index in 0..STREAMS.len() {
            let stream = system.stream(via, index);
            infos.push(stream.info().await?);
            events.push(stream.read(Offset::START, usize::MAX).await?);
        }
        Ok(Self {
            now: system.now().await,
            stats,
            jobs,
            queues,
            streams: store.streams().await?,
            infos,
            events,
            locks: store.locks().await?,
            schedules: store.schedules().await?,
        })
    }

    /// The jobs in it.
    pub(super) fn jobs_mut(&mut self) -> impl Iterator<Item = &mut JobRecord> {
        self.jobs.iter_mut().flatten().flatten()
    }

    /// Compares it with the model.
    pub(super) fn as_in(&self, model: &Model) -> Outcome<()> {
        let now = model.now;
        same("the clock", TO_MODEL, &self.now, &now)?;
        let mut listed = Vec::new();
        for (index, queue) in model.data.queues.values().enumerate() {
            let stats = queue.stats(now);
            if let Some(seen) = &self.stats[index] {
                same("stats()", TO_MODEL, &StatsView::from(seen.clone()), &stats)?;
            }
            if let Some(jobs) = &self.jobs[index] {
                same_each("jobs()", TO_MODEL, &views::<_, JobView>(jobs), &queue.views(now))?;
            }
            let known = stats.ready + stats.delayed + stats.claimed + stats.dead > 0;
            if (known || stats.paused) && !model.is_unclear(&stats.name) {
                listed.push(stats);
            }
        }
        same_each("queues()", TO_MODEL, &views::<_, StatsView>(&self.queues), &listed)?;

        let known = model.data.streams.values().filter(|stream| stream.is_known());
        let known: Vec<_> = known.map(|stream| stream.view()).collect();
        same_each("streams()", TO_MODEL, &views::<_, StreamView>(&self.streams), &known)?;
        for (index, name) in STREAMS.into_iter().enumerate() {
            let stream = &model.data.streams[name];
            let info = StreamView::from(self.infos[index].clone());
            same("info()", TO_MODEL, &info, &stream.view())?;
            let events = views::<_, EventView>(&self.events[index]);
            same_each("read()", TO_MODEL, &events, &stream.read(0, usize::MAX))?;
        }

        let held: Vec<_> = model.data.locks.values().filter_map(|lock| lock.view(now)).collect();
        same_each("locks()", TO_MODEL, &views::<_, LockView>(&self.locks), &held)?;

        let schedules = self.schedules.iter().cloned();
        let schedules: Vec<_> = schedules.map(|s| ScheduleView::at(now, s)).collect();
        let registered = model.data.schedules.iter();
        let registered: Vec<_> = registered.map(|(name, s)| s.view(name, now)).collect();
        same_each("schedules()", TO_MODEL, &schedules, &registered)
    }

    /// Compares it with what was read of another engine, field by field: what the model leaves
    /// open is the same as well.
    pub(super) fn as_on(&self, names: Names, other: &Self) -> Outcome<()> {
        same("the clock", names, &self.now, &other.now)?;
        same_each("stats()", names, &self.stats, &other.stats)?;
        for (jobs, others) in self.jobs.iter().zip(&other.jobs) {
            let [jobs, others] = [jobs, others].map(|jobs| jobs.as_deref().unwrap_or_default());
            same_each("jobs()", names, jobs, others)?;
        }
        same_each("queues()", names, &self.queues, &other.queues)?;
        same_each("streams()", names, &self.streams, &other.streams)?;
        same_each("info()", names, &self.infos, &other.infos)?;
        for (events, others) in self.events.iter().zip(&other.events) {
            same_each("read()", names, events, others)?;
        }
        same_each("locks()", names, &self.locks, &other.locks)?;
        same_each("schedules()", names, &self.schedules, &other.schedules)
    }
}

fn views<R: Clone, V: From<R>>(records: &[R]) -> Vec<V> {
    records.iter().cloned().map(V::from).collect()
}

pub(super) fn same<T: PartialEq + Debug>(
    what: &str,
    [one, other]: Names,
    left: &T,
    right: &T,
) -> Outcome<()> {
    match left == right {
        true => Ok(()),
        false => Err(format!("{what} differs\n  {one}: {left:?}\n  {other}: {right:?}")),
    }
}

/// As [`same`], but shows only where two lists begin to differ.
fn same_each<T: PartialEq + Debug>(
    what: &str,
    names: Names,
    left: &[T],
    right: &[T],
) -> Outcome<()> {
    match (0..left.len().max(right.len())).find(|place| left.get(*place) != right.get(*place)) {
        None => Ok(()),
        Some(place) => {
            same(&format!("{what}[{place}]"), names, &left.get(place), &right.get(place))
        }
    }
}

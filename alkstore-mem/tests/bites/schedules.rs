//! Engines that break a rule of the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{
    EnqueueOpts, Error, Headers, MAX_FIRES, QueueOpts, Result, Schedule, ScheduleName,
    ScheduleSpec, Store, StoreExt, Tick, Timestamp, async_trait,
};
use alkstore_suite::Data;
use alkstore_suite::fault::Layer;
use parking_lot::Mutex;
use tokio::task::yield_now;

/// How the scheduler goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    /// 65 of the missed boundaries fire.
    One65th,
    /// Every missed boundary fires.
    All,
    /// Only one of the missed boundaries fires.
    One,
    /// A late tick moves the grid.
    Drifts,
    /// Whoever ticks fires.
    NotKeyed,
    /// The boundary in the headers is the instant of the fire.
    BoundaryIsNow,
    /// Registering again moves the next boundary.
    Postpones,
    /// Registering again with the period written otherwise moves the next boundary.
    ComparesText,
    /// Registering again resumes.
    Resumes,
    /// A new period keeps the old grid until the next boundary.
    KeepsGrid,
    /// Paused schedules fire.
    FiresPaused,
    /// What was missed while paused fires at once.
    FiresMissed,
    /// Any text is a schedule.
    AnyText,
    /// Removing what is unknown says that it was there.
    RemovesUnknown,
}

/// Keeps time badly.
pub(crate) struct KeepsTimeBadly {
    beat: Beat,
    data: Arc<dyn Data>,
    paused: Mutex<BTreeMap<String, Schedule>>,
}

fn name_of(schedule: &Schedule) -> ScheduleName {
    ScheduleName::stored(schedule.name.clone())
}

/// The boundaries from the next one up to now.
fn due(schedule: &Schedule, now: Timestamp) -> Vec<Timestamp> {
    let (next, period) = (Timestamp::from(schedule.next_at), schedule.period);
    let mut due = Vec::new();
    let mut at = next;
    while at <= now && due.len() < 2_000 {
        due.push(at);
        at = at.plus(period);
    }
    due
}

async fn fire(inner: &dyn Store, schedule: &Schedule, at: Timestamp) -> Result<()> {
    let headers = schedule.opts.headers.of_fire(&name_of(schedule), at);
    let queue = inner.queue_with(&schedule.queue, QueueOpts::new())?;
    let opts = EnqueueOpts::new().priority(schedule.opts.priority).headers(headers);
    queue.enqueue_with(schedule.payload.clone(), opts).await?;
    Ok(())
}

impl KeepsTimeBadly {
    pub(crate) fn layer(beat: Beat, data: Arc<dyn Data>) -> Arc<dyn Layer> {
        Arc::new(Self { beat, data, paused: Mutex::default() })
    }

    async fn anew(&self, inner: &dyn Store, schedule: &Schedule) -> Result<()> {
        inner.delete_schedule(&name_of(schedule)).await?;
        let queue = schedule.queue.clone();
        let (payload, opts) = (schedule.payload.clone(), schedule.opts.clone());
        inner.schedule(&schedule.name, &schedule.spec, &queue, payload, opts).await?;
        Ok(())
    }
}

#[async_trait]
impl Layer for KeepsTimeBadly {
    async fn tick_schedules(&self, inner: &dyn Store) -> Result<Tick> {
        let now = self.data.now().await;
        let mut before = inner.list_schedules().await?;
        before.retain(|schedule| !schedule.paused && Timestamp::from(schedule.next_at) <= now);
        if self.beat == Beat::NotKeyed {
            yield_now().await;
        }
        let mut tick = inner.tick_schedules().await?;
        for schedule in &before {
            let due = due(schedule, now);
            let most = MAX_FIRES as usize;
            match self.beat {
                Beat::One65th | Beat::All => {
                    let more = if self.beat == Beat::All { due.len() } else { most + 1 };
                    for at in due.iter().take(more).skip(most) {
                        fire(inner, schedule, *at).await?;
                        tick.fired += 1;
                    }
                }
                Beat::One => {
                    let queue = inner.queue(&schedule.queue)?;
                    let surplus: Vec<_> =
                        due.iter().skip(1).map(|at| at.as_millis().to_string()).collect();
                    for job in queue.jobs(alkstore_core::JobFilter::new().limit(1_000)).await? {
                        if job.headers.get(Headers::SCHEDULE) == Some(&schedule.name)
                            && surplus
                                .iter()
                                .any(|at| job.headers.get(Headers::BOUNDARY) == Some(at))
                        {
                            tick.fired -= u64::from(queue.cancel(job.id).await?);
                        }
                    }
                }
                Beat::Drifts if due[0] < now => self.anew(inner, schedule).await?,
                Beat::NotKeyed if tick.fired == 0 => {
                    for at in due {
                        fire(inner, schedule, at).await?;
                        tick.fired += 1;
                    }
                }
                Beat::BoundaryIsNow if due[0] < now && due.len() == 1 => {
                    let queue = inner.queue(&schedule.queue)?;
                    let boundary = due[0].as_millis().to_string();
                    for job in queue.jobs(alkstore_core::JobFilter::new()).await? {
                        if job.headers.get(Headers::BOUNDARY) == Some(&boundary) {
                            queue.cancel(job.id).await?;
                            fire(inner, schedule, now).await?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(tick)
    }

    async fn upsert_schedule(&self, inner: &dyn Store, mut spec: ScheduleSpec) -> Result<Schedule> {
        let mut all = inner.list_schedules().await?;
        all.retain(|schedule| schedule.name == spec.name.as_str());
        let before = all.pop();
        if let Some(before) = &before {
            let drop_it = match self.beat {
                Beat::Postpones => true,
                Beat::ComparesText => before.spec != spec.spec,
                _ => false,
            };
            if drop_it {
                inner.delete_schedule(&spec.name).await?;
                let mut stored = inner.upsert_schedule(spec).await?;
                if before.paused {
                    stored.paused = inner.set_schedule_paused(&name_of(before), true).await?;
                }
                return Ok(stored);
            }
        }
        let name = spec.name.clone();
        if self.beat == Beat::AnyText
            && let Err(Error::InvalidSpec { .. }) = inner.upsert_schedule(spec.clone()).await
        {
            spec.spec = "@every 1h".to_owned();
        }
        let mut stored = inner.upsert_schedule(spec).await?;
        if self.beat == Beat::Resumes && inner.set_schedule_paused(&name, false).await? {
            stored.paused = false;
        }
        if self.beat == Beat::KeepsGrid
            && let Some(before) = before
        {
            stored.anchor = before.anchor;
            stored.next_at = before.next_at;
        }
        if self.beat == Beat::FiresPaused {
            stored.paused = self.paused.lock().contains_key(&stored.name);
        }
        Ok(stored)
    }

    async fn delete_schedule(&self, inner: &dyn Store, name: &ScheduleName) -> Result<bool> {
        Ok(inner.delete_schedule(name).await? || self.beat == Beat::RemovesUnknown)
    }

    async fn list_schedules(&self, inner: &dyn Store) -> Result<Vec<Schedule>> {
        let mut all = inner.list_schedules().await?;
        if self.beat == Beat::FiresPaused {
            for schedule in &mut all {
                schedule.paused = self.paused.lock().contains_key(&schedule.name);
            }
        }
        Ok(all)
    }

    async fn set_schedule_paused(
        &self,
        inner: &dyn Store,
        name: &ScheduleName,
        paused: bool,
    ) -> Result<bool> {
        let mut all = inner.list_schedules().await?;
        all.retain(|schedule| schedule.name == name.as_str());
        match (self.beat, all.pop()) {
            (Beat::FiresPaused, Some(schedule)) => {
                let mut known = self.paused.lock();
                if paused {
                    Ok(known.insert(schedule.name.clone(), schedule).is_none())
                } else {
                    Ok(known.remove(name.as_str()).is_some())
                }
            }
            (Beat::FiresMissed, Some(schedule)) => {
                let changed = inner.set_schedule_paused(name, paused).await?;
                if changed && paused {
                    self.paused.lock().insert(schedule.name.clone(), schedule);
                } else if changed {
                    let missed = self.paused.lock().remove(name.as_str());
                    for at in missed.iter().flat_map(|schedule| due(schedule, Timestamp::FAR_AWAY))
                    {
                        if at > self.data.now().await {
                            break;
                        }
                        fire(inner, &schedule, at).await?;
                    }
                }
                Ok(changed)
            }
            _ => inner.set_schedule_paused(name, paused).await,
        }
    }
}

/// A schedule's boundaries lie a millisecond early.
pub(crate) struct FiresEarly(pub(crate) Arc<dyn Data>);

#[async_trait]
impl Layer for FiresEarly {
    async fn tick_schedules(&self, inner: &dyn Store) -> Result<Tick> {
        let soon = SystemTime::from(self.0.now().await) + Duration::from_millis(1);
        for schedule in inner.list_schedules().await? {
            if !schedule.paused && schedule.next_at == soon {
                fire(inner, &schedule, schedule.next_at.into()).await?;
            }
        }
        inner.tick_schedules().await
    }
}

//! Schedules: the grammar, the grid and the tick.

use std::time::Duration;

use alkstore_core::{
    Error, MAX_FIRES, Result, Schedule, ScheduleName, ScheduleSpec, ScheduleStore, Tick, Timestamp,
    Topic,
};
use async_trait::async_trait;

use crate::queue;
use crate::state::View;
use crate::store::MemStore;
use crate::wake::ALL;

/// The longest period: 3,650 days, in milliseconds.
const MAX_PERIOD: i64 = 3_650 * 24 * 60 * 60 * 1_000;

#[derive(Debug)]
pub(crate) struct ScheduleState {
    spec: ScheduleSpec,
    /// In milliseconds, as the grid is.
    period: i64,
    anchor: Timestamp,
    next: Timestamp,
    paused: bool,
}

impl ScheduleState {
    fn record(&self) -> Schedule {
        let period = Duration::from_millis(self.period.unsigned_abs());
        let mut record = Schedule::new(self.spec.clone(), period, self.anchor, self.next);
        record.paused = self.paused;
        record
    }

    /// How many boundaries are due.
    fn due(&self, now: Timestamp) -> i64 {
        match now.as_millis() - self.next.as_millis() {
            late if late < 0 => 0,
            late => late / self.period + 1,
        }
    }

    /// Goes on to the first boundary strictly in the future.
    fn pass(&mut self, due: i64) {
        self.next = self.next.plus_millis(due.saturating_mul(self.period));
    }
}

/// Parses `@every <n><unit>` into milliseconds.
fn period(spec: &str) -> Result<i64> {
    let invalid = |reason| Error::InvalidSpec { spec: spec.to_owned(), reason };
    let text =
        spec.strip_prefix("@every ").ok_or_else(|| invalid("it doesn't begin with \"@every \""))?;
    let unit = text.chars().next_back().ok_or_else(|| invalid("the number is missing"))?;
    let millis: i64 = match unit {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        _ => return Err(invalid("the unit isn't s, m, h or d")),
    };
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("the number isn't made of decimal digits alone"));
    }
    if digits.starts_with('0') {
        return Err(invalid("the number is zero or has a leading zero"));
    }
    let number: Option<i64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(millis))
        .filter(|&period| period <= MAX_PERIOD)
        .ok_or_else(|| invalid("it is longer than 10 years"))
}

fn upsert(view: &mut View<'_>, spec: ScheduleSpec, period: i64) -> Schedule {
    let now = view.time.now;
    let name = spec.name.clone();
    let fresh = |spec, paused| ScheduleState {
        spec,
        period,
        anchor: now,
        next: now.plus_millis(period),
        paused,
    };
    let schedule = match view.state.schedules.remove(&name) {
        Some(known) if known.period == period => ScheduleState { spec, ..known },
        Some(known) => fresh(spec, known.paused),
        None => fresh(spec, false),
    };
    let record = schedule.record();
    view.state.schedules.insert(name, schedule);
    wake(view);
    record
}

fn set_paused(view: &mut View<'_>, name: &ScheduleName, paused: bool) -> bool {
    let Some(schedule) = view.state.schedules.get_mut(name) else { return false };
    if schedule.paused == paused {
        return false;
    }
    schedule.paused = paused;
    if !paused {
        schedule.pass(schedule.due(view.time.now));
    }
    wake(view);
    true
}

fn wake(view: &mut View<'_>) {
    view.state.topics.wake(view.wakes, ALL, || Topic::Schedules);
}

fn tick(view: &mut View<'_>) -> Tick {
    let now = view.time.now;
    let mut tick = Tick::default();
    let mut fires = Vec::new();
    for schedule in view.state.schedules.values_mut().filter(|schedule| !schedule.paused) {
        let due = schedule.due(now);
        for k in 0..due.min(i64::from(MAX_FIRES)) {
            fires.push((schedule.spec.clone(), schedule.next.plus_millis(k * schedule.period)));
        }
        schedule.pass(due);
        tick.next = Some(tick.next.map_or(schedule.next, |next| next.min(schedule.next)));
    }
    tick.fired = fires.len() as u64;
    for (spec, boundary) in fires {
        queue::fire(view, &spec, boundary);
    }
    tick
}

#[async_trait]
impl ScheduleStore for MemStore {
    async fn upsert_schedule(&self, spec: ScheduleSpec) -> Result<Schedule> {
        let period = period(&spec.spec)?;
        self.open.act(|view| upsert(view, spec, period))
    }

    async fn delete_schedule(&self, name: &ScheduleName) -> Result<bool> {
        self.open.act(|view| {
            let known = view.state.schedules.remove(name).is_some();
            if known {
                wake(view);
            }
            known
        })
    }

    async fn list_schedules(&self) -> Result<Vec<Schedule>> {
        self.open.act(|view| view.state.schedules.values().map(ScheduleState::record).collect())
    }

    async fn set_schedule_paused(&self, name: &ScheduleName, paused: bool) -> Result<bool> {
        self.open.act(|view| set_paused(view, name, paused))
    }

    async fn tick_schedules(&self) -> Result<Tick> {
        self.open.act(tick)
    }
}

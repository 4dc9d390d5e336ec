//! What a schedule does.

use std::time::Duration;

use super::answer::{Fault, ScheduleView};
use super::op::{JobInput, Stamps, When, payload_text};
use super::time::ms;

/// How many boundaries of a schedule fire in one tick.
const FIRES: usize = 64;

/// What a schedule's jobs carry.
pub(super) const PAYLOAD: u8 = 255;

#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) spec: String,
    pub(super) queue: String,
    pub(super) stamps: Stamps,
    pub(super) priority: i32,
    pub(super) expires: Option<Duration>,
    period: i64,
    anchor: i64,
    pub(super) next: i64,
    pub(super) paused: bool,
}

/// Milliseconds of `@every <n><unit>`.
pub(super) fn period(spec: &str) -> Result<i64, Fault> {
    let text = spec.strip_prefix("@every ").ok_or(Fault::InvalidSpec)?;
    let unit = match text.chars().last() {
        Some('s') => 1_000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => 86_400_000,
        _ => return Err(Fault::InvalidSpec),
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || digits.starts_with('0') || digits.chars().any(|c| !c.is_ascii_digit()) {
        return Err(Fault::InvalidSpec);
    }
    let period = digits.parse::<i64>().ok().and_then(|n| n.checked_mul(unit));
    period.filter(|period| *period <= 3_650 * 86_400_000).ok_or(Fault::InvalidSpec)
}

impl Schedule {
    pub(super) fn register(
        before: Option<&Self>,
        now: i64,
        spec: &str,
        queue: &str,
        (stamps, priority, expires): (Stamps, i32, Option<Duration>),
    ) -> Result<Self, Fault> {
        let period = period(spec)?;
        let (anchor, next) = match before {
            Some(before) if before.period == period => (before.anchor, before.next),
            _ => (now, now + period),
        };
        Ok(Self {
            spec: spec.to_owned(),
            queue: queue.to_owned(),
            stamps,
            priority,
            expires,
            period,
            anchor,
            next,
            paused: before.is_some_and(|before| before.paused),
        })
    }

    pub(super) fn set_paused(&mut self, now: i64, paused: bool) -> bool {
        let changed = self.paused != paused;
        if changed && !paused {
            self.fire(now);
        }
        self.paused = paused;
        changed
    }

    /// The boundaries that fire now, one after the other.
    pub(super) fn fire(&mut self, now: i64) -> Vec<i64> {
        let mut boundaries = Vec::new();
        while self.next <= now {
            if boundaries.len() < FIRES {
                boundaries.push(self.next);
            }
            self.next += self.period;
        }
        boundaries
    }

    /// What each of them enqueues.
    pub(super) fn job(&self) -> JobInput {
        JobInput {
            payload: PAYLOAD,
            when: When::Now,
            priority: self.priority,
            max_attempts: None,
            expires: self.expires,
            key: None,
            header: None,
        }
    }

    pub(super) fn view(&self, name: &str, now: i64) -> ScheduleView {
        ScheduleView {
            name: name.to_owned(),
            spec: self.spec.clone(),
            queue: self.queue.clone(),
            payload: payload_text(PAYLOAD),
            priority: self.priority,
            max_attempts: self.stamps.max_attempts,
            expires: self.expires.map(ms),
            visibility: self.stamps.visibility.map(ms),
            retry_base: self.stamps.retry_base.map(ms),
            retention: self.stamps.retention.map(ms),
            period: Duration::from_millis(self.period.unsigned_abs()),
            anchor: self.anchor,
            next_at: (!self.paused || self.next > now).then_some(self.next),
            paused: self.paused,
        }
    }
}

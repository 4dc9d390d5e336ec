//! The closing tables, and whether they add up.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use alkstore::prelude::*;
use comfy_table::{Cell, CellAlignment, Table, presets};

use super::audit::Audit;
use super::courier::Tried;
use super::deliveries::Incoming;
use super::receiver::{Arrivals, Seen};
use super::run::millis;

/// A boundary that a schedule lies this far behind is skipped.
const MAX_FIRES: u64 = alkstore::MAX_FIRES as u64;

/// What one run came to.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) interrupted: bool,
    pub(crate) took: Duration,
    pub(crate) run: String,
    /// Deliveries that an earlier run on this store had left.
    pub(crate) earlier: u64,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) dead_letters: Vec<DeadLetter>,
    pub(crate) head: Offset,
    pub(crate) consumer_offset: Offset,
    pub(crate) audit: Audit,
    pub(crate) reports: Reports,
    pub(crate) seen: Seen,
}

/// Where a delivery of this run is, as the store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    FirstAttempt,
    AfterRetry,
    Dead,
    Waiting,
}

/// One delivery of this run, as store and couriers saw it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) id: JobId,
    pub(crate) incoming: Incoming,
    pub(crate) fate: Fate,
    pub(crate) tried: Tried,
}

/// A delivery that failed for good.
#[derive(Debug)]
pub(crate) struct DeadLetter {
    id: JobId,
    delivery: String,
    attempts: u32,
    error: String,
}

impl DeadLetter {
    pub(crate) fn new(job: JobRecord) -> Self {
        Self {
            id: job.id,
            delivery: job.headers.get("delivery").unwrap_or_default().to_owned(),
            attempts: job.attempt,
            error: job.last_error.unwrap_or_default(),
        }
    }
}

/// The boundaries of the report's schedule.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// How many passed during the run.
    pub(crate) passed: u64,
    /// How many of them were printed.
    pub(crate) printed: u64,
    /// Reports printed that belong to none of them, or to one printed before.
    pub(crate) astray: u64,
}

impl Reports {
    /// Compares what was printed with how far the schedule has come.
    pub(crate) fn new(first: &Schedule, now: &[Schedule], boundaries: Vec<u64>) -> Self {
        let next = now.iter().find(|schedule| schedule.name == first.name);
        let (from, to) = (millis(first.next_at), next.map_or(0, |next| millis(next.next_at)));
        let period = u64::try_from(first.period.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut grid: HashSet<u64> = (0..)
            .map(|k: u64| from.saturating_add(k.saturating_mul(period)))
            .take_while(|boundary| *boundary < to)
            .collect();
        let passed = grid.len() as u64;
        // Those before belong to a run that ended without printing them.
        let ours = boundaries.into_iter().filter(|boundary| *boundary >= from);
        let (printed, astray): (Vec<_>, Vec<_>) = ours.partition(|boundary| grid.remove(boundary));
        Self { passed, printed: printed.len() as u64, astray: astray.len() as u64 }
    }
}

impl Closing {
    pub(crate) fn count(
        &mut self,
        id: JobId,
        incoming: &Incoming,
        tried: Tried,
        record: Option<JobRecord>,
    ) {
        let fate = match record.map(|job| job.state) {
            None if tried.attempts <= 1 => Fate::FirstAttempt,
            None => Fate::AfterRetry,
            Some(JobState::Dead) => Fate::Dead,
            Some(_) => Fate::Waiting,
        };
        self.outcomes.push(Outcome { id, incoming: incoming.clone(), fate, tried });
    }

    pub(crate) fn published(&self) -> u64 {
        self.outcomes.len() as u64
    }

    pub(crate) fn of(&self, fate: Fate) -> u64 {
        self.outcomes.iter().filter(|outcome| outcome.fate == fate).count() as u64
    }

    fn arrivals(&self, outcome: &Outcome) -> Arrivals {
        self.seen.by_key.get(&outcome.id.to_string()).cloned().unwrap_or_default()
    }

    fn requests(&self) -> u64 {
        self.seen.by_key.values().map(|arrivals| u64::from(arrivals.requests)).sum()
    }

    fn accepted(&self) -> u64 {
        self.seen.by_key.values().map(|arrivals| u64::from(arrivals.accepted)).sum()
    }

    /// Deliveries that the receiver took in, each counted once.
    pub(crate) fn received(&self) -> u64 {
        self.seen.by_key.values().filter(|arrivals| arrivals.accepted > 0).count() as u64
    }

    /// Further times that it took in the same: a delivery is made at least once.
    pub(crate) fn duplicates(&self) -> u64 {
        self.accepted() - self.received()
    }

    /// Taken in by the receiver, though no courier ever heard so.
    fn unconfirmed(&self) -> u64 {
        let unconfirmed =
            |outcome: &&Outcome| !outcome.tried.confirmed && self.arrivals(outcome).accepted > 0;
        self.outcomes.iter().filter(unconfirmed).count() as u64
    }

    /// The deliveries of this run that the audit handled, in its order.
    fn audited(&self) -> Vec<&str> {
        let ours = |event: &&Event| event.headers.get("run") == Some(&self.run);
        let deliveries = self.audit.handled.iter().filter(ours);
        deliveries.map(|event| event.headers.get("delivery").unwrap_or_default()).collect()
    }

    /// Everything that doesn't add up; nothing, where store, couriers, receiver, audit and
    /// schedule agree.
    pub(crate) fn discrepancies(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.check_outcomes(&mut found);
        self.check_receiver(&mut found);
        self.check_audit(&mut found);
        let Reports { passed, printed, astray } = self.reports;
        if astray > 0 || printed > passed || printed < passed.min(MAX_FIRES) {
            found.push(format!(
                "{passed} boundaries of the schedule passed, {printed} reports were printed for \
                 them and {astray} for none"
            ));
        }
        found
    }

    fn check_outcomes(&self, found: &mut Vec<String>) {
        for outcome in &self.outcomes {
            let Tried { attempts, confirmed } = outcome.tried;
            let delivered = matches!(outcome.fate, Fate::FirstAttempt | Fate::AfterRetry);
            if delivered != confirmed {
                found.push(format!(
                    "delivery {} is {:?} in the store, and the receiver {} it in time",
                    outcome.incoming.delivery,
                    outcome.fate,
                    if confirmed { "confirmed" } else { "didn't confirm" },
                ));
            }
            if outcome.fate == Fate::Dead && attempts == 0 {
                found.push(format!("delivery {} died untried", outcome.incoming.delivery));
            }
        }
        let (dead, letters) = (self.of(Fate::Dead), self.dead_letters.len() as u64);
        if dead != letters {
            found.push(format!("{dead} deliveries are dead, and {letters} dead letters kept"));
        }
        let waiting = self.of(Fate::Waiting);
        if waiting > 0 && !self.interrupted {
            found.push(format!("{waiting} deliveries still wait"));
        }
    }

    fn check_receiver(&self, found: &mut Vec<String>) {
        for outcome in &self.outcomes {
            let Arrivals { requests, accepted, body } = self.arrivals(outcome);
            let name = &outcome.incoming.delivery;
            if outcome.tried.confirmed && accepted == 0 {
                found.push(format!("delivery {name} was confirmed, but the receiver hasn't it"));
            }
            if requests > outcome.tried.attempts {
                let attempts = outcome.tried.attempts;
                found.push(format!("delivery {name} arrived {requests} times of {attempts}"));
            }
            if accepted > 0 && body != outcome.incoming.body.as_str().as_bytes() {
                found.push(format!("the body of delivery {name} isn't as it came in"));
            }
        }
        let Seen { failed, rejected, .. } = self.seen;
        let (requests, accepted) = (self.requests(), self.accepted());
        if requests != accepted + failed + rejected {
            found.push(format!(
                "{requests} requests, of which {accepted} were taken in, {failed} failed and \
                 {rejected} rejected"
            ));
        }
    }

    fn check_audit(&self, found: &mut Vec<String>) {
        let offset = |offset: Offset| i64::from(offset);
        let expected = offset(self.audit.began_after) + 1..=offset(self.consumer_offset);
        if !self.audit.handled.iter().map(|event| offset(event.offset)).eq(expected.clone()) {
            found.push(format!("the audit didn't see the events {expected:?} once each in order"));
        }
        if self.consumer_offset != self.head {
            let (head, consumer) = (self.head, self.consumer_offset);
            found.push(format!("the stream ends at {head}, the audit at {consumer}"));
        }
        if self.audit.resumed_after != self.audit.stopped_after {
            let Audit { stopped_after, resumed_after, .. } = self.audit;
            found.push(format!(
                "the audit stopped after {stopped_after} and went on after {resumed_after}"
            ));
        }
        let published = self.outcomes.iter().map(|outcome| outcome.incoming.delivery.as_str());
        let audited = self.audited();
        if !published.eq(audited.iter().copied()) {
            let (published, audited) = (self.published(), audited.len());
            found.push(format!(
                "{published} deliveries were published, and the audit saw {audited} of them or \
                 in another order"
            ));
        }
    }
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.dead_letters.is_empty() {
            writeln!(f, "Dead letters\n{}\n", self.dead_letter_table())?;
        }
        writeln!(f, "{}", self.totals())?;
        let waiting = self.of(Fate::Waiting);
        if self.interrupted {
            writeln!(f, "Interrupted: {waiting} deliveries were still waiting in the outbox.")?;
        }
        write!(f, "It took {:.1} s.", self.took.as_secs_f64())
    }
}

impl Closing {
    fn dead_letter_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["job", "delivery", "attempts", "last error"]);
        for letter in &self.dead_letters {
            let DeadLetter { id, delivery, attempts, error } = letter;
            table.add_row(vec![
                number(id),
                Cell::new(delivery),
                number(attempts),
                Cell::new(error),
            ]);
        }
        table
    }

    fn totals(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let mut group = |name: &str, rows: &[(&str, u64)]| {
            for (index, (what, count)) in rows.iter().enumerate() {
                let name = if index == 0 { name } else { "" };
                table.add_row(vec![Cell::new(name), Cell::new(what), number(count)]);
            }
        };
        group(
            "Deliveries",
            &[
                ("delivered at the first attempt", self.of(Fate::FirstAttempt)),
                ("delivered after a retry", self.of(Fate::AfterRetry)),
                ("dead", self.of(Fate::Dead)),
                ("still waiting", self.of(Fate::Waiting)),
                ("= published", self.published()),
                ("left by an earlier run", self.earlier),
            ],
        );
        group(
            "Receiver",
            &[
                ("taken in", self.received()),
                ("taken in again (duplicates)", self.duplicates()),
                ("failed with 503", self.seen.failed),
                ("rejected with 422", self.seen.rejected),
                ("= requests", self.requests()),
                ("of those taken in, answered too late", self.seen.stalled),
                ("deliveries taken in, but never confirmed", self.unconfirmed()),
            ],
        );
        let offset = |offset: Offset| u64::try_from(i64::from(offset)).unwrap_or_default();
        group(
            "Stream",
            &[
                ("head", offset(self.head)),
                ("audit's offset", offset(self.consumer_offset)),
                ("audit stopped after event", offset(self.audit.stopped_after)),
                ("audit went on after event", offset(self.audit.resumed_after)),
                ("events seen once each, in order", self.audit.handled.len() as u64),
            ],
        );
        group(
            "Schedule",
            &[
                ("boundaries passed", self.reports.passed),
                ("reports printed", self.reports.printed),
            ],
        );
        table
    }
}

fn number(value: impl ToString) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}

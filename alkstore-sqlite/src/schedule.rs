//! Schedules: the grammar, the grid and the tick.

use std::time::Duration;

use alkstore_core::{
    Error, MAX_FIRES, QueueName, Result, Schedule, ScheduleName, ScheduleOpts, ScheduleSpec,
    ScheduleStore, Tick, Timestamp, Topic, ceil_millis,
};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use crate::queue;
use crate::sql::{self, Outcome, Write};
use crate::store::SqliteStore;
use crate::wake::ALL;
use crate::writer::Size;

/// The units of a period, in milliseconds.
const UNITS: [(char, i64); 4] = [('s', 1_000), ('m', 60_000), ('h', 3_600_000), ('d', 86_400_000)];

/// The longest period: 3,650 days, in milliseconds.
const MAX_PERIOD: i64 = 3_650 * 86_400_000;

macro_rules! columns {
    () => {
        "name, spec, period_ms, anchor, next_at, paused, queue, priority, max_attempts, expires_ms,
        visibility_ms, retry_base_ms, retention_ms, headers, payload"
    };
}

const BY_NAME: &str = concat!("SELECT ", columns!(), " FROM alkstore_schedules WHERE name = ?1");

const EVERY: &str = concat!("SELECT ", columns!(), " FROM alkstore_schedules ORDER BY name");

const PUT: &str = concat!(
    "INSERT OR REPLACE INTO alkstore_schedules (",
    columns!(),
    ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)"
);

const ADVANCE: &str = "UPDATE alkstore_schedules SET next_at = ?2, paused = ?3 WHERE name = ?1";

const DELETE: &str = "DELETE FROM alkstore_schedules WHERE name = ?1";

const NEXT: &str = "SELECT min(next_at) FROM alkstore_schedules WHERE paused = 0";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[BY_NAME, PUT, ADVANCE, DELETE];

struct Stored {
    spec: ScheduleSpec,
    /// In milliseconds, as the grid is.
    period: i64,
    anchor: i64,
    next: i64,
    paused: bool,
}

impl Stored {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let duration = |column| -> rusqlite::Result<Option<Duration>> {
            let millis: Option<i64> = row.get(column)?;
            Ok(millis.map(|millis| Duration::from_millis(millis.unsigned_abs())))
        };
        let mut opts = ScheduleOpts::new();
        opts.priority = row.get(7)?;
        opts.max_attempts = row.get(8)?;
        opts.expires = duration(9)?;
        opts.visibility_timeout = duration(10)?;
        opts.retry_base = duration(11)?;
        opts.dead_retention = duration(12)?;
        opts.headers = sql::headers(row, 13)?;
        Ok(Self {
            spec: ScheduleSpec::stored(
                ScheduleName::stored(row.get::<_, String>(0)?),
                row.get::<_, String>(1)?,
                QueueName::stored(row.get::<_, String>(6)?),
                sql::payload(row, 14)?,
                opts,
            ),
            period: row.get(2)?,
            anchor: row.get(3)?,
            next: row.get(4)?,
            paused: row.get(5)?,
        })
    }

    fn put(&self, write: &Write<'_>) -> Outcome<()> {
        let ScheduleSpec { name, spec, queue, payload, opts, .. } = &self.spec;
        let values = params![
            name.as_str(),
            spec,
            self.period,
            self.anchor,
            self.next,
            self.paused,
            queue.as_str(),
            opts.priority,
            opts.max_attempts,
            opts.expires.map(ceil_millis),
            opts.visibility_timeout.map(ceil_millis),
            opts.retry_base.map(ceil_millis),
            opts.dead_retention.map(ceil_millis),
            sql::headers_text(&opts.headers)?,
            payload.as_str(),
        ];
        write.run(PUT, values)?;
        Ok(())
    }

    fn advance(&self, write: &Write<'_>) -> Outcome<()> {
        write.run(ADVANCE, params![self.spec.name.as_str(), self.next, self.paused])?;
        Ok(())
    }

    fn record(self) -> Schedule {
        let period = Duration::from_millis(self.period.unsigned_abs());
        let (anchor, next) =
            (Timestamp::from_millis(self.anchor), Timestamp::from_millis(self.next));
        let mut record = Schedule::new(self.spec, period, anchor, next);
        record.paused = self.paused;
        record
    }

    /// Goes on to the first boundary strictly in the future, and says how many it passed.
    fn pass(&mut self, now: i64) -> i64 {
        if self.next > now {
            return 0;
        }
        let due = (now - self.next) / self.period + 1;
        self.next = self.next.saturating_add(due.saturating_mul(self.period));
        due
    }
}

/// Reads `@every <n><unit>` as milliseconds.
fn every(spec: &str) -> Result<i64> {
    let invalid = |reason| Err(Error::InvalidSpec { spec: spec.to_owned(), reason });
    let Some(rest) = spec.strip_prefix("@every ") else {
        return invalid("it doesn't begin with \"@every \"");
    };
    let Some(last) = rest.chars().next_back() else {
        return invalid("the number is missing");
    };
    let Some((_, unit)) = UNITS.into_iter().find(|&(name, _)| name == last) else {
        return invalid("the unit isn't s, m, h or d");
    };
    let digits = rest.trim_end_matches(last);
    // One unit alone, so that not two were trimmed.
    if digits.len() + 1 != rest.len()
        || digits.is_empty()
        || digits.contains(|c: char| !c.is_ascii_digit())
    {
        return invalid("the number isn't made of decimal digits alone");
    }
    if digits.starts_with('0') {
        return invalid("the number is zero or has a leading zero");
    }
    let mut number = 0_i64;
    for digit in digits.bytes() {
        number = number * 10 + i64::from(digit - b'0');
        if number * unit > MAX_PERIOD {
            return invalid("it is longer than 10 years");
        }
    }
    Ok(number * unit)
}

fn find(conn: &Connection, name: &ScheduleName) -> Outcome<Option<Stored>> {
    Ok(sql::one(conn, BY_NAME, [name.as_str()], Stored::of)?)
}

fn changed(write: &mut Write<'_>) {
    write.effects.wake(Topic::Schedules, ALL);
}

fn upsert(write: &mut Write<'_>, spec: &ScheduleSpec, period: i64) -> Outcome<Schedule> {
    let now = write.time.now;
    let known = find(write.conn, &spec.name)?;
    let paused = known.as_ref().is_some_and(|known| known.paused);
    let (anchor, next) = match known {
        Some(known) if known.period == period => (known.anchor, known.next),
        _ => (now, Timestamp::from_millis(now).plus_millis(period).as_millis()),
    };
    let stored = Stored { spec: spec.clone(), period, anchor, next, paused };
    stored.put(write)?;
    changed(write);
    Ok(stored.record())
}

fn set_paused(write: &mut Write<'_>, name: &ScheduleName, paused: bool) -> Outcome<bool> {
    let Some(mut schedule) = find(write.conn, name)? else { return Ok(false) };
    if schedule.paused == paused {
        return Ok(false);
    }
    schedule.paused = paused;
    if !paused {
        schedule.pass(write.time.now);
    }
    schedule.advance(write)?;
    changed(write);
    Ok(true)
}

fn tick(write: &mut Write<'_>) -> Outcome<Tick> {
    let now = write.time.now;
    let mut tick = Tick::default();
    for mut schedule in sql::all(write.conn, EVERY, [], Stored::of)? {
        if schedule.paused {
            continue;
        }
        let first = schedule.next;
        let due = schedule.pass(now);
        for k in 0..due.min(i64::from(MAX_FIRES)) {
            let boundary = Timestamp::from_millis(first + k * schedule.period);
            queue::fire(write, &schedule.spec, boundary)?;
            tick.fired += 1;
        }
        if due > 0 {
            schedule.advance(write)?;
        }
        let next = Timestamp::from_millis(schedule.next);
        tick.next = Some(tick.next.map_or(next, |earlier| earlier.min(next)));
    }
    Ok(tick)
}

fn next(conn: &Connection) -> Outcome<Option<i64>> {
    Ok(sql::one(conn, NEXT, [], |row| row.get(0))?.flatten())
}

#[async_trait]
impl ScheduleStore for SqliteStore {
    async fn upsert_schedule(&self, spec: ScheduleSpec) -> Result<Schedule> {
        let period = every(&spec.spec)?;
        self.open.write(Size::Any, move |write| upsert(write, &spec, period)).await
    }

    async fn delete_schedule(&self, name: &ScheduleName) -> Result<bool> {
        let name = name.clone();
        self.open
            .write(Size::Any, move |write| {
                let known = write.run(DELETE, [name.as_str()])? > 0;
                if known {
                    changed(write);
                }
                Ok(known)
            })
            .await
    }

    async fn list_schedules(&self) -> Result<Vec<Schedule>> {
        self.open
            .read(|conn| {
                let stored = sql::all(conn, EVERY, [], Stored::of)?;
                let mut records: Vec<_> = stored.into_iter().map(Stored::record).collect();
                records.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(records)
            })
            .await
    }

    async fn set_schedule_paused(&self, name: &ScheduleName, paused: bool) -> Result<bool> {
        let name = name.clone();
        self.open.write(Size::Any, move |write| set_paused(write, &name, paused)).await
    }

    async fn tick_schedules(&self) -> Result<Tick> {
        let now = self.open.reading().now;
        let next = self.open.peek(next).await?;
        if next.is_none_or(|next| next > now) {
            return Ok(Tick { fired: 0, next: next.map(Timestamp::from_millis) });
        }
        self.open.write(Size::Any, tick).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_read_to_the_letter() {
        for (spec, millis) in [
            ("@every 1s", 1_000),
            ("@every 60s", 60_000),
            ("@every 1m", 60_000),
            ("@every 36h", 129_600_000),
            ("@every 3650d", MAX_PERIOD),
        ] {
            assert_eq!(every(spec).unwrap(), millis, "{spec}");
        }
        for spec in [
            "",
            "@every",
            "@every ",
            "@every s",
            "@every 5",
            "@every 05s",
            "@every 0s",
            "@every +5s",
            "@every  5s",
            "@every 5 s",
            "@every 5ss",
            "@every 5s ",
            "@every 5S",
            "@every 5ms",
            "@every ٥s",
            "@every 3651d",
            "@every 99999999999999999999d",
            "@Every 5s",
            "* * * * *",
        ] {
            assert!(matches!(every(spec), Err(Error::InvalidSpec { .. })), "{spec:?}");
        }
    }
}

//! Schedules: the grammar here, the grid and the tick in the schema's functions.

use std::time::Duration;

use alkstore_core::{
    Error, QueueName, Result, Schedule, ScheduleName, ScheduleOpts, ScheduleSpec, ScheduleStore,
    Tick, Timestamp, ceil_millis,
};
use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::Outcome;
use crate::sql::{self, Sql};
use crate::store::PgStore;

/// The longest period: 3,650 days, in milliseconds.
const MAX_PERIOD: i64 = 3_650 * 86_400_000;

const UPSERT: &str = "SELECT anchor, next_at, paused
    FROM {s}.upsert_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

const DELETE: &str = "SELECT {s}.delete_schedule($1)";

const SET_PAUSED: &str = "SELECT {s}.set_schedule_paused($1, $2)";

const EVERY: &str = "SELECT name, spec, period_ms, anchor, next_at, paused, queue, priority,
        max_attempts, expires_ms, visibility_ms, retry_base_ms, retention_ms, headers, payload
    FROM {s}.schedules ORDER BY name";

const TICK: &str = "SELECT fired, next_at, us FROM {s}.tick_schedules()";

/// Reads `@every <n><unit>` as milliseconds.
fn every(spec: &str) -> Result<i64> {
    let invalid = |reason| Error::InvalidSpec { spec: spec.to_owned(), reason };
    let rest =
        spec.strip_prefix("@every ").ok_or_else(|| invalid("it doesn't begin with \"@every \""))?;
    let unit = match rest.chars().next_back() {
        None => return Err(invalid("the number is missing")),
        Some('s') => 1_000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => 86_400_000,
        Some(_) => return Err(invalid("the unit isn't s, m, h or d")),
    };
    let digits = &rest[..rest.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("the number isn't made of decimal digits alone"));
    }
    if digits.starts_with('0') {
        return Err(invalid("the number is zero or has a leading zero"));
    }
    digits
        .parse::<i64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|&period| period <= MAX_PERIOD)
        .ok_or_else(|| invalid("it is longer than 10 years"))
}

async fn upsert(sql: &mut Sql<'_>, spec: &ScheduleSpec, period: i64) -> Outcome<Schedule> {
    let opts = &spec.opts;
    let statement = sql
        .query(UPSERT)
        .bind(spec.name.to_string())
        .bind(spec.spec.clone())
        .bind(period)
        .bind(spec.queue.to_string())
        .bind(opts.priority)
        .bind(opts.max_attempts.map(i64::from))
        .bind(opts.expires.map(ceil_millis))
        .bind(opts.visibility_timeout.map(ceil_millis))
        .bind(opts.retry_base.map(ceil_millis))
        .bind(opts.dead_retention.map(ceil_millis))
        .bind(sql::headers_text(&opts.headers)?)
        .bind(spec.payload.as_str().to_owned());
    let row = sql.one(statement).await?;
    let (anchor, next) = (instant(&row, 0)?, instant(&row, 1)?);
    let mut schedule =
        Schedule::new(spec.clone(), Duration::from_millis(period.unsigned_abs()), anchor, next);
    schedule.paused = row.try_get(2)?;
    Ok(schedule)
}

fn instant(row: &PgRow, column: usize) -> sqlx::Result<Timestamp> {
    Ok(Timestamp::from_millis(row.try_get(column)?))
}

fn duration(row: &PgRow, column: usize) -> sqlx::Result<Option<Duration>> {
    let millis: Option<i64> = row.try_get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(millis.unsigned_abs())))
}

fn listed(row: &PgRow) -> Outcome<Schedule> {
    let mut opts = ScheduleOpts::new();
    opts.priority = row.try_get(7)?;
    let attempts: Option<i64> = row.try_get(8)?;
    opts.max_attempts = attempts.map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX));
    opts.expires = duration(row, 9)?;
    opts.visibility_timeout = duration(row, 10)?;
    opts.retry_base = duration(row, 11)?;
    opts.dead_retention = duration(row, 12)?;
    opts.headers = sql::headers(row, 13)?;
    let spec = ScheduleSpec::stored(
        ScheduleName::stored(row.try_get::<String, _>(0)?),
        row.try_get::<String, _>(1)?,
        QueueName::stored(row.try_get::<String, _>(6)?),
        sql::payload(row, 14)?,
        opts,
    );
    let period = duration(row, 2)?.unwrap_or_default();
    let mut schedule = Schedule::new(spec, period, instant(row, 3)?, instant(row, 4)?);
    schedule.paused = row.try_get(5)?;
    Ok(schedule)
}

#[async_trait]
impl ScheduleStore for PgStore {
    async fn upsert_schedule(&self, spec: ScheduleSpec) -> Result<Schedule> {
        let period = every(&spec.spec)?;
        self.open
            .write(move |mut sql| {
                let spec = spec.clone();
                Box::pin(async move { upsert(&mut sql, &spec, period).await })
            })
            .await
    }

    async fn delete_schedule(&self, name: &ScheduleName) -> Result<bool> {
        let name = name.clone();
        self.open
            .write(move |mut sql| {
                let statement = sql.query(DELETE).bind(name.to_string());
                Box::pin(async move { Ok(sql.one(statement).await?.try_get(0)?) })
            })
            .await
    }

    async fn list_schedules(&self) -> Result<Vec<Schedule>> {
        self.open
            .read(|mut sql| {
                let statement = sql.query(EVERY);
                Box::pin(async move { sql.all(statement).await?.iter().map(listed).collect() })
            })
            .await
    }

    async fn set_schedule_paused(&self, name: &ScheduleName, paused: bool) -> Result<bool> {
        let name = name.clone();
        self.open
            .write(move |mut sql| {
                let statement = sql.query(SET_PAUSED).bind(name.to_string()).bind(paused);
                Box::pin(async move { Ok(sql.one(statement).await?.try_get(0)?) })
            })
            .await
    }

    async fn tick_schedules(&self) -> Result<Tick> {
        let (tick, us) = self
            .open
            .write(|mut sql| {
                let statement = sql.query(TICK);
                Box::pin(async move {
                    let row = sql.one(statement).await?;
                    let fired: i64 = row.try_get(0)?;
                    let next: Option<i64> = row.try_get(1)?;
                    let next = next.map(Timestamp::from_millis);
                    Ok((Tick { fired: fired.unsigned_abs(), next }, row.try_get(2)?))
                })
            })
            .await?;
        self.open.clock.learn(us);
        Ok(tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_ends_at_ten_years_and_never_overflows() {
        assert_eq!(every("@every 3650d").unwrap(), MAX_PERIOD);
        for spec in ["@every 3651d", "@every 99999999999999999999s", "@every 9223372036854775807d"]
        {
            assert!(matches!(every(spec), Err(Error::InvalidSpec { .. })), "{spec}");
        }
    }
}

//! Reads: what the clock makes of the rows, whatever was stored of it.

use std::collections::BTreeMap;

use alkstore_core::{JobFilter, JobId, JobRecord, QueueName, QueueStats, Timestamp};
use rusqlite::{Connection, Row, params};

use super::row::{self, Life, Standing, life};
use crate::sql::{self, Outcome};

const FIND: &str =
    concat!("SELECT ", row::record_columns!(), " FROM alkstore_jobs WHERE id = ?1 AND queue = ?2");

const FIND_MANY: &str = concat!(
    "SELECT ",
    row::record_columns!(),
    " FROM alkstore_jobs WHERE id > ?1 AND queue = ?2 ORDER BY id"
);

const LIVES: &str = concat!("SELECT queue, ", life!(), " FROM alkstore_jobs");

const LIVES_OF: &str = concat!("SELECT queue, ", life!(), " FROM alkstore_jobs WHERE queue = ?1");

const PAUSED: &str = "SELECT queue FROM alkstore_paused";

const PAUSED_ONE: &str = "SELECT queue FROM alkstore_paused WHERE queue = ?1";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[FIND, FIND_MANY, PAUSED_ONE];

pub(crate) fn find_job(
    conn: &Connection,
    queue: &QueueName,
    id: JobId,
    now: i64,
) -> Outcome<Option<JobRecord>> {
    let values = params![id.get(), queue.as_str()];
    Ok(sql::one(conn, FIND, values, |row| row::record(row, queue, now))?.flatten())
}

pub(super) fn find_jobs(
    conn: &Connection,
    queue: &QueueName,
    filter: &JobFilter,
    now: i64,
) -> Outcome<Vec<JobRecord>> {
    let mut statement = conn.prepare_cached(FIND_MANY)?;
    let after = filter.after.map_or(0, JobId::get);
    let mut rows = statement.query(params![after, queue.as_str()])?;
    let mut found = Vec::new();
    while found.len() < filter.limit
        && let Some(row) = rows.next()?
    {
        let record = row::record(row, queue, now)?;
        found
            .extend(record.filter(|record| filter.state.is_none_or(|state| record.state == state)));
    }
    Ok(found)
}

pub(super) fn queue_stats(
    conn: &Connection,
    queue: Option<&QueueName>,
    now: i64,
) -> Outcome<Vec<QueueStats>> {
    let mut stats = BTreeMap::new();
    if let Some(name) = queue {
        stats.insert(name.to_string(), QueueStats::new(name.as_str()));
    }
    let count = |row: &Row<'_>| {
        let queue = row.get_ref(0)?.as_str()?;
        if !stats.contains_key(queue) {
            stats.insert(queue.to_owned(), QueueStats::new(queue));
        }
        if let Some(stats) = stats.get_mut(queue) {
            add(stats, Life::of(row, 1)?.standing(now), now);
        }
        Ok(())
    };
    match queue {
        Some(name) => sql::all(conn, LIVES_OF, [name.as_str()], count)?,
        None => sql::all(conn, LIVES, [], count)?,
    };
    let name = |row: &Row<'_>| row.get::<_, String>(0);
    let paused = match queue {
        Some(queue) => sql::all(conn, PAUSED_ONE, [queue.as_str()], name)?,
        None => sql::all(conn, PAUSED, [], name)?,
    };
    for name in paused {
        stats.entry(name.clone()).or_insert_with(|| QueueStats::new(name)).paused = true;
    }
    // One whose jobs are all gone is no queue any longer.
    let is_known = |s: &QueueStats| s.paused || s.ready + s.delayed + s.claimed + s.dead > 0;
    Ok(stats.into_values().filter(|stats| queue.is_some() || is_known(stats)).collect())
}

fn add(stats: &mut QueueStats, standing: Standing, now: i64) {
    match standing {
        Standing::Pending { ready_at } if ready_at <= now => {
            stats.ready += 1;
            let ready_at = Timestamp::from_millis(ready_at).into();
            let oldest = stats.oldest_ready_at.get_or_insert(ready_at);
            *oldest = ready_at.min(*oldest);
        }
        Standing::Pending { .. } => stats.delayed += 1,
        Standing::Claimed => stats.claimed += 1,
        Standing::Dead(_) => stats.dead += 1,
        Standing::Gone => {}
    }
}

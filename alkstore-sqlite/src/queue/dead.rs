//! Dead letters: burying, requeueing, purging, and maintenance.

use alkstore_core::{DeadSelection, Maintenance, MaintenancePage, QueueName};
use rusqlite::{Params, params};

use super::insert::key_holder;
use super::{PAGE, row, topic};
use crate::sql::{self, Outcome, Write};

const LAPSED_OF: &str = "SELECT id FROM alkstore_jobs WHERE queue = ?1 AND state = 3 AND at <= ?2";

/// Those that a claim holds stand aside, so that they hide nothing behind them.
const EXPIRED_OF: &str = "SELECT id FROM alkstore_jobs
    WHERE queue = ?1 AND state < 4 AND expires_at IS NOT NULL AND expires_at <= ?2
        AND (state < 2 OR at <= ?2)";

const LAPSED: &str = "SELECT id FROM alkstore_jobs WHERE state = 3 AND at <= ?1 LIMIT ?2";

const EXPIRED: &str = "SELECT id FROM alkstore_jobs
    WHERE state < 4 AND expires_at IS NOT NULL AND expires_at <= ?1
        AND (state < 2 OR at <= ?1) LIMIT ?2";

const PURGE_GONE: &str = "DELETE FROM alkstore_jobs WHERE id IN (
    SELECT id FROM alkstore_jobs WHERE gone_at IS NOT NULL AND gone_at <= ?1
    ORDER BY gone_at LIMIT ?2)";

const DEAD: &str = "SELECT id, unique_key FROM alkstore_jobs
    WHERE queue = ?1 AND state = 4 AND (gone_at IS NULL OR gone_at > ?2) ORDER BY id";

const DEAD_ONE: &str = "SELECT id, unique_key FROM alkstore_jobs
    WHERE id = ?1 AND queue = ?2 AND state = 4 AND (gone_at IS NULL OR gone_at > ?3)";

const REQUEUE: &str = "UPDATE alkstore_jobs
    SET state = 0, at = ?2, ready_at = ?2, attempt = 0, expires_at = NULL, gone_at = NULL
    WHERE id = ?1";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[LAPSED, EXPIRED, PURGE_GONE, DEAD, DEAD_ONE, REQUEUE];

fn ids(write: &Write<'_>, statement: &str, params: impl Params) -> Outcome<Vec<i64>> {
    Ok(sql::all(write.conn, statement, params, |row| row.get(0))?)
}

/// Stores every death in a queue that the clock implies.
fn store_deaths(write: &Write<'_>, queue: &QueueName) -> Outcome<()> {
    for statement in [LAPSED_OF, EXPIRED_OF] {
        for id in ids(write, statement, params![queue.as_str(), write.time.now])? {
            row::store_death(write, id)?;
        }
    }
    Ok(())
}

type Dead = (i64, Option<String>);

/// The dead jobs that are meant, by id.
fn selected(write: &Write<'_>, queue: &QueueName, which: &DeadSelection) -> Outcome<Vec<Dead>> {
    let dead = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let now = write.time.now;
    let wanted = match which {
        DeadSelection::All => {
            return Ok(sql::all(write.conn, DEAD, params![queue.as_str(), now], dead)?);
        }
        DeadSelection::Ids(ids) => ids,
    };
    let mut wanted: Vec<_> = wanted.iter().map(|id| id.get()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut found = Vec::with_capacity(wanted.len());
    for id in wanted {
        found.extend(sql::one(write.conn, DEAD_ONE, params![id, queue.as_str(), now], dead)?);
    }
    Ok(found)
}

pub(super) fn requeue_jobs(
    write: &mut Write<'_>,
    queue: &QueueName,
    which: &DeadSelection,
) -> Outcome<u64> {
    store_deaths(write, queue)?;
    let now = write.time.now;
    let mut requeued = 0;
    for (id, key) in selected(write, queue, which)? {
        if let Some(key) = key
            && key_holder(write, queue, &key)?.is_some()
        {
            continue;
        }
        requeued += write.run(REQUEUE, [id, now])?;
    }
    write.effects.wake(topic(queue), requeued);
    Ok(sql::count(requeued))
}

pub(super) fn purge_jobs(
    write: &mut Write<'_>,
    queue: &QueueName,
    which: &DeadSelection,
) -> Outcome<u64> {
    store_deaths(write, queue)?;
    let found = selected(write, queue, which)?;
    for (id, _) in &found {
        row::delete(write, *id)?;
    }
    Ok(sql::count(found.len()))
}

/// One page over all queues.
pub(crate) fn maintain(write: &mut Write<'_>) -> Outcome<MaintenancePage> {
    let mut done = Maintenance::default();
    let mut left = PAGE;
    for (statement, buried) in [(LAPSED, &mut done.buried), (EXPIRED, &mut done.expired)] {
        for id in ids(write, statement, params![write.time.now, sql::extent(left)])? {
            if row::store_death(write, id)? {
                *buried += 1;
                left -= 1;
            }
        }
    }
    let purged = write.run(PURGE_GONE, params![write.time.now, sql::extent(left)])?;
    done.purged += sql::count(purged);
    Ok(MaintenancePage { done, more: left == purged })
}

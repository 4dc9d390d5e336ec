//! Dead letters, and maintenance.

use alkstore_core::{DeadSelection, JobId, Maintenance, MaintenancePage, QueueName};
use sqlx::Row;

use crate::error::Outcome;
use crate::sql::Sql;

const REQUEUE: &str = "SELECT {s}.requeue_jobs($1, $2)";

const PURGE: &str = "SELECT {s}.purge_jobs($1, $2)";

const MAINTAIN: &str = "SELECT expired, buried, purged, more FROM {s}.maintain()";

async fn count(
    sql: &mut Sql<'_>,
    text: &'static str,
    queue: &QueueName,
    which: &DeadSelection,
) -> Outcome<u64> {
    let ids: Option<Vec<i64>> = match which {
        DeadSelection::All => None,
        DeadSelection::Ids(ids) => Some(ids.iter().copied().map(JobId::get).collect()),
    };
    let statement = sql.query(text).bind(queue.to_string()).bind(ids);
    Ok(sql.one(statement).await?.try_get::<i64, _>(0)?.unsigned_abs())
}

pub(super) async fn requeue_jobs(
    sql: &mut Sql<'_>,
    queue: &QueueName,
    which: &DeadSelection,
) -> Outcome<u64> {
    count(sql, REQUEUE, queue, which).await
}

pub(super) async fn purge_jobs(
    sql: &mut Sql<'_>,
    queue: &QueueName,
    which: &DeadSelection,
) -> Outcome<u64> {
    count(sql, PURGE, queue, which).await
}

/// One page over all queues.
pub(crate) async fn maintain(sql: &mut Sql<'_>) -> Outcome<MaintenancePage> {
    let statement = sql.query(MAINTAIN);
    let row = sql.one(statement).await?;
    let count = |column| -> sqlx::Result<u64> { Ok(row.try_get::<i64, _>(column)?.unsigned_abs()) };
    let mut done = Maintenance::default();
    done.expired = count(0)?;
    done.buried = count(1)?;
    done.purged = count(2)?;
    Ok(MaintenancePage { done, more: row.try_get(3)? })
}

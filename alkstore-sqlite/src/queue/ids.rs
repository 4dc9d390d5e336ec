//! Ids that were handed out inside a transaction: the database forgets them where that is rolled
//! back, and they must not come to another job.

use std::sync::atomic::{AtomicI64, Ordering};

use alkstore_core::{JobId, JobSpec, QueueName, QueueOpts};
use rusqlite::Connection;

use super::insert::insert_jobs;
use crate::sql::{self, Outcome, Write};

const RAISE: &str = "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'alkstore_jobs' AND seq < ?1";

/// Before the first job there is no row to raise.
const BEGIN: &str = "INSERT INTO sqlite_sequence (name, seq) SELECT 'alkstore_jobs', ?1
    WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'alkstore_jobs')";

/// The largest id that this process has handed out inside a transaction, and the largest one of
/// those that the file is known to remember.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    given: AtomicI64,
    kept: AtomicI64,
}

impl Ids {
    /// The largest one given; it is remembered with the next commit of this process.
    pub(crate) fn given(&self) -> i64 {
        self.given.load(Ordering::SeqCst)
    }

    /// Whether the file may have forgotten some.
    pub(crate) fn are_forgotten(&self) -> bool {
        self.given() > self.kept.load(Ordering::SeqCst)
    }

    /// The ids up to this one are in the file.
    pub(crate) fn kept(&self, id: i64) {
        self.kept.fetch_max(id, Ordering::SeqCst);
    }

    /// Writes down those that the file may have forgotten, in the transaction that is open.
    pub(crate) fn keep(&self, conn: &Connection) -> rusqlite::Result<()> {
        if self.are_forgotten() {
            sql::run(conn, RAISE, [self.given()])?;
            sql::run(conn, BEGIN, [self.given()])?;
        }
        Ok(())
    }

    /// Adds jobs inside a transaction that may be rolled back.
    pub(crate) fn insert_jobs(
        &self,
        write: &mut Write<'_>,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: &[JobSpec],
    ) -> Outcome<Vec<JobId>> {
        self.keep(write.conn)?;
        let ids = insert_jobs(write, queue, opts, jobs)?;
        let last = ids.iter().max().map_or(0, |id| id.get());
        self.given.fetch_max(last, Ordering::SeqCst);
        Ok(ids)
    }
}

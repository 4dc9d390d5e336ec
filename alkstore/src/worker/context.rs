//! What a handler knows of its job, and what it may do about it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{Headers, Job, JobId, Payload, Result, StopToken, Store, Tx};

use super::claim::{Claim, Staged};

/// A job as its handler sees it. The worker extends the claim while the handler runs and settles
/// it afterwards, by the outcome that the handler returns.
pub struct JobContext {
    pub(super) job: Job,
    pub(super) claim: Arc<Claim>,
    pub(super) store: Arc<dyn Store>,
    pub(super) stop: StopToken,
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("queue", &self.queue())
            .field("id", &self.id())
            .field("attempt", &self.attempt())
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

impl JobContext {
    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.job.id()
    }

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        self.job.queue()
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.job.attempt()
    }

    /// How many attempts it may have.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.job.max_attempts()
    }

    /// Its payload.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        self.job.payload()
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.job.headers()
    }

    /// When it was enqueued.
    #[must_use]
    pub fn enqueued_at(&self) -> SystemTime {
        self.job.enqueued_at()
    }

    /// Until when the claim holds, on the engine's clock; heartbeats move it.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.claim.deadline()
    }

    /// How long the claim still holds, by this process's monotonic clock; heartbeats move it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.claim.remaining()
    }

    /// The worker's store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What stops the worker: a long handler may look at it and end early, for instance with
    /// [`Outcome::snooze`](super::Outcome::snooze).
    #[must_use]
    pub fn stop_token(&self) -> &StopToken {
        &self.stop
    }

    /// Acks the job in a transaction, so that it and everything else staged there happen together
    /// or not at all. Commit the transaction before the handler returns.
    ///
    /// Where it wasn't committed, a handler that returns `Ok` all the same counts as failed: the
    /// job is tried again, as after any other error. To find that out costs one more write;
    /// [`ack_and_commit`](Self::ack_and_commit) saves it.
    ///
    /// # Errors
    ///
    /// [`Error::ClaimLost`](crate::Error::ClaimLost);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the transaction is of
    /// another store; or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the ack is staged or not.
    pub async fn ack_tx(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        // Told first: from the moment it is staged, a heartbeat that finds the claim gone may
        // only have met the commit.
        self.claim.stage(Staged::Open);
        self.job.ack_tx(tx).await.inspect_err(|_| self.claim.stage(Staged::No))
    }

    /// Acks the job in a transaction and commits that.
    ///
    /// # Errors
    ///
    /// As [`ack_tx`](Self::ack_tx) and [`Tx::commit`]. Return the error: the job is tried again
    /// unless the commit took effect.
    ///
    /// # Cancel safety
    ///
    /// Dropped, all of the transaction is committed or nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use alkstore::prelude::*;
    /// use alkstore::worker::JobContext;
    ///
    /// async fn settle(mut job: JobContext, order: u64) -> Result<()> {
    ///     let mut tx = job.store().begin_tx().await?;
    ///     let orders = job.store().stream("orders")?;
    ///     orders.publish_tx(&mut tx, &order, PublishOpts::new()).await?;
    ///     job.ack_and_commit(tx).await
    /// }
    /// # let store = alkstore::MemStore::new();
    /// # let _ = alkstore::worker::Worker::builder(&store).queue("orders", settle);
    /// ```
    pub async fn ack_and_commit(&mut self, mut tx: Tx<'_>) -> Result<()> {
        self.ack_tx(&mut tx).await?;
        tx.commit().await?;
        self.claim.stage(Staged::Committed);
        Ok(())
    }
}

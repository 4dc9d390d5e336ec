//! Queues: jobs with leases, retries and dead letters.

mod enqueue;
mod record;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::job::{ClaimedJob, Job, SettleAction, Settled, Settlement};
use crate::macros::ids;
use crate::name::{LocalName, QueueName};
use crate::payload::IntoPayload;
use crate::store::Store;
use crate::time::{Countdown, Timestamp};
use crate::tx::Tx;
use crate::wake::{Backoff, Topic, Wait, one_result};

pub(crate) use enqueue::check_stamps;
pub use enqueue::{Due, EnqueueOpts, JobSpec, NewJob, QueueOpts};
pub use record::{DEFAULT_PAGE, DeadSelection, JobFilter, JobRecord, JobState, QueueStats};

ids! {
    /// A job's id: unique in the store, never reused.
    JobId >= 1;
}

/// What a claim found.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The jobs, in the order in which they are due.
    pub jobs: Vec<ClaimedJob>,
    /// Where the queue isn't paused: the next instant at which a job of it becomes claimable.
    pub next_due: Option<Timestamp>,
    /// A job is due that a transaction or another claimer holds: look again soon.
    pub blocked: bool,
    /// The claim ended at its bound with work left to look at: claim again at once.
    pub more: bool,
}

/// What a claim that found less than it asked for says about the next one: for runtimes that wait
/// by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimHint {
    /// The next instant at which a job of the queue becomes claimable.
    pub next_due: Option<Timestamp>,
    /// A job is due that somebody else holds: look again soon.
    pub blocked: bool,
    /// There is more to look at: claim again at once.
    pub more: bool,
}

/// The queue primitives of an engine.
#[async_trait]
pub trait QueueStore {
    /// Adds jobs in order, all or none; the ids of those added ascend. A job whose unique key a
    /// live job of the queue holds adds nothing and answers with that job's id.
    async fn insert_jobs(
        &self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>>;

    /// Hands out at most `max` jobs. A caller that is gone before it saw them gives them back,
    /// the attempt uncharged.
    async fn claim_jobs(
        &self,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed>;

    /// Settles claims, each for itself; the results are in order. An item that has to wait for a
    /// transaction doesn't hold up the others.
    async fn settle_jobs(&self, items: Vec<Settlement>) -> Result<Vec<Result<Settled>>>;

    /// Removes a job that is pending or claimed.
    async fn cancel_job(&self, queue: &QueueName, id: JobId) -> Result<bool>;

    /// One job, live or dead.
    async fn find_job(&self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>>;

    /// Jobs by ascending id.
    async fn find_jobs(&self, queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>>;

    /// The stats of one queue, or of every queue with a job or paused, by name.
    async fn queue_stats(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStats>>;

    /// Makes dead jobs pending again, lower ids first, and says how many.
    async fn requeue_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64>;

    /// Deletes dead jobs and says how many.
    async fn purge_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64>;

    /// Pauses or resumes a queue and says whether that changed something.
    async fn set_queue_paused(&self, queue: &QueueName, paused: bool) -> Result<bool>;
}

/// A queue of jobs: an address, cheap to clone, that keeps the store open.
///
/// Jobs are delivered at least once: one may run twice at the same time after its claim lapsed,
/// and only one of the two can settle it.
///
/// # Examples
///
/// ```
/// use alkstore_core::StoreExt;
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let emails = store.queue("emails")?;
/// emails.enqueue(&"to: ada").await?;
/// if let Some(mut job) = emails.claim("worker-1").await? {
///     assert_eq!(job.decode::<String>()?, "to: ada");
///     job.ack().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Queue {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: QueueName,
    opts: QueueOpts,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).field("opts", &self.opts).finish()
    }
}

impl Queue {
    pub(crate) fn new(store: Arc<dyn Store>, name: QueueName, opts: QueueOpts) -> Result<Self> {
        Ok(Self { store, name, opts: opts.checked()? })
    }

    /// The engine itself: through the `Arc` each call would be boxed twice.
    fn engine(&self) -> &dyn Store {
        &*self.store
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Adds a job that can be claimed at once.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`], [`Error::PayloadTooLarge`], or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has added the job or not.
    pub fn enqueue(&self, payload: impl IntoPayload) -> impl Future<Output = Result<JobId>> + Send {
        self.enqueue_with(payload, EnqueueOpts::default())
    }

    /// Adds a job with options. Where a live job holds its unique key, adds nothing and returns
    /// that job's id.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue); [`Error::InvalidName`] for the unique key,
    /// [`Error::InvalidArgument`] for `max_attempts` 0, [`Error::Unavailable`] where a
    /// transaction that staged the same key stays open longer than the lock timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has added the job or not.
    pub fn enqueue_with(
        &self,
        payload: impl IntoPayload,
        opts: EnqueueOpts,
    ) -> impl Future<Output = Result<JobId>> + Send {
        let limit = self.engine().limits().payload;
        let job = NewJob::new(payload).and_then(|job| job.opts(opts).check(limit));
        async move {
            let jobs = vec![job?];
            one_result(self.engine().insert_jobs(&self.name, &self.opts, jobs).await?)
        }
    }

    /// Adds jobs, all or none, in order. Two with the same unique key are one.
    ///
    /// # Errors
    ///
    /// As [`enqueue_with`](Self::enqueue_with); nothing was added then.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has added all jobs or none.
    pub async fn enqueue_many(&self, jobs: Vec<NewJob>) -> Result<Vec<JobId>> {
        let jobs = self.check(jobs)?;
        self.engine().insert_jobs(&self.name, &self.opts, jobs).await
    }

    /// Adds a job when the transaction commits; its instants are those of this call.
    ///
    /// # Errors
    ///
    /// As [`enqueue_with`](Self::enqueue_with); [`Error::InvalidArgument`] where the transaction
    /// is of another store.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged the job or not.
    pub fn enqueue_tx(
        &self,
        tx: &mut Tx<'_>,
        payload: impl IntoPayload,
        opts: EnqueueOpts,
    ) -> impl Future<Output = Result<JobId>> + Send {
        let job = NewJob::new(payload).map(|job| job.opts(opts));
        async move { one_result(self.enqueue_many_tx(tx, vec![job?]).await?) }
    }

    /// Adds jobs when the transaction commits.
    ///
    /// # Errors
    ///
    /// As [`enqueue_tx`](Self::enqueue_tx).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has staged all jobs or none.
    pub async fn enqueue_many_tx(&self, tx: &mut Tx<'_>, jobs: Vec<NewJob>) -> Result<Vec<JobId>> {
        let jobs = self.check(jobs)?;
        tx.insert_jobs(self.store.store_id(), &self.name, &self.opts, jobs).await
    }

    fn check(&self, jobs: Vec<NewJob>) -> Result<Vec<JobSpec>> {
        let limit = self.store.limits().payload;
        jobs.into_iter().map(|job| job.check(limit)).collect()
    }

    /// Claims the job that is due first, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] for the worker id, or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped, it gives back what it had claimed, the attempt uncharged.
    pub async fn claim(&self, worker_id: &str) -> Result<Option<Job>> {
        let worker = LocalName::new(worker_id)?;
        loop {
            let (job, claimed) = self.claim_one(&worker).await?;
            if job.is_some() || !claimed.more {
                return Ok(job);
            }
        }
    }

    /// Claims up to `max` jobs in one call, in the order in which they are due.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe, as [`claim`](Self::claim).
    pub async fn claim_batch(&self, worker_id: &str, max: usize) -> Result<Vec<Job>> {
        let worker = LocalName::new(worker_id)?;
        loop {
            let asked = Countdown::start(Duration::ZERO);
            let claimed = self.engine().claim_jobs(&self.name, &worker, max).await?;
            if !claimed.jobs.is_empty() || !claimed.more {
                return Ok(claimed.jobs.into_iter().map(|job| self.job(job, asked)).collect());
            }
        }
    }

    /// Waits until it can claim a job.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim); [`Error::Closed`] when the store is closed meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe, as [`claim`](Self::claim): `select!` and timeouts lose nothing.
    pub async fn next(&self, worker_id: &str) -> Result<Job> {
        let worker = LocalName::new(worker_id)?;
        // Where work is waiting no watch is needed; where none is, it has to come before the look.
        if let (Some(job), _) = self.claim_one(&worker).await? {
            return Ok(job);
        }
        let mut watch = self.store.watch(self.topic()).await?;
        let mut look_again = Backoff::LOOK_AGAIN;
        loop {
            let (job, claimed) = self.claim_one(&worker).await?;
            if let Some(job) = job {
                return Ok(job);
            }
            if claimed.more {
                continue;
            }
            if !claimed.blocked {
                look_again.reset();
            }
            let within = claimed.blocked.then(|| look_again.next());
            watch.changed(Wait { until: claimed.next_due, within }).await?;
        }
    }

    /// For runtimes: one claim of up to `max` jobs, and when it is worth claiming again. Who waits
    /// for that watches [`topic`](Self::topic) from before the claim on.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe, as [`claim`](Self::claim).
    pub async fn claim_hinted(&self, worker_id: &str, max: usize) -> Result<(Vec<Job>, ClaimHint)> {
        let worker = LocalName::new(worker_id)?;
        let asked = Countdown::start(Duration::ZERO);
        let Claimed { jobs, next_due, blocked, more } =
            self.engine().claim_jobs(&self.name, &worker, max).await?;
        let jobs = jobs.into_iter().map(|job| self.job(job, asked)).collect();
        Ok((jobs, ClaimHint { next_due, blocked, more }))
    }

    /// For runtimes: what to watch to hear of claimable jobs.
    #[must_use]
    pub fn topic(&self) -> Topic {
        Topic::Queue(self.name.clone())
    }

    async fn claim_one(&self, worker: &LocalName) -> Result<(Option<Job>, Claimed)> {
        let asked = Countdown::start(Duration::ZERO);
        let mut claimed = self.engine().claim_jobs(&self.name, worker, 1).await?;
        Ok((claimed.jobs.pop().map(|job| self.job(job, asked)), claimed))
    }

    fn job(&self, claimed: ClaimedJob, asked: Countdown) -> Job {
        Job::new(self.store.clone(), self.name.clone(), claimed, asked)
    }

    /// Acks jobs of this queue in one call. The results are in the order of the jobs, each for
    /// itself: [`Error::ClaimLost`] for those whose claim is lost.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for the whole call, nothing written, where a job is of another
    /// queue or store; or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, each job is acked or not.
    pub async fn ack_batch(&self, jobs: &mut [Job]) -> Result<Vec<Result<()>>> {
        let mut items = Vec::with_capacity(jobs.len());
        for job in jobs.iter() {
            if job.store.store_id() != self.store.store_id() || job.claim.queue != self.name {
                return Err(Error::invalid_argument(
                    "jobs",
                    format_args!("job {} of queue {:?}", job.id(), job.queue()),
                    format!("jobs claimed from queue {:?} through this store", self.name),
                ));
            }
            items.push(Settlement { claim: job.claim.clone(), action: SettleAction::Ack });
        }
        let results = self.engine().settle_jobs(items).await?;
        if results.len() != jobs.len() {
            return Err(Error::engine(
                "the engine answered a batch with another number of results",
            ));
        }
        Ok(results.into_iter().map(|result| result.map(drop)).collect())
    }

    /// Removes a job that is pending or claimed; its holder's next settlement is
    /// [`Error::ClaimLost`]. `false` where there is no such job or it is dead.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where a transaction that settles it stays open longer than the lock
    /// timeout, or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has removed the job or not.
    pub async fn cancel(&self, id: JobId) -> Result<bool> {
        self.engine().cancel_job(&self.name, id).await
    }

    /// One job, live or dead.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn get_job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.engine().find_job(&self.name, id).await
    }

    /// Jobs by ascending id.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobRecord>> {
        self.engine().find_jobs(&self.name, &filter).await
    }

    /// What the queue holds.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn stats(&self) -> Result<QueueStats> {
        one_result(self.engine().queue_stats(Some(&self.name)).await?)
    }

    /// Makes dead jobs claimable again, with the same id, attempts back to 0 and no expiry, and
    /// says how many. One whose unique key a live job holds, or a lower id of the same call
    /// takes, stays dead and isn't counted.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has requeued all of them or none.
    pub async fn requeue_dead(&self, which: impl Into<DeadSelection> + Send) -> Result<u64> {
        self.engine().requeue_jobs(&self.name, &which.into()).await
    }

    /// Deletes dead jobs and says how many.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has deleted all of them or none.
    pub async fn purge_dead(&self, which: impl Into<DeadSelection> + Send) -> Result<u64> {
        self.engine().purge_jobs(&self.name, &which.into()).await
    }

    /// Lets claims find nothing, until [`resume`](Self::resume); enqueues and settlements go on.
    /// `false` where it was paused already.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has paused the queue or not.
    pub async fn pause(&self) -> Result<bool> {
        self.engine().set_queue_paused(&self.name, true).await
    }

    /// Lets claims find jobs again. `false` where the queue wasn't paused.
    ///
    /// # Errors
    ///
    /// What the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has resumed the queue or not.
    pub async fn resume(&self) -> Result<bool> {
        self.engine().set_queue_paused(&self.name, false).await
    }
}

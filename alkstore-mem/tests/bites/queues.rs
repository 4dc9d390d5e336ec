//! Engines that break a rule of queues outside of claims and settlements.

use std::collections::{BTreeSet, HashMap};

use alkstore_core::{
    Claimed, DeadSelection, Error, JobFilter, JobId, JobRecord, JobSpec, JobState, LocalName,
    MaintenancePage, QueueName, QueueOpts, QueueStats, Result, Store, async_trait,
};
use alkstore_suite::fault::Layer;
use parking_lot::Mutex;
use tokio::task::yield_now;

/// Adds many jobs one by one.
pub(crate) struct InsertsOneByOne;

#[async_trait]
impl Layer for InsertsOneByOne {
    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let mut ids = Vec::new();
        for job in jobs {
            ids.extend(inner.insert_jobs(queue, opts, vec![job]).await?);
            yield_now().await;
        }
        Ok(ids)
    }
}

/// Adds many jobs from the last to the first.
pub(crate) struct InsertsBackwards;

#[async_trait]
impl Layer for InsertsBackwards {
    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        mut jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        jobs.reverse();
        let mut ids = inner.insert_jobs(queue, opts, jobs).await?;
        ids.reverse();
        Ok(ids)
    }
}

/// Requeues and purges one by one.
pub(crate) struct TakesDeadOneByOne;

impl TakesDeadOneByOne {
    async fn ids(
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<Vec<JobId>> {
        match which {
            DeadSelection::Ids(ids) => Ok(ids.clone()),
            DeadSelection::All => {
                let dead = JobFilter::new().state(JobState::Dead).limit(usize::MAX);
                let dead = inner.find_jobs(queue, &dead).await?;
                Ok(dead.iter().map(|job| job.id).collect())
            }
        }
    }
}

#[async_trait]
impl Layer for TakesDeadOneByOne {
    async fn requeue_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<u64> {
        let mut requeued = 0;
        for id in Self::ids(inner, queue, which).await? {
            requeued += inner.requeue_jobs(queue, &DeadSelection::Ids(vec![id])).await?;
            yield_now().await;
        }
        Ok(requeued)
    }

    async fn purge_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<u64> {
        let mut purged = 0;
        for id in Self::ids(inner, queue, which).await? {
            purged += inner.purge_jobs(queue, &DeadSelection::Ids(vec![id])).await?;
            yield_now().await;
        }
        Ok(purged)
    }
}

/// A job that the clock has made dead keeps its unique key until it is swept.
pub(crate) struct DeadKeepsKey;

#[async_trait]
impl Layer for DeadKeepsKey {
    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        if let [job] = &jobs[..]
            && let Some(key) = &job.unique_key
        {
            let dead = inner.find_jobs(queue, &JobFilter::new().state(JobState::Dead)).await?;
            let holder = dead.iter().find(|dead| dead.unique_key.as_deref() == Some(key.as_str()));
            if let Some(holder) = holder {
                return Ok(vec![holder.id]);
            }
        }
        inner.insert_jobs(queue, opts, jobs).await
    }
}

/// A requeued job goes on counting its attempts.
#[derive(Default)]
pub(crate) struct RequeueKeepsAttempts {
    before: Mutex<HashMap<JobId, u32>>,
}

impl RequeueKeepsAttempts {
    fn before(&self, id: JobId) -> u32 {
        self.before.lock().get(&id).copied().unwrap_or(0)
    }
}

#[async_trait]
impl Layer for RequeueKeepsAttempts {
    async fn requeue_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<u64> {
        let dead = inner.find_jobs(queue, &JobFilter::new().state(JobState::Dead)).await?;
        self.before.lock().extend(dead.iter().map(|job| (job.id, job.attempt)));
        inner.requeue_jobs(queue, which).await
    }

    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let mut claimed = inner.claim_jobs(queue, worker, max).await?;
        claimed.jobs.iter_mut().for_each(|job| job.attempt += self.before(job.id));
        Ok(claimed)
    }

    async fn find_job(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        let record = inner.find_job(queue, id).await?;
        Ok(record.map(|mut record| {
            if record.state != JobState::Dead {
                record.attempt += self.before(id);
            }
            record
        }))
    }
}

/// A requeue of all takes the first job only.
pub(crate) struct RequeuesOne;

#[async_trait]
impl Layer for RequeuesOne {
    async fn requeue_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        _: &DeadSelection,
    ) -> Result<u64> {
        let dead = inner.find_jobs(queue, &JobFilter::new().state(JobState::Dead)).await?;
        match dead.first() {
            Some(job) => inner.requeue_jobs(queue, &job.id.into()).await,
            None => Ok(0),
        }
    }
}

/// A purge by id takes what lives as well.
pub(crate) struct PurgesTheLiving;

#[async_trait]
impl Layer for PurgesTheLiving {
    async fn purge_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<u64> {
        let mut purged = inner.purge_jobs(queue, which).await?;
        if let DeadSelection::Ids(ids) = which {
            for id in ids {
                purged += u64::from(inner.cancel_job(queue, *id).await?);
            }
        }
        Ok(purged)
    }
}

/// A cancel of what the clock has made dead removes it.
pub(crate) struct CancelsTheDead;

#[async_trait]
impl Layer for CancelsTheDead {
    async fn cancel_job(&self, inner: &dyn Store, queue: &QueueName, id: JobId) -> Result<bool> {
        Ok(inner.cancel_job(queue, id).await? || inner.purge_jobs(queue, &id.into()).await? > 0)
    }
}

/// A cancel takes pending jobs only.
pub(crate) struct CancelsPendingOnly;

#[async_trait]
impl Layer for CancelsPendingOnly {
    async fn cancel_job(&self, inner: &dyn Store, queue: &QueueName, id: JobId) -> Result<bool> {
        match inner.find_job(queue, id).await? {
            Some(job) if job.state == JobState::Claimed => Ok(false),
            _ => inner.cancel_job(queue, id).await,
        }
    }
}

/// How pausing goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Claims go on.
    ClaimsGoOn,
    /// Enqueues stop as well.
    EnqueuesStop,
    /// Pausing what is paused says that it changed something.
    AlwaysChanges,
}

/// Pauses badly.
pub(crate) struct PausesBadly {
    pause: Pause,
    paused: Mutex<BTreeSet<String>>,
}

impl PausesBadly {
    pub(crate) fn new(pause: Pause) -> Self {
        Self { pause, paused: Mutex::default() }
    }
}

#[async_trait]
impl Layer for PausesBadly {
    async fn set_queue_paused(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        paused: bool,
    ) -> Result<bool> {
        let name = queue.to_string();
        let mine =
            if paused { self.paused.lock().insert(name) } else { self.paused.lock().remove(&name) };
        match self.pause {
            Pause::ClaimsGoOn => Ok(mine),
            Pause::EnqueuesStop => inner.set_queue_paused(queue, paused).await,
            Pause::AlwaysChanges => inner.set_queue_paused(queue, paused).await.map(|_| true),
        }
    }

    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        if self.pause == Pause::EnqueuesStop && self.paused.lock().contains(queue.as_str()) {
            return Err(Error::unavailable("the queue is paused"));
        }
        inner.insert_jobs(queue, opts, jobs).await
    }

    async fn queue_stats(
        &self,
        inner: &dyn Store,
        queue: Option<&QueueName>,
    ) -> Result<Vec<QueueStats>> {
        let mut stats = inner.queue_stats(queue).await?;
        for stats in &mut stats {
            stats.paused |= self.paused.lock().contains(&stats.name);
        }
        Ok(stats)
    }
}

/// Dead jobs are shown beyond their retention.
#[derive(Default)]
pub(crate) struct ShowsBeyondRetention {
    stamps: Mutex<HashMap<JobId, Option<std::time::Duration>>>,
}

#[async_trait]
impl Layer for ShowsBeyondRetention {
    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let mut kept = opts.clone();
        kept.dead_retention = None;
        let ids = inner.insert_jobs(queue, &kept, jobs).await?;
        self.stamps.lock().extend(ids.iter().map(|id| (*id, opts.dead_retention)));
        Ok(ids)
    }

    async fn find_job(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        let record = inner.find_job(queue, id).await?;
        Ok(record.map(|mut record| {
            record.dead_retention = self.stamps.lock().get(&id).copied().flatten();
            record
        }))
    }
}

/// Expired jobs are handed out.
#[derive(Default)]
pub(crate) struct HandsOutExpired {
    expires: Mutex<HashMap<JobId, std::time::Duration>>,
}

#[async_trait]
impl Layer for HandsOutExpired {
    async fn insert_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        opts: &QueueOpts,
        mut jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let expires: Vec<_> = jobs.iter_mut().map(|job| job.expires.take()).collect();
        let ids = inner.insert_jobs(queue, opts, jobs).await?;
        let stamped = ids.iter().zip(expires).filter_map(|(id, expires)| Some((*id, expires?)));
        self.expires.lock().extend(stamped);
        Ok(ids)
    }

    async fn find_job(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        let record = inner.find_job(queue, id).await?;
        Ok(record.map(|mut record| {
            let expires = self.expires.lock().get(&id).copied();
            let since = alkstore_core::Timestamp::from(record.enqueued_at);
            record.expires_at = expires.map(|expires| since.plus(expires).into());
            record
        }))
    }
}

/// Maintenance does nothing.
pub(crate) struct MaintainsNothing;

#[async_trait]
impl Layer for MaintainsNothing {
    async fn maintain_page(&self, _: &dyn Store) -> Result<MaintenancePage> {
        Ok(MaintenancePage::default())
    }
}

/// A job that nothing swept is pending still, whatever the clock says.
pub(crate) struct ExpiresBySweepOnly;

#[async_trait]
impl Layer for ExpiresBySweepOnly {
    async fn queue_stats(
        &self,
        inner: &dyn Store,
        queue: Option<&QueueName>,
    ) -> Result<Vec<QueueStats>> {
        let mut stats = inner.queue_stats(queue).await?;
        for stats in &mut stats {
            let queue = QueueName::stored(stats.name.clone());
            let dead = inner.find_jobs(&queue, &JobFilter::new().state(JobState::Dead)).await?;
            let unswept = dead
                .iter()
                .filter(|job| job.last_error.as_deref() == Some(alkstore_core::EXPIRED_ERROR));
            let unswept = unswept.count() as u64;
            stats.dead -= unswept;
            stats.ready += unswept;
        }
        Ok(stats)
    }
}

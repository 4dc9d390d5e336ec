//! Engines that break a rule of claims and settlements and have to remember claims for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    ClaimToken, Claimed, ClaimedJob, DeadSelection, Error, ErrorText, JobFilter, JobId, JobRecord,
    JobState, Lease, LocalName, QueueName, Result, SettleAction, Settled, Settlement, Store,
    Timestamp, async_trait,
};
use alkstore_suite::Data;
use alkstore_suite::fault::Layer;
use parking_lot::Mutex;
use tokio::task::yield_now;

async fn jobs_in(inner: &dyn Store, queue: &QueueName, state: JobState) -> Result<Vec<JobRecord>> {
    inner.find_jobs(queue, &JobFilter::new().state(state)).await
}

/// The claims that were handed out: the last of each job, and who made which.
#[derive(Default)]
struct Claims {
    last: HashMap<JobId, ClaimedJob>,
    workers: HashMap<(JobId, ClaimToken), LocalName>,
}

impl Claims {
    fn note(&mut self, worker: &LocalName, jobs: &[ClaimedJob]) {
        for job in jobs {
            self.last.insert(job.id, job.clone());
            self.workers.insert((job.id, job.token), worker.clone());
        }
    }

    /// The item as if the job's present claim had made it.
    fn of_present_claim(&self, item: &Settlement) -> Option<Settlement> {
        let token = self.last.get(&item.claim.id)?.token;
        let mut item = item.clone();
        item.claim.token = token;
        Some(item)
    }
}

/// Looks for work first and takes it later, without looking whether it is still there.
#[derive(Default)]
pub(crate) struct HandsOutTwice(Mutex<Claims>);

#[async_trait]
impl Layer for HandsOutTwice {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let seen = jobs_in(inner, queue, JobState::Pending).await?;
        yield_now().await;
        let mut claimed = inner.claim_jobs(queue, worker, max).await?;
        self.0.lock().note(worker, &claimed.jobs);
        for job in seen {
            let gone = inner.find_job(queue, job.id).await?.is_none_or(|job| {
                job.state != JobState::Claimed || job.worker_id.as_deref() == Some(worker.as_str())
            });
            let again = self.0.lock().last.get(&job.id).cloned();
            if let Some(again) = again
                && !gone
                && claimed.jobs.len() < max
            {
                claimed.jobs.push(again);
            }
        }
        Ok(claimed)
    }
}

/// How a settlement of a lost claim is taken all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lax {
    /// An ack, where the worker id is that of the present claim.
    AckOfSameWorker,
    /// A heartbeat, whoever has the job now.
    Heartbeat,
    /// A failure, whoever has the job now.
    Fail,
    /// Every settlement in the millisecond of the deadline.
    AtDeadline,
}

/// Fences settlements badly.
pub(crate) struct FencesBadly {
    lax: Lax,
    data: Arc<dyn Data>,
    claims: Mutex<Claims>,
}

impl FencesBadly {
    pub(crate) fn layer(lax: Lax, data: Arc<dyn Data>) -> Arc<dyn Layer> {
        Arc::new(Self { lax, data, claims: Mutex::default() })
    }

    async fn accepts(&self, inner: &dyn Store, item: &Settlement) -> Result<Option<Settlement>> {
        let Some(lax) = self.claims.lock().of_present_claim(item) else { return Ok(None) };
        let record = inner.find_job(&item.claim.queue, item.claim.id).await?;
        let Some(record) = record.filter(|record| record.state == JobState::Claimed) else {
            return Ok(None);
        };
        let worker = self.claims.lock().workers.get(&(item.claim.id, item.claim.token)).cloned();
        let accepted = match (self.lax, &item.action) {
            (Lax::AckOfSameWorker, SettleAction::Ack) => {
                record.worker_id.as_deref() == worker.as_ref().map(LocalName::as_str)
            }
            (Lax::Heartbeat, SettleAction::Heartbeat { .. })
            | (Lax::Fail, SettleAction::Fail { .. }) => true,
            _ => false,
        };
        Ok(accepted.then_some(lax))
    }
}

#[async_trait]
impl Layer for FencesBadly {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let claimed = inner.claim_jobs(queue, worker, max).await?;
        self.claims.lock().note(worker, &claimed.jobs);
        Ok(claimed)
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let mut results = inner.settle_jobs(items.clone()).await?;
        for (item, result) in items.iter().zip(&mut results) {
            if !matches!(result, Err(Error::ClaimLost { .. })) {
                continue;
            }
            if self.lax == Lax::AtDeadline {
                let deadline = self.claims.lock().last.get(&item.claim.id).map(|job| job.deadline);
                let own = self.claims.lock().last.get(&item.claim.id).map(|job| job.token)
                    == Some(item.claim.token);
                if own && deadline == Some(self.data.now().await) {
                    *result = Ok(match &item.action {
                        SettleAction::Ack => Settled::Gone,
                        SettleAction::Fail { .. } => Settled::Dead,
                        SettleAction::Heartbeat { extend } => {
                            Settled::Held(self.data.now().await.plus_millis(extend.as_millis()))
                        }
                        _ => Settled::Again(self.data.now().await),
                    });
                }
            } else if let Some(lax) = self.accepts(inner, item).await? {
                *result = inner.settle_jobs(vec![lax]).await?.remove(0);
            }
        }
        Ok(results)
    }
}

/// Settles each claim as another rule would have it.
pub(crate) struct SettlesOtherwise<F>(pub(crate) F, pub(crate) Arc<dyn Data>);

#[async_trait]
impl<F> Layer for SettlesOtherwise<F>
where
    F: Fn(SettleAction, &JobRecord, Timestamp) -> SettleAction + Send + Sync + 'static,
{
    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        mut items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let now = self.1.now().await;
        for item in &mut items {
            if let Some(record) = inner.find_job(&item.claim.queue, item.claim.id).await? {
                item.action = (self.0)(item.action.clone(), &record, now);
            }
        }
        inner.settle_jobs(items).await
    }
}

fn of_record(at: std::time::SystemTime) -> Timestamp {
    Timestamp::from(at)
}

/// A heartbeat adds to what is left.
pub(crate) fn heartbeat_adds(
    action: SettleAction,
    job: &JobRecord,
    now: Timestamp,
) -> SettleAction {
    match (action, job.deadline) {
        (SettleAction::Heartbeat { extend }, Some(deadline)) => {
            let sum = of_record(deadline).since(now) + extend.as_duration();
            SettleAction::Heartbeat { extend: Lease::new("extend", sum).unwrap_or(extend) }
        }
        (action, _) => action,
    }
}

/// A heartbeat never shortens.
pub(crate) fn heartbeat_never_shortens(
    action: SettleAction,
    job: &JobRecord,
    now: Timestamp,
) -> SettleAction {
    match (action, job.deadline) {
        (SettleAction::Heartbeat { extend }, Some(deadline)) => {
            let longer = of_record(deadline).since(now).max(extend.as_duration());
            SettleAction::Heartbeat { extend: Lease::new("extend", longer).unwrap_or(extend) }
        }
        (action, _) => action,
    }
}

/// A retry goes on for ever.
pub(crate) fn retry_for_ever(action: SettleAction, job: &JobRecord, _: Timestamp) -> SettleAction {
    match action {
        SettleAction::Retry { delay, .. } if job.attempt >= job.max_attempts => {
            SettleAction::Release { delay: delay.unwrap_or(job.retry_base) }
        }
        action => action,
    }
}

/// A release charges the attempt.
pub(crate) fn release_charges(action: SettleAction, _: &JobRecord, _: Timestamp) -> SettleAction {
    match action {
        SettleAction::Release { delay } => {
            SettleAction::Retry { error: ErrorText::new("released"), delay: Some(delay) }
        }
        action => action,
    }
}

/// A retry's own delay is ignored.
pub(crate) fn retry_ignores_delay(
    action: SettleAction,
    _: &JobRecord,
    _: Timestamp,
) -> SettleAction {
    match action {
        SettleAction::Retry { error, .. } => SettleAction::Retry { error, delay: None },
        action => action,
    }
}

fn with_backoff(action: SettleAction, delay: impl FnOnce() -> Duration) -> SettleAction {
    match action {
        SettleAction::Retry { error, delay: None } => {
            SettleAction::Retry { error, delay: Some(delay()) }
        }
        action => action,
    }
}

/// The backoff grows by the attempt, not by its power.
pub(crate) fn backoff_is_linear(
    action: SettleAction,
    job: &JobRecord,
    _: Timestamp,
) -> SettleAction {
    with_backoff(action, || (job.retry_base * job.attempt).min(Duration::from_secs(3_600)))
}

/// The backoff has no jitter.
pub(crate) fn backoff_has_no_jitter(
    action: SettleAction,
    job: &JobRecord,
    _: Timestamp,
) -> SettleAction {
    with_backoff(action, || {
        let factor = 1_u32.checked_shl(job.attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        job.retry_base.saturating_mul(factor).min(Duration::from_secs(3_600))
    })
}

/// The backoff isn't capped.
pub(crate) fn backoff_has_no_cap(
    action: SettleAction,
    job: &JobRecord,
    _: Timestamp,
) -> SettleAction {
    with_backoff(action, || {
        let factor = 1_u32.checked_shl(job.attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        job.retry_base.saturating_mul(factor).mul_f64(0.75)
    })
}

/// The backoff wraps around at high attempts.
pub(crate) fn backoff_overflows(
    action: SettleAction,
    job: &JobRecord,
    _: Timestamp,
) -> SettleAction {
    if job.attempt < 20 {
        return action;
    }
    with_backoff(action, || {
        let factor = 1_u32.wrapping_shl(job.attempt.saturating_sub(1));
        (job.retry_base.saturating_mul(factor).min(Duration::from_secs(3_600))).mul_f64(0.75)
    })
}

/// Refuses an error text that NUL was taken out of.
pub(crate) struct RefusesErrorText;

#[async_trait]
impl Layer for RefusesErrorText {
    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let refused = items.iter().any(|item| match &item.action {
            SettleAction::Retry { error, .. } | SettleAction::Fail { error } => {
                error.as_str().contains('\u{fffd}')
            }
            _ => false,
        });
        if refused {
            return Err(Error::engine("invalid byte sequence for encoding \"UTF8\": 0x00"));
        }
        inner.settle_jobs(items).await
    }
}

/// A claim whose caller is gone stays claimed.
pub(crate) struct KeepsDroppedClaims;

#[async_trait]
impl Layer for KeepsDroppedClaims {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let (store, queue, worker) = (inner.shared(), queue.clone(), worker.clone());
        let claiming = tokio::spawn(async move { store.claim_jobs(&queue, &worker, max).await });
        claiming.await.unwrap_or_else(|_| Err(Error::engine("the claim was cut off")))
    }
}

/// Gives a dropped claim back with its attempt charged.
pub(crate) struct ChargesDroppedClaims;

#[async_trait]
impl Layer for ChargesDroppedClaims {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        struct GiveBack(Option<(Arc<dyn Store>, Vec<Settlement>)>);

        impl Drop for GiveBack {
            fn drop(&mut self) {
                if let Some((store, items)) = self.0.take() {
                    tokio::spawn(async move { store.settle_jobs(items).await });
                }
            }
        }

        let claimed = inner.claim_jobs(queue, worker, max).await?;
        let items = claimed.jobs.iter().map(|job| Settlement {
            claim: alkstore_core::ClaimRef { queue: queue.clone(), id: job.id, token: job.token },
            action: SettleAction::Retry {
                error: ErrorText::new("dropped"),
                delay: Some(Duration::ZERO),
            },
        });
        let mut guard = GiveBack(Some((inner.shared(), items.collect())));
        yield_now().await;
        guard.0 = None;
        Ok(claimed)
    }
}

/// A claim that met a job whose claim had lapsed says that there is nothing.
#[derive(Default)]
pub(crate) struct RefusesLapsed {
    held: Mutex<HashSet<JobId>>,
}

#[async_trait]
impl Layer for RefusesLapsed {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let mut claimed = inner.claim_jobs(queue, worker, max).await?;
        let mut held = self.held.lock();
        claimed.jobs.retain(|job| held.insert(job.id));
        Ok(claimed)
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        for item in &items {
            if !matches!(item.action, SettleAction::Heartbeat { .. }) {
                self.held.lock().remove(&item.claim.id);
            }
        }
        inner.settle_jobs(items).await
    }

    async fn requeue_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        which: &DeadSelection,
    ) -> Result<u64> {
        self.held.lock().clear();
        inner.requeue_jobs(queue, which).await
    }
}

/// Shows a lapsed claim as claimed until something sweeps it.
#[derive(Default)]
pub(crate) struct ShowsLapsedAsClaimed {
    held: Mutex<HashMap<JobId, LocalName>>,
}

#[async_trait]
impl Layer for ShowsLapsedAsClaimed {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let claimed = inner.claim_jobs(queue, worker, max).await?;
        let mut held = self.held.lock();
        held.extend(claimed.jobs.iter().map(|job| (job.id, worker.clone())));
        Ok(claimed)
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        for item in &items {
            if !matches!(item.action, SettleAction::Heartbeat { .. }) {
                self.held.lock().remove(&item.claim.id);
            }
        }
        inner.settle_jobs(items).await
    }

    async fn find_job(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Option<JobRecord>> {
        let mut record = inner.find_job(queue, id).await?;
        if let Some(record) = &mut record
            && record.state == JobState::Pending
            && let Some(worker) = self.held.lock().get(&id)
        {
            record.state = JobState::Claimed;
            record.worker_id = Some(worker.to_string());
        }
        Ok(record)
    }
}

/// A cancel doesn't tell the holder.
#[derive(Default)]
pub(crate) struct CancelsQuietly {
    cancelled: Mutex<HashSet<JobId>>,
}

#[async_trait]
impl Layer for CancelsQuietly {
    async fn cancel_job(&self, inner: &dyn Store, queue: &QueueName, id: JobId) -> Result<bool> {
        let cancelled = inner.cancel_job(queue, id).await?;
        if cancelled {
            self.cancelled.lock().insert(id);
        }
        Ok(cancelled)
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let mut results = inner.settle_jobs(items.clone()).await?;
        for (item, result) in items.iter().zip(&mut results) {
            if matches!(item.action, SettleAction::Ack)
                && self.cancelled.lock().contains(&item.claim.id)
            {
                *result = Ok(Settled::Gone);
            }
        }
        Ok(results)
    }
}

/// Makes sure of a claim before it settles it.
pub(crate) struct SettlesInTwoSteps;

#[async_trait]
impl Layer for SettlesInTwoSteps {
    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        let mut held = items.clone();
        for item in &mut held {
            let extend = Lease::saturating(Duration::from_secs(90));
            item.action = SettleAction::Heartbeat { extend };
        }
        inner.settle_jobs(held).await?;
        yield_now().await;
        inner.settle_jobs(items).await
    }
}

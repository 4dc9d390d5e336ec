//! What a claim does to a job: attempts, tokens, lapses, expiries.

use std::time::Duration;

use alkstore_core::{
    ClaimRef, ClaimedJob, EXPIRED_ERROR, EnqueueOpts, JobState, LAPSED_ERROR, LocalName, QueueName,
    QueueOpts, SettleAction, Settlement, StoreExt,
};

use super::{
    MANY, add, add_many, assert_lost, assert_none, brief, brief_queue, millis, now, queue, record,
    secs, state, take, take_id,
};
use crate::cx::Cx;

pub(crate) async fn q27_a_claim_counts_an_attempt(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    for attempt in 1..=3 {
        assert_eq!(record(&queue, id).await.attempt, attempt - 1);
        let mut job = take(&queue).await;
        assert_eq!(job.attempt(), attempt);
        let held = record(&queue, id).await;
        assert_eq!((held.state, held.attempt), (JobState::Claimed, attempt));
        assert_eq!(held.worker_id.as_deref(), Some("w"));
        assert_eq!(held.deadline, Some(job.deadline()));
        job.retry("again", Some(Duration::ZERO)).await.unwrap();
    }
}

pub(crate) async fn q27_a_claim_token_only_grows(cx: Cx) {
    let queue = brief_queue(&cx);
    let (name, worker) = (QueueName::new("q").unwrap(), LocalName::new("w").unwrap());
    let id = add(&queue, EnqueueOpts::new()).await;
    let mut last = None;
    for round in 0..6 {
        let mut claimed = cx.store.claim_jobs(&name, &worker, 1).await.unwrap();
        let ClaimedJob { token, .. } = claimed.jobs.pop().expect("the job is claimable");
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        let claim = ClaimRef { queue: name.clone(), id, token };
        let error = alkstore_core::ErrorText::new("no");
        let action = match round {
            0 => SettleAction::Release { delay: Duration::ZERO },
            1 => SettleAction::Retry { error, delay: Some(Duration::ZERO) },
            2 | 4 => SettleAction::Fail { error },
            _ => {
                cx.advance(secs(10)).await;
                continue;
            }
        };
        cx.store.settle_jobs(vec![Settlement { claim, action }]).await.unwrap().remove(0).unwrap();
        queue.requeue_dead(id).await.unwrap();
    }
}

pub(crate) async fn q28_a_lapsed_claim_is_claimable_by_anyone(cx: Cx) {
    let queue = brief_queue(&cx);
    let other = cx.second().await.queue("q").unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    let _ = take(&queue).await;
    cx.advance(secs(10) - millis(1)).await;
    assert_none(&other).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    let job = other.claim("somebody else").await.unwrap().expect("the claim has lapsed");
    assert_eq!((job.id(), job.attempt()), (id, 2));
    assert_eq!(record(&queue, id).await.worker_id.as_deref(), Some("somebody else"));
}

pub(crate) async fn q29_a_job_that_kills_its_workers_stops_after_its_attempts(cx: Cx) {
    let queue = cx.store.queue_with("q", brief().max_attempts(2)).unwrap();
    let id = add(&queue, EnqueueOpts::new()).await;
    for attempt in 1..=2 {
        let job = take(&queue).await;
        assert_eq!(job.attempt(), attempt);
        drop(job);
        cx.advance(secs(10)).await;
    }
    let died_at = now(&cx).await;
    cx.advance(secs(5)).await;
    assert_none(&queue).await;
    let dead = record(&queue, id).await;
    assert_eq!((dead.state, dead.attempt), (JobState::Dead, 2));
    assert_eq!(dead.last_error.as_deref(), Some(LAPSED_ERROR));
    assert_eq!(dead.died_at, Some(died_at), "it died at its deadline");
    assert_eq!((dead.worker_id, dead.deadline), (None, None));
    assert_eq!(LAPSED_ERROR, "claim expired on the last attempt");
}

pub(crate) async fn q30_an_expired_job_is_never_handed_out(cx: Cx) {
    let queue = queue(&cx);
    let early = add(&queue, EnqueueOpts::new().expires(secs(10))).await;
    let expired = add(&queue, EnqueueOpts::new().expires(secs(10)).priority(-1)).await;
    cx.advance(secs(10) - millis(1)).await;
    assert_eq!(take_id(&queue).await, early, "a millisecond is left");
    cx.advance(millis(1)).await;
    let died_at = now(&cx).await;
    cx.advance(secs(1)).await;
    let good = add(&queue, EnqueueOpts::new().priority(-2)).await;
    assert_eq!(take_id(&queue).await, good, "the claim goes on behind an expired job");
    let dead = record(&queue, expired).await;
    assert_eq!((dead.state, dead.attempt), (JobState::Dead, 0));
    assert_eq!(dead.last_error.as_deref(), Some("expired"));
    assert_eq!(dead.died_at, Some(died_at));
    assert_eq!(EXPIRED_ERROR, "expired");
}

pub(crate) async fn q30_an_expiry_doesn_t_end_a_claim(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, EnqueueOpts::new().expires(secs(5))).await;
    let mut job = take(&queue).await;
    cx.advance(secs(6)).await;
    assert_eq!(state(&queue, id).await, Some(JobState::Claimed));
    job.heartbeat(secs(10)).await.unwrap();
    cx.advance(secs(9)).await;
    job.ack().await.unwrap();
    assert_eq!(state(&queue, id).await, None);
}

pub(crate) async fn q30_a_claim_that_lapses_after_the_expiry_ends_dead(cx: Cx) {
    let queue = brief_queue(&cx);
    let start = now(&cx).await;
    let id = add(&queue, EnqueueOpts::new().expires(secs(5))).await;
    let mut job = take(&queue).await;
    cx.advance(secs(10)).await;
    assert_none(&queue).await;
    let dead = record(&queue, id).await;
    assert_eq!((dead.state, dead.attempt), (JobState::Dead, 1));
    assert_eq!(dead.last_error.as_deref(), Some(EXPIRED_ERROR));
    assert_eq!(dead.died_at, Some(start + secs(5)));
    assert_lost(job.ack().await);
}

pub(crate) async fn q31_a_claim_goes_on_behind_any_number_of_expired_jobs(cx: Cx) {
    let queue = queue(&cx);
    add_many(&queue, MANY, EnqueueOpts::new().priority(1).expires(secs(10))).await;
    let delayed = EnqueueOpts::new().priority(1).delay(secs(5)).expires(secs(10));
    add_many(&queue, MANY, delayed).await;
    let good = add(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(10)).await;
    assert_eq!(take_id(&queue).await, good);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.dead, stats.ready), (2 * MANY as u64, 0));
}

pub(crate) async fn q31_a_claim_goes_on_behind_any_number_of_exhausted_jobs(cx: Cx) {
    let queue = cx.store.queue_with("q", brief().max_attempts(1)).unwrap();
    add_many(&queue, MANY, EnqueueOpts::new().priority(1)).await;
    assert_eq!(queue.claim_batch("w", MANY).await.unwrap().len(), MANY);
    let good = add(&queue, EnqueueOpts::new()).await;
    cx.advance(secs(10)).await;
    assert_eq!(take_id(&queue).await, good);
    assert_eq!(queue.stats().await.unwrap().dead, MANY as u64);
}

pub(crate) async fn q33_a_dropped_job_lapses_with_its_attempt_charged(cx: Cx) {
    let queue = brief_queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    drop(take(&queue).await);
    cx.settle().await;
    let held = record(&queue, id).await;
    assert_eq!((held.state, held.attempt), (JobState::Claimed, 1));
    assert_none(&queue).await;
    cx.advance(secs(10)).await;
    assert_eq!(take(&queue).await.attempt(), 2);
}

pub(crate) async fn q72_a_holder_counts_its_claim_down_by_its_own_clock(cx: Cx) {
    let hour = QueueOpts::new().visibility_timeout(secs(3_600));
    let queue = cx.store.queue_with("q", hour).unwrap();
    add(&queue, EnqueueOpts::new()).await;
    let mut job = take(&queue).await;
    let left = job.remaining();
    assert!(left <= secs(3_600) && left > secs(3_000), "{left:?}");
    job.heartbeat(secs(36_000)).await.unwrap();
    let left = job.remaining();
    assert!(left <= secs(36_000) && left > secs(30_000), "{left:?}");
    job.heartbeat(millis(1)).await.unwrap();
    cx.settle().await;
    assert_eq!(job.remaining(), Duration::ZERO);
}

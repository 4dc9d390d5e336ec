//! Rows of docs/architecture/queue.md.

mod claim;
mod dead;
mod drops;
mod enqueue;
mod order;
mod pause;
mod pin;
mod race;
mod read;
mod retry;
mod settle;
mod unique;
mod wait;

pub(crate) use claim::*;
pub(crate) use dead::*;
pub(crate) use drops::*;
pub(crate) use enqueue::*;
pub(crate) use order::*;
pub(crate) use pause::*;
pub(crate) use pin::*;
pub(crate) use race::*;
pub(crate) use read::*;
pub(crate) use retry::*;
pub(crate) use settle::*;
pub(crate) use unique::*;
pub(crate) use wait::*;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{
    EnqueueOpts, Error, Job, JobFilter, JobId, JobRecord, JobState, NewJob, Queue, QueueOpts,
    Result, Store, StoreExt,
};

use futures_util::FutureExt;
use futures_util::future::Either;

use crate::cx::{Cx, Task};
use crate::factory::OpenOptions;

/// How often a race is run.
const ROUNDS: usize = 100;

/// More than a page of any sweep, and than a claim takes in.
const MANY: usize = 1_001;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn queue(cx: &Cx) -> Queue {
    cx.store.queue("q").unwrap()
}

/// A queue whose claims hold for ten seconds.
fn brief_queue(cx: &Cx) -> Queue {
    cx.store.queue_with("q", brief()).unwrap()
}

fn brief() -> QueueOpts {
    QueueOpts::new().visibility_timeout(secs(10))
}

/// A store that doesn't wait long for somebody else's transaction.
async fn impatient(cx: &Cx) -> Arc<dyn Store> {
    cx.open(OpenOptions { lock_timeout: Some(millis(30)), ..OpenOptions::default() }).await
}

async fn add(queue: &Queue, opts: EnqueueOpts) -> JobId {
    queue.enqueue_with(&"work", opts).await.unwrap()
}

fn keyed(key: &str) -> EnqueueOpts {
    EnqueueOpts::new().unique_key(key)
}

fn new_jobs(count: usize, opts: &EnqueueOpts) -> Vec<NewJob> {
    (0..count).map(|n| NewJob::new(&n).unwrap().opts(opts.clone())).collect()
}

async fn add_many(queue: &Queue, count: usize, opts: EnqueueOpts) -> Vec<JobId> {
    queue.enqueue_many(new_jobs(count, &opts)).await.unwrap()
}

async fn take(queue: &Queue) -> Job {
    queue.claim("w").await.unwrap().expect("a job is claimable")
}

async fn take_id(queue: &Queue) -> JobId {
    take(queue).await.id()
}

async fn assert_none(queue: &Queue) {
    let job = queue.claim("w").await.unwrap();
    assert!(job.is_none(), "nothing is claimable, and yet there is {job:?}");
}

/// Adds a job and fails it.
async fn add_dead(queue: &Queue, opts: EnqueueOpts) -> JobId {
    let id = add(queue, opts).await;
    let mut job = take(queue).await;
    assert_eq!(job.id(), id, "the queue held another job");
    job.fail("no").await.unwrap();
    id
}

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(Job::id).collect()
}

async fn record(queue: &Queue, id: JobId) -> JobRecord {
    queue.get_job(id).await.unwrap().expect("the job exists")
}

async fn state(queue: &Queue, id: JobId) -> Option<JobState> {
    queue.get_job(id).await.unwrap().map(|record| record.state)
}

async fn count(queue: &Queue) -> usize {
    queue.jobs(JobFilter::new().limit(10_000)).await.unwrap().len()
}

async fn now(cx: &Cx) -> SystemTime {
    cx.now().await.into()
}

fn assert_lost<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::ClaimLost { .. })), "not a lost claim: {result:?}");
}

fn assert_invalid<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "not refused: {result:?}");
}

fn assert_invalid_name<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::InvalidName { .. })), "not refused: {result:?}");
}

fn assert_unavailable<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::Unavailable { .. })), "not unavailable: {result:?}");
}

/// A worker that waits for a job beside the row, and is seen to wait.
async fn waiter(cx: &Cx, queue: &Queue) -> Task<Job> {
    let queue = queue.clone();
    let task = cx.spawn(async move { queue.next("waiter").await.unwrap() });
    cx.settle().await;
    assert!(!task.is_done(), "there was nothing to wait for");
    task
}

/// Lets two futures go at the same moment; which of them is let go first alternates by round.
async fn race<A: Send + 'static, B: Send + 'static>(
    cx: &Cx,
    round: usize,
    a: impl Future<Output = A> + Send + 'static,
    b: impl Future<Output = B> + Send + 'static,
) -> (A, B) {
    let mut runners = [a.map(Either::Left).boxed(), b.map(Either::Right).boxed()];
    if round % 2 == 1 {
        runners.reverse();
    }
    let (mut of_a, mut of_b) = (None, None);
    for result in cx.together(runners).await {
        match result {
            Either::Left(a) => of_a = Some(a),
            Either::Right(b) => of_b = Some(b),
        }
    }
    (of_a.expect("it ended"), of_b.expect("it ended"))
}

//! Enqueue, and the fires of schedules.

use std::time::Duration;

use alkstore_core::{
    ClaimToken, Due, Headers, JobId, JobSpec, Lease, LocalName, Payload, QueueName, QueueOpts,
    ScheduleSpec, Timestamp,
};

use super::{KeyHolder, Phase, Row, key_holder, wake};
use crate::clock::Reading;
use crate::observe::Observed;
use crate::state::{Blocked, Numbers, View};

/// What a queue's jobs are stamped with where nothing else is said: it goes with the name.
struct Defaults {
    visibility_timeout: Duration,
    max_attempts: u32,
    retry_base: Duration,
}

impl Defaults {
    fn of(queue: &QueueName) -> Self {
        let (visibility, max_attempts) = if queue.is_outbox() { (60, 5) } else { (300, 3) };
        Self {
            visibility_timeout: Duration::from_secs(visibility),
            max_attempts,
            retry_base: Duration::from_secs(5),
        }
    }
}

fn stamped(
    id: JobId,
    payload: Payload,
    queue: &QueueName,
    opts: &QueueOpts,
    now: Timestamp,
) -> Row {
    let defaults = Defaults::of(queue);
    let timeout = opts.visibility_timeout.unwrap_or(defaults.visibility_timeout);
    Row {
        id,
        payload,
        headers: Headers::default(),
        priority: 0,
        attempt: 0,
        max_attempts: opts.max_attempts.unwrap_or(defaults.max_attempts),
        enqueued_at: now,
        ready_at: now,
        visibility: Lease::saturating(timeout),
        retry_base: opts.retry_base.unwrap_or(defaults.retry_base),
        dead_retention: opts.dead_retention,
        expires_at: None,
        unique_key: None,
        token: ClaimToken::NONE,
        last_error: None,
        phase: Phase::Ready,
        pin: None,
    }
}

fn next_id(numbers: &mut Numbers) -> JobId {
    numbers.job += 1;
    JobId::stored(numbers.job)
}

fn row(id: JobId, spec: JobSpec, queue: &QueueName, opts: &QueueOpts, time: Reading) -> Row {
    let mut row = stamped(id, spec.payload, queue, opts, time.now);
    row.headers = spec.headers;
    row.priority = spec.priority;
    row.max_attempts = spec.max_attempts.unwrap_or(row.max_attempts);
    row.expires_at = spec.expires.map(|expires| time.after(expires));
    row.unique_key = spec.unique_key;
    let ready_at = match spec.due {
        Due::After(delay) => time.after(delay),
        // Where it is past, the job became claimable with its enqueue.
        Due::At(at) => at.max(time.now),
    };
    row.pend(ready_at, time.now);
    row
}

/// Takes the jobs once it isn't blocked.
pub(crate) fn insert_jobs(
    view: &mut View<'_>,
    queue: &QueueName,
    opts: &QueueOpts,
    jobs: &mut Option<Vec<JobSpec>>,
) -> Result<Vec<JobId>, Blocked> {
    // Looked at before anything is added, so that a blocked call has added nothing.
    for key in jobs.iter().flatten().filter_map(|job| job.unique_key.as_ref()) {
        key_holder(view, queue, key)?;
    }
    let jobs = jobs.take().unwrap_or_default();
    let mut ids = Vec::with_capacity(jobs.len());
    let mut ready = 0;
    for job in jobs {
        let holder = match &job.unique_key {
            Some(key) => key_holder(view, queue, key)?,
            None => KeyHolder::Nobody,
        };
        if let KeyHolder::Job(id) = holder {
            ids.push(id);
            continue;
        }
        let row = row(next_id(&mut view.state.numbers), job, queue, opts, view.time);
        ready += usize::from(matches!(row.phase, Phase::Ready));
        ids.push(row.id);
        insert(view, queue, row);
    }
    if view.tx.is_none() {
        wake(view, queue, ready);
    }
    Ok(ids)
}

fn insert(view: &mut View<'_>, queue: &QueueName, row: Row) {
    let row = Box::new(row);
    match &mut view.tx {
        Some(staged) => {
            if let Some(key) = &row.unique_key {
                reserve(
                    view.state.queues.entry(queue.clone()).or_default(),
                    key,
                    staged.id,
                    row.id,
                );
            }
            staged.put(queue.clone(), row);
        }
        None => {
            let now = view.time.now;
            view.state.tap.tell(|| row.record(queue, now).map(Observed::Enqueued));
            match view.state.queues.get_mut(queue) {
                Some(state) => state.put(row),
                None => view.state.queues.entry(queue.clone()).or_default().put(row),
            }
        }
    }
}

fn reserve(state: &mut super::QueueState, key: &LocalName, tx: super::TxId, id: JobId) {
    state.staged_keys.insert(key.clone(), (tx, id));
}

/// A schedule's job for one of its boundaries: ordinary work, ready now.
pub(crate) fn fire(view: &mut View<'_>, spec: &ScheduleSpec, boundary: Timestamp) {
    let mut opts = QueueOpts::new();
    opts.visibility_timeout = spec.opts.visibility_timeout;
    opts.max_attempts = spec.opts.max_attempts;
    opts.retry_base = spec.opts.retry_base;
    opts.dead_retention = spec.opts.dead_retention;
    let id = next_id(&mut view.state.numbers);
    let mut row = stamped(id, spec.payload.clone(), &spec.queue, &opts, view.time.now);
    row.headers = spec.opts.headers.of_fire(&spec.name, boundary);
    row.priority = spec.opts.priority;
    row.expires_at = spec.opts.expires.map(|expires| view.time.after(expires));
    insert(view, &spec.queue, row);
    wake(view, &spec.queue, 1);
}

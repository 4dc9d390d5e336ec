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

/// A job that lacks only its number and its instants, which it gets under the lock.
pub(crate) struct Draft {
    row: Box<Row>,
    due: Due,
    expires: Option<Duration>,
}

impl Draft {
    /// A job that is due at once.
    fn new(queue: &QueueName, opts: &QueueOpts, payload: Payload, headers: Headers) -> Self {
        let defaults = Defaults::of(queue);
        let timeout = opts.visibility_timeout.unwrap_or(defaults.visibility_timeout);
        let row = Box::new(Row {
            id: JobId::stored(0),
            payload,
            headers,
            priority: 0,
            attempt: 0,
            max_attempts: opts.max_attempts.unwrap_or(defaults.max_attempts),
            enqueued_at: Timestamp::EPOCH,
            ready_at: Timestamp::EPOCH,
            visibility: Lease::saturating(timeout),
            retry_base: opts.retry_base.unwrap_or(defaults.retry_base),
            dead_retention: opts.dead_retention,
            expires_at: None,
            unique_key: None,
            token: ClaimToken::NONE,
            last_error: None,
            phase: Phase::Ready,
            pin: None,
        });
        Self { row, due: Due::After(Duration::ZERO), expires: None }
    }

    fn of(spec: JobSpec, queue: &QueueName, opts: &QueueOpts) -> Self {
        let mut draft = Self::new(queue, opts, spec.payload, spec.headers);
        draft.row.priority = spec.priority;
        draft.row.max_attempts = spec.max_attempts.unwrap_or(draft.row.max_attempts);
        draft.row.unique_key = spec.unique_key;
        Self { due: spec.due, expires: spec.expires, ..draft }
    }

    fn stamp(self, numbers: &mut Numbers, time: Reading) -> Box<Row> {
        let mut row = self.row;
        numbers.job += 1;
        row.id = JobId::stored(numbers.job);
        row.enqueued_at = time.now;
        row.expires_at = self.expires.map(|expires| time.after(expires));
        let ready_at = match self.due {
            Due::After(delay) => time.after(delay),
            // Where it is past, the job became claimable with its enqueue.
            Due::At(at) => at.max(time.now),
        };
        row.pend(ready_at, time.now);
        row
    }
}

/// Jobs on their way into a queue, and the numbers they get there.
pub(crate) struct Enqueue<'a> {
    queue: &'a QueueName,
    drafts: Vec<Draft>,
    ids: Vec<JobId>,
}

impl<'a> Enqueue<'a> {
    pub(crate) fn new(queue: &'a QueueName, opts: &QueueOpts, jobs: Vec<JobSpec>) -> Self {
        let (mut drafts, ids) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
        drafts.extend(jobs.into_iter().map(|job| Draft::of(job, queue, opts)));
        Self { queue, drafts, ids }
    }

    /// Stores the jobs, unless it is blocked.
    pub(crate) fn store(&mut self, view: &mut View<'_>) -> Result<(), Blocked> {
        let Self { queue, drafts, ids } = self;
        // Looked at before anything is added, so that a blocked call has added nothing.
        for key in drafts.iter().filter_map(|draft| draft.row.unique_key.as_ref()) {
            key_holder(view, queue, key)?;
        }
        let mut ready = 0;
        for draft in drafts.drain(..) {
            let holder = match &draft.row.unique_key {
                Some(key) => key_holder(view, queue, key)?,
                None => KeyHolder::Nobody,
            };
            if let KeyHolder::Job(id) = holder {
                ids.push(id);
                continue;
            }
            let row = draft.stamp(&mut view.state.numbers, view.time);
            ready += usize::from(matches!(row.phase, Phase::Ready));
            ids.push(row.id);
            insert(view, queue, row);
        }
        if view.tx.is_none() {
            wake(view, queue, ready);
        }
        Ok(())
    }

    /// The number of each job, or of the one that holds its key.
    pub(crate) fn into_ids(self) -> Vec<JobId> {
        self.ids
    }
}

fn insert(view: &mut View<'_>, queue: &QueueName, row: Box<Row>) {
    match &mut view.tx {
        Some(staged) => {
            if let Some(key) = &row.unique_key {
                reserve(view.state.queue(queue), key, staged.id, row.id);
            }
            staged.put(queue.clone(), row);
        }
        None => {
            let now = view.time.now;
            view.state.tap.tell(|| row.record(queue, now).map(Observed::Enqueued));
            match view.state.queues.get_mut(queue) {
                Some(state) => state.put(row),
                None => view.state.queue(queue).put(row),
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
    let headers = spec.opts.headers.of_fire(&spec.name, boundary);
    let mut draft = Draft::new(&spec.queue, &opts, spec.payload.clone(), headers);
    draft.row.priority = spec.opts.priority;
    draft.expires = spec.opts.expires;
    let row = draft.stamp(&mut view.state.numbers, view.time);
    insert(view, &spec.queue, row);
    wake(view, &spec.queue, 1);
}

//! Queues: a queue's jobs, and the ordered sets by which they are found without a scan.

mod agenda;
mod claim;
mod dead;
mod insert;
mod read;
mod row;
mod settle;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use alkstore_core::{
    Claimed, DeadSelection, JobFilter, JobId, JobRecord, JobSpec, LocalName, QueueName, QueueOpts,
    QueueStats, QueueStore, Result, Settled, Settlement, Timestamp, Topic,
};
use async_trait::async_trait;

use crate::state::{Blocked, View};
use crate::store::MemStore;
use crate::tx::Staged;
use crate::wake::ALL;

use agenda::Agenda;

pub(crate) use dead::maintain;
pub(crate) use insert::{Enqueue, fire};
pub(crate) use read::find_job;
pub(crate) use row::{Phase, Row, Standing, TxId};
pub(crate) use settle::settle_job;

/// How much of a backlog one operation stores at most.
const PAGE: usize = 1_000;

/// For how many jobs a claim makes room before it has seen any.
const ROOM: usize = 256;

/// A queue. It exists while it has jobs, is paused, or a transaction staged a key in it.
///
/// What every claim touches comes first, on two cache lines that nothing else stands on.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct QueueState {
    /// In boxes: a row is larger than what a search over a million of them should touch.
    rows: BTreeMap<JobId, Box<Row>>,
    sets: Sets,
    /// Keys of jobs that open transactions staged.
    pub(crate) staged_keys: HashMap<LocalName, (TxId, JobId)>,
    paused: bool,
}

/// The rows of a queue by what is asked for: each stands in the sets of its phase.
#[derive(Debug, Default)]
#[repr(C)]
struct Sets {
    /// Claimable now, in the order of claims.
    ready: BTreeSet<(Reverse<i32>, Timestamp, JobId)>,
    /// Claimed with attempts left: claimable at the deadline.
    leased: Agenda,
    /// Pending, and not taken in yet.
    delayed: Agenda,
    /// Claimed with attempts left, and settled by an open transaction.
    pinned: Agenda,
    /// Since it was last asked for, something came to fall due earlier than all else.
    sooner: bool,
    /// Claimed on the last attempt: dead at the deadline.
    last_leases: Agenda,
    /// Live and with an expiry.
    expiring: Agenda,
    dead: BTreeSet<JobId>,
    /// Dead, by the end of their retention.
    retained: Agenda,
    /// The live job that holds a unique key.
    keys: HashMap<LocalName, JobId>,
}

impl Sets {
    fn add(&mut self, row: &Row) {
        let id = row.id;
        match row.phase {
            Phase::Ready => {
                self.ready.insert((Reverse(row.priority), row.ready_at, id));
            }
            Phase::Delayed => {
                let at = (row.ready_at, id);
                self.delayed.insert(at);
                self.sooner = self.sooner || self.delayed.first() == Some(at);
            }
            Phase::Claimed { deadline, .. } => {
                let at = (deadline, id);
                self.leases_of(row).insert(at);
                self.sooner = self.sooner || self.leased.first() == Some(at);
            }
            Phase::Dead { .. } => {
                self.dead.insert(id);
                if let Some(at) = row.gone_at() {
                    self.retained.insert((at, id));
                }
                return;
            }
        }
        if let Some(at) = row.expires_at {
            self.expiring.insert((at, id));
        }
        if let Some(key) = &row.unique_key {
            self.keys.insert(key.clone(), id);
        }
    }

    fn remove(&mut self, row: &Row) {
        let id = row.id;
        match row.phase {
            Phase::Ready => {
                self.ready.remove(&(Reverse(row.priority), row.ready_at, id));
            }
            Phase::Delayed => {
                self.delayed.remove((row.ready_at, id));
            }
            Phase::Claimed { deadline, .. } => {
                self.leases_of(row).remove((deadline, id));
            }
            Phase::Dead { .. } => {
                self.dead.remove(&id);
                if let Some(at) = row.gone_at() {
                    self.retained.remove((at, id));
                }
                return;
            }
        }
        if let Some(at) = row.expires_at {
            self.expiring.remove((at, id));
        }
        if let Some(key) = &row.unique_key {
            self.keys.remove(key);
        }
    }

    fn leases_of(&mut self, row: &Row) -> &mut Agenda {
        match row.pin {
            _ if row.is_last_attempt() => &mut self.last_leases,
            Some(_) => &mut self.pinned,
            None => &mut self.leased,
        }
    }
}

impl QueueState {
    fn row(&self, id: JobId) -> Option<&Row> {
        self.rows.get(&id).map(|row| &**row)
    }

    pub(crate) fn put(&mut self, row: Box<Row>) {
        self.sets.add(&row);
        self.rows.insert(row.id, row);
    }

    pub(crate) fn take(&mut self, id: JobId) -> Option<Box<Row>> {
        let row = self.rows.remove(&id)?;
        self.sets.remove(&row);
        Some(row)
    }

    /// Changes a row and moves it to the sets of its new phase.
    pub(crate) fn change<T>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> T) -> Option<T> {
        let row = self.rows.get_mut(&id)?;
        self.sets.remove(row);
        let result = change(row);
        self.sets.add(row);
        Some(result)
    }

    fn is_unused(&self) -> bool {
        self.rows.is_empty() && self.staged_keys.is_empty() && !self.paused
    }
}

/// Lets waiters look again: one for each job that became claimable, and one that learns of a new
/// earliest instant.
pub(crate) fn wake(view: &mut View<'_>, queue: &QueueName, ready: usize) {
    if view.state.topics.is_empty() {
        return;
    }
    let Some(state) = view.state.queues.get_mut(queue) else { return };
    let sooner = std::mem::take(&mut state.sets.sooner);
    if !state.paused {
        let count = ready.max(usize::from(sooner));
        view.state.topics.wake(view.wakes, count, || Topic::Queue(queue.clone()));
    }
}

fn set_paused(view: &mut View<'_>, queue: &QueueName, paused: bool) -> bool {
    let state = view.state.queue(queue);
    if state.paused == paused {
        return false;
    }
    state.paused = paused;
    if !paused {
        view.state.topics.wake(view.wakes, ALL, || Topic::Queue(queue.clone()));
    }
    true
}

#[async_trait]
impl QueueStore for MemStore {
    async fn insert_jobs(
        &self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let mut enqueue = Enqueue::new(queue, opts, jobs);
        self.open.act_unblocked(None, |view| enqueue.store(view)).await?;
        Ok(enqueue.into_ids())
    }

    async fn claim_jobs(
        &self,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        let jobs = Vec::with_capacity(max.min(ROOM));
        let mut claimed = Claimed { jobs, ..Claimed::default() };
        self.open.act(|view| claim::claim_jobs(view, queue, worker, max, &mut claimed))?;
        Ok(claimed)
    }

    async fn settle_jobs(&self, items: Vec<Settlement>) -> Result<Vec<Result<Settled>>> {
        settle::settle_jobs(&self.open, items).await
    }

    async fn cancel_job(&self, queue: &QueueName, id: JobId) -> Result<bool> {
        self.open.act_unblocked(None, |view| settle::cancel_job(view, queue, id)).await
    }

    async fn find_job(&self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        self.open.act(|view| find_job(view, queue, id))
    }

    async fn find_jobs(&self, queue: &QueueName, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        self.open.act(|view| read::find_jobs(view, queue, filter))
    }

    async fn queue_stats(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStats>> {
        self.open.act(|view| read::queue_stats(view, queue))
    }

    async fn requeue_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        self.open.act_unblocked(None, |view| dead::requeue_jobs(view, queue, which)).await
    }

    async fn purge_jobs(&self, queue: &QueueName, which: &DeadSelection) -> Result<u64> {
        self.open.act(|view| dead::purge_jobs(view, queue, which))
    }

    async fn set_queue_paused(&self, queue: &QueueName, paused: bool) -> Result<bool> {
        self.open.act(|view| set_paused(view, queue, paused))
    }
}

/// Who holds a unique key, as an operation sees it.
enum KeyHolder {
    Nobody,
    Job(JobId),
}

/// Buries the holder where the clock has made it dead.
fn key_holder(
    view: &mut View<'_>,
    queue: &QueueName,
    key: &LocalName,
) -> Result<KeyHolder, Blocked> {
    let Some(state) = view.state.queues.get_mut(queue) else { return Ok(KeyHolder::Nobody) };
    let now = view.time.now;
    let own = view.tx.as_ref().map(|staged| staged.id);
    // What the clock has made of a job that this transaction staged.
    let of_own = |staged: &mut Option<&mut Staged>, id| {
        let live = staged.as_mut().is_some_and(|staged| staged.is_live_at(id, now));
        if live { KeyHolder::Job(id) } else { KeyHolder::Nobody }
    };
    if let Some(&(tx, id)) = state.staged_keys.get(key) {
        if Some(tx) != own {
            return Err(Blocked);
        }
        let holder = of_own(&mut view.tx, id);
        if matches!(holder, KeyHolder::Nobody) {
            // Here and now: of a job that is gone, the end of the transaction finds no key.
            state.staged_keys.remove(key);
        }
        return Ok(holder);
    }
    let holder = state.sets.keys.get(key).and_then(|&id| Some((id, state.row(id)?.pin)));
    let Some((id, pin)) = holder else { return Ok(KeyHolder::Nobody) };
    match pin {
        Some(pin) if Some(pin) == own => Ok(of_own(&mut view.tx, id)),
        Some(_) => Err(Blocked),
        None if state.store_death(id, now) => Ok(KeyHolder::Nobody),
        None => Ok(KeyHolder::Job(id)),
    }
}

//! The model: what is stored, what handles there are, and what each operation does to them.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Answer, Fault, Fire, Value};
use super::lock::{Holding, Lock};
use super::op::{
    CONSUMERS, JobInput, JobPick, LOCKS, Op, QUEUES, SCHEDULES, STREAMS, Stamps, WORKERS, When,
    Which, queue_name,
};
use super::queue::{Claim, Queue};
use super::schedule::Schedule;
use super::stream::Stream;
use super::tx::OpenTx;

/// Handles beyond these are dropped, the oldest first.
pub(super) const MAX_CLAIMS: usize = 12;
/// No further lock is taken while there are so many handles.
pub(super) const MAX_LOCKS: usize = 6;
/// How many jobs are remembered, to be asked for later.
const MAX_KNOWN: usize = 40;

/// What is committed.
#[derive(Debug, Clone)]
pub(super) struct Data {
    pub(super) queues: BTreeMap<&'static str, Queue>,
    pub(super) streams: BTreeMap<&'static str, Stream>,
    pub(super) locks: BTreeMap<&'static str, Lock>,
    pub(super) schedules: BTreeMap<&'static str, Schedule>,
}

#[derive(Clone)]
pub(super) struct Model {
    pub(super) now: i64,
    pub(super) data: Data,
    pub(super) tx: Option<OpenTx>,
    pub(super) claims: Vec<Claim>,
    pub(super) holdings: Vec<Holding>,
    /// Which open each of the two stores is.
    pub(super) stores: [u32; 2],
    /// Jobs seen before, with their queues.
    pub(super) known: Vec<(&'static str, i64)>,
    used: BTreeSet<i64>,
    tokens: u64,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The element that an index means; `None` where there is none.
pub(super) fn pick<T>(list: &[T], index: usize) -> Option<&T> {
    list.get(index.checked_rem(list.len())?)
}

impl Data {
    fn new() -> Self {
        let mut data = Self {
            queues: BTreeMap::new(),
            streams: BTreeMap::new(),
            locks: BTreeMap::new(),
            schedules: BTreeMap::new(),
        };
        for index in 0..=QUEUES.len() {
            let name = queue_name(index);
            data.queues.insert(name, Queue { name: name.to_owned(), ..Queue::default() });
        }
        for name in STREAMS {
            data.streams.insert(name, Stream { name: name.to_owned(), ..Stream::default() });
        }
        for name in LOCKS {
            data.locks.insert(name, Lock::new(name));
        }
        data
    }

    pub(super) fn queue(&mut self, name: &str) -> &mut Queue {
        self.queues.get_mut(name).expect("one of the model's queues")
    }

    pub(super) fn stream(&mut self, index: usize) -> &mut Stream {
        self.streams.get_mut(STREAMS[index]).expect("one of the model's streams")
    }

    pub(super) fn lock(&mut self, name: &str) -> &mut Lock {
        self.locks.get_mut(name).expect("one of the model's locks")
    }
}

impl Model {
    pub(super) fn new(now: i64) -> Self {
        Self {
            now,
            data: Data::new(),
            tx: None,
            claims: Vec::new(),
            holdings: Vec::new(),
            stores: [0, 1],
            known: Vec::new(),
            used: BTreeSet::new(),
            tokens: 0,
        }
    }

    /// Whether a job of this id was there before.
    pub(super) fn was_used(&self, id: i64) -> bool {
        self.used.contains(&id)
    }

    pub(super) fn never_was(&mut self, id: i64) {
        self.used.remove(&id);
        self.known.retain(|(_, known)| *known != id);
    }

    /// The id that the engine gave, where it is one that a new job may have; else the next.
    pub(super) fn fresh_id(&mut self, queue: &'static str, seen: Option<i64>) -> i64 {
        let next = self.used.last().map_or(1, |last| last + 1);
        let id = seen.filter(|id| *id > 0 && !self.was_used(*id)).unwrap_or(next);
        self.used.insert(id);
        self.known.push((queue, id));
        if self.known.len() > MAX_KNOWN {
            self.known.remove(0);
        }
        id
    }

    pub(super) fn job(&self, job: &JobPick) -> Option<(&'static str, i64)> {
        let (own, id) = pick(&self.known, job.job)?;
        Some((job.queue.map_or(*own, queue_name), *id))
    }

    pub(super) fn ids(&self, which: &Which) -> Option<Vec<i64>> {
        match which {
            Which::All => None,
            Which::Ids(jobs) => Some(
                jobs.iter().filter_map(|job| pick(&self.known, *job)).map(|(_, id)| *id).collect(),
            ),
        }
    }

    /// The claims of a batch: each once, and where they are; the first says queue and store.
    pub(super) fn batch(&self, claims: &[usize]) -> Vec<usize> {
        let mut places: Vec<usize> = Vec::new();
        for claim in claims {
            if let Some(place) = claim.checked_rem(self.claims.len())
                && !places.contains(&place)
            {
                places.push(place);
            }
        }
        places
    }

    /// Does an operation and says what it answers. Where the contract leaves something open, an
    /// answer that was seen decides it if it is one that may be.
    pub(super) fn step(&mut self, op: &Op, seen: Option<&Answer>) -> Answer {
        let now = self.now;
        match op {
            Op::Advance { millis } => {
                self.now += millis;
                Ok(Value::Done)
            }
            Op::Reopen { via } => {
                self.stores[*via] = 1 + self.stores[0].max(self.stores[1]);
                Ok(Value::Done)
            }
            Op::Enqueue { queue, stamps, jobs, .. } => self.enqueue(*queue, stamps, jobs, seen),
            Op::EnqueueBulk { jobs, delay, step, .. } => {
                let (stamps, inputs) = bulk(*jobs, *delay, *step);
                self.enqueue(QUEUES.len(), &stamps, &inputs, seen)
            }
            Op::Claim { via, queue, worker, max } => self.claim(*via, *queue, *worker, *max),
            Op::Settle { claim, action } => {
                let Some(claim) = pick(&self.claims, *claim).cloned() else {
                    return Ok(Value::Done);
                };
                let at = match seen {
                    Some(Ok(Value::Retried(at))) => *at,
                    _ => None,
                };
                self.data.queue(&claim.queue).settle(now, &claim, action, at)
            }
            Op::AckBatch { claims } => self.ack_batch(claims),
            Op::Cancel { job, .. } => {
                let Some((queue, id)) = self.job(job) else { return Ok(Value::Flag(false)) };
                let queue = self.data.queue(queue);
                queue.touch(now);
                Ok(Value::Flag(queue.cancel(now, id)))
            }
            Op::GetJob { job, .. } => {
                let Some((queue, id)) = self.job(job) else { return Ok(Value::Job(None)) };
                Ok(Value::Job(self.data.queue(queue).view(now, id).map(Box::new)))
            }
            Op::Jobs { queue, state, after, limit, .. } => {
                let after = after.and_then(|after| pick(&self.known, after)).map_or(0, |k| k.1);
                let mut jobs = self.data.queue(queue_name(*queue)).views(now);
                jobs.retain(|job| job.id > after && state.is_none_or(|state| job.state == state));
                jobs.truncate(*limit);
                Ok(Value::Jobs(jobs))
            }
            Op::Dead { queue, which, purge, .. } => {
                let ids = self.ids(which);
                let queue = self.data.queue(queue_name(*queue));
                queue.touch(now);
                Ok(Value::Count(match purge {
                    true => queue.purge(now, ids.as_deref()),
                    false => queue.requeue(now, ids.as_deref()),
                }))
            }
            Op::PauseQueue { queue, paused, .. } => {
                let queue = self.data.queue(queue_name(*queue));
                Ok(Value::Flag(std::mem::replace(&mut queue.paused, *paused) != *paused))
            }
            Op::Maintain { .. } => self.maintain(seen),
            Op::Publish { stream, events, .. } => {
                let stream = self.data.stream(*stream);
                let append = |event| stream.append(Stream::staged(now, event));
                Ok(Value::Offsets(events.iter().map(append).collect()))
            }
            Op::Read { stream, after, limit, .. } => {
                Ok(Value::Events(self.data.stream(*stream).read(*after, *limit)))
            }
            Op::Trim { stream, horizon, .. } => {
                Ok(Value::Count(self.data.stream(*stream).trim(*horizon)))
            }
            Op::ReadConsumer { stream, consumer, limit, .. } => {
                let stream = self.data.stream(*stream);
                Ok(Value::Events(stream.read(stream.saved(CONSUMERS[*consumer]), *limit)))
            }
            Op::Save { stream, consumer, offset, rewind, .. } => {
                let (stream, consumer) = (self.data.stream(*stream), CONSUMERS[*consumer]);
                match rewind {
                    true => stream.rewind(consumer, *offset)?,
                    false => stream.save(consumer, *offset)?,
                }
                Ok(Value::Done)
            }
            Op::Forget { stream, consumer, .. } => {
                let consumers = &mut self.data.stream(*stream).consumers;
                Ok(Value::Flag(consumers.remove(CONSUMERS[*consumer]).is_some()))
            }
            Op::TryLock { .. }
            | Op::Renew { .. }
            | Op::Release { .. }
            | Op::DropLock { .. }
            | Op::Schedule { .. }
            | Op::Unschedule { .. }
            | Op::PauseSchedule { .. }
            | Op::Tick { .. } => self.lease_or_schedule(op, seen),
            Op::Begin { via } => {
                if self.tx.is_none() {
                    self.tx = Some(OpenTx::new(self.stores[*via], self.data.clone()));
                }
                Ok(Value::Done)
            }
            Op::Tx(op) => self.step_tx(op, seen),
            Op::End(ending) => self.end_tx(*ending),
        }
    }

    fn enqueue(
        &mut self,
        queue: usize,
        stamps: &Stamps,
        jobs: &[JobInput],
        seen: Option<&Answer>,
    ) -> Answer {
        let name = queue_name(queue);
        let mut queue = std::mem::take(self.data.queue(name));
        let ids = self.add(name, &mut queue, stamps, jobs, seen);
        *self.data.queue(name) = queue;
        Ok(Value::Ids(ids))
    }

    /// Adds jobs to a queue, as committed or as a transaction sees it.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        queue: &mut Queue,
        stamps: &Stamps,
        jobs: &[JobInput],
        seen: Option<&Answer>,
    ) -> Vec<i64> {
        let seen = match seen {
            Some(Ok(Value::Ids(ids))) => ids.as_slice(),
            _ => &[],
        };
        let (mut ids, mut last) = (Vec::new(), 0);
        for (index, input) in jobs.iter().enumerate() {
            let given = seen.get(index).copied().filter(|id| *id > last);
            ids.push(queue.enqueue(self.now, stamps, input, || {
                last = self.fresh_id(name, given);
                last
            }));
        }
        ids
    }

    fn claim(&mut self, via: usize, queue: usize, worker: usize, max: usize) -> Answer {
        let name = queue_name(queue);
        let skipped = self.tx.as_ref().map(OpenTx::pinned).unwrap_or_default();
        let queue = self.data.queue(name);
        queue.touch(self.now);
        let tokens = &mut self.tokens;
        let claimed = queue.claim(self.now, WORKERS[worker], max, &skipped, || {
            *tokens += 1;
            *tokens
        });
        let store = self.stores[via];
        let mut views = Vec::new();
        for (view, token) in claimed {
            let claim = Claim { queue: name.to_owned(), id: view.id, token, store };
            self.claims.push(claim);
            views.push(view);
        }
        let surplus = self.claims.len().saturating_sub(MAX_CLAIMS);
        self.claims.drain(..surplus);
        Ok(Value::Claims(views))
    }

    fn ack_batch(&mut self, claims: &[usize]) -> Answer {
        let places = self.batch(claims);
        let claims: Vec<Claim> = places.iter().map(|place| self.claims[*place].clone()).collect();
        let Some(first) = claims.first() else { return Ok(Value::Each(Vec::new())) };
        // The batch goes through one of the stores that are open; see the system's side.
        let store = self.stores.into_iter().find(|store| *store == first.store);
        let store = store.unwrap_or(self.stores[0]);
        if claims.iter().any(|claim| claim.queue != first.queue || claim.store != store) {
            return Err(Fault::InvalidArgument);
        }
        let pinned = self.tx.as_ref().map(OpenTx::pinned).unwrap_or_default();
        let queue = self.data.queue(&first.queue);
        let mut results = Vec::new();
        for claim in &claims {
            results.push(match pinned.contains(&claim.id) {
                true => Err(Fault::Unavailable),
                false => queue.settle(self.now, claim, &super::op::Action::Ack, None).map(drop),
            });
        }
        Ok(Value::Each(results))
    }

    /// Stores what the clock implies. How much of that was stored before is the engine's.
    fn maintain(&mut self, seen: Option<&Answer>) -> Answer {
        let mut bounds = [(0, 0); 3];
        for queue in self.data.queues.values_mut() {
            for (bound, (least, most)) in bounds.iter_mut().zip(queue.maintain(self.now)) {
                *bound = (bound.0 + least, bound.1 + most);
            }
        }
        let seen = match seen {
            Some(Ok(Value::Swept { expired, buried, purged })) => [*expired, *buried, *purged],
            _ => bounds.map(|(_, most)| most),
        };
        let [expired, buried, purged] =
            [0, 1, 2].map(|kind| seen[kind].clamp(bounds[kind].0, bounds[kind].1));
        Ok(Value::Swept { expired, buried, purged })
    }

    fn lease_or_schedule(&mut self, op: &Op, seen: Option<&Answer>) -> Answer {
        let now = self.now;
        match op {
            Op::TryLock { lock, owner, ttl, .. } => {
                if self.holdings.len() >= MAX_LOCKS {
                    return Ok(Value::Done);
                }
                let token = match seen {
                    Some(Ok(Value::Lock(Some((token, _))))) => Some(*token),
                    _ => None,
                };
                let name = LOCKS[*lock];
                let taken = self.data.lock(name).acquire(now, WORKERS[*owner], *ttl, token);
                if let Some((token, _)) = taken {
                    self.holdings.push(Holding { name: name.to_owned(), token });
                }
                Ok(Value::Lock(taken))
            }
            Op::Renew { held, ttl } => {
                let Some(held) = pick(&self.holdings, *held).cloned() else {
                    return Ok(Value::Done);
                };
                self.data.lock(&held.name).renew(now, held.token, *ttl).map(Value::Instant)
            }
            Op::Release { held } | Op::DropLock { held } => {
                let Some(place) = held.checked_rem(self.holdings.len()) else {
                    return Ok(Value::Done);
                };
                let held = self.holdings.remove(place);
                let released = self.data.lock(&held.name).release(now, held.token);
                match op {
                    Op::Release { .. } => released.map(|()| Value::Done),
                    _ => Ok(Value::Done),
                }
            }
            Op::Schedule { name, spec, queue, stamps, priority, expires, .. } => {
                let (name, queue) = (SCHEDULES[*name], queue_name(*queue));
                let opts = (stamps.clone(), *priority, *expires);
                let before = self.data.schedules.get(name);
                let schedule = Schedule::register(before, now, spec, queue, opts)?;
                let view = schedule.view(name, now);
                self.data.schedules.insert(name, schedule);
                Ok(Value::Schedule(Box::new(view)))
            }
            Op::Unschedule { name, .. } => {
                Ok(Value::Flag(self.data.schedules.remove(SCHEDULES[*name]).is_some()))
            }
            Op::PauseSchedule { name, paused, .. } => {
                let schedule = self.data.schedules.get_mut(SCHEDULES[*name]);
                Ok(Value::Flag(schedule.is_some_and(|s| s.set_paused(now, *paused))))
            }
            _ => self.tick(seen),
        }
    }

    fn tick(&mut self, seen: Option<&Answer>) -> Answer {
        let now = self.now;
        let seen = match seen {
            Some(Ok(Value::Ticked { fires, .. })) => fires.as_slice(),
            _ => &[],
        };
        let mut schedules = std::mem::take(&mut self.data.schedules);
        let mut fires = Vec::new();
        for (name, schedule) in schedules.iter_mut().filter(|(_, schedule)| !schedule.paused) {
            for boundary in schedule.fire(now) {
                let of = |fire: &&Fire| fire.schedule == *name && fire.boundary == boundary;
                let queue = self.data.queue(&schedule.queue).name.clone();
                let queue = *self.data.queues.keys().find(|key| **key == queue).expect("a queue");
                let id = self.fresh_id(queue, seen.iter().find(of).map(|fire| fire.id));
                let target = self.data.queue(queue);
                target.enqueue(now, &schedule.stamps, &schedule.job(), || id);
                if let Some(job) = target.job_mut(id) {
                    job.headers = vec![
                        ("alkstore-boundary".to_owned(), boundary.to_string()),
                        ("alkstore-schedule".to_owned(), (*name).to_owned()),
                    ];
                }
                fires.push(Fire { schedule: (*name).to_owned(), boundary, id });
            }
        }
        fires.sort();
        let next = schedules.values().filter(|s| !s.paused).map(|s| s.next).min();
        self.data.schedules = schedules;
        Ok(Value::Ticked { fired: fires.len() as u64, next, fires })
    }
}

/// The jobs of a bulk, which may be claimed often and don't expire.
pub(super) fn bulk(
    jobs: i64,
    delay: std::time::Duration,
    step: std::time::Duration,
) -> (Stamps, Vec<JobInput>) {
    let stamps = Stamps { max_attempts: Some(1_000), ..Stamps::default() };
    // The last falls due first, and is more urgent.
    let input = |n: i64| JobInput {
        payload: 0,
        when: When::After(delay + step * u32::try_from(jobs - n).unwrap_or(0)),
        priority: i32::try_from(n % 3).unwrap_or(0),
        max_attempts: None,
        expires: None,
        key: None,
        header: None,
    };
    (stamps, (1..=jobs).map(input).collect())
}

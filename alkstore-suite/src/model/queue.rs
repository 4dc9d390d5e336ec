//! What a queue does: jobs in a list, looked through from one end to the other.

use alkstore_core::{EXPIRED_ERROR, JobState, LAPSED_ERROR};

use super::answer::{ClaimView, Fault, JobView, StatsView, Value};
use super::op::{Action, JobInput, Stamps, When, payload_text};
use super::time::{later, ms};

/// How many due and lapsed jobs a claim takes in.
const TAKE_IN: usize = 1_000;

#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) paused: bool,
    /// By ascending id.
    pub(super) jobs: Vec<Job>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: i64,
    pub(super) payload: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) priority: i32,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) enqueued_at: i64,
    pub(super) ready_at: i64,
    pub(super) visibility: i64,
    pub(super) retry_base: i64,
    pub(super) retention: Option<i64>,
    pub(super) expires_at: Option<i64>,
    pub(super) key: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) stored: Stored,
    /// An operation since its death by the clock may have stored that.
    pub(super) swept: bool,
    /// An operation since its retention was over may have deleted it.
    pub(super) wiped: bool,
}

/// What the last operation on a job left; the clock may have gone further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stored {
    Pending { taken_in: bool },
    Claimed { worker: String, token: u64, deadline: i64 },
    Dead { died_at: i64 },
}

/// Where a job stands at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Pending {
        ready_at: i64,
    },
    Claimed {
        deadline: i64,
    },
    Dead {
        died_at: i64,
        of: Death,
    },
    /// Its retention is over.
    Gone {
        died_at: i64,
        of: Death,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Settled,
    Lapsed,
    Expired,
}

/// The claim that a handle stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) queue: String,
    pub(super) id: i64,
    pub(super) token: u64,
    /// Which open of a store it was made through.
    pub(super) store: u32,
}

impl Job {
    pub(super) fn standing(&self, now: i64) -> Standing {
        let expired = self.expires_at.filter(|at| *at <= now);
        let (died_at, of) = match self.stored {
            Stored::Dead { died_at } => (died_at, Death::Settled),
            Stored::Claimed { deadline, .. } if now < deadline => {
                return Standing::Claimed { deadline };
            }
            Stored::Claimed { deadline, .. } if self.attempt >= self.max_attempts => {
                (deadline, Death::Lapsed)
            }
            Stored::Claimed { deadline, .. } => match expired {
                Some(at) => (at, Death::Expired),
                None => return Standing::Pending { ready_at: deadline },
            },
            Stored::Pending { .. } => match expired {
                Some(at) => (at, Death::Expired),
                None => return Standing::Pending { ready_at: self.ready_at },
            },
        };
        match self.retention {
            Some(retention) if died_at + retention <= now => Standing::Gone { died_at, of },
            _ => Standing::Dead { died_at, of },
        }
    }

    fn is_live(&self, now: i64) -> bool {
        matches!(self.standing(now), Standing::Pending { .. } | Standing::Claimed { .. })
    }

    pub(super) fn is_dead(&self, now: i64) -> bool {
        matches!(self.standing(now), Standing::Dead { .. })
    }

    pub(super) fn is_held(&self, token: u64, now: i64) -> bool {
        matches!(self.stored, Stored::Claimed { token: held, deadline, .. }
            if held == token && now < deadline)
    }

    fn become_pending(&mut self, ready_at: i64, now: i64) {
        self.ready_at = ready_at;
        self.stored = Stored::Pending { taken_in: ready_at <= now };
    }

    /// The last error as the clock has it.
    fn error(&self, now: i64) -> Option<String> {
        match self.standing(now) {
            Standing::Dead { of: Death::Lapsed, .. } => Some(LAPSED_ERROR.to_owned()),
            Standing::Dead { of: Death::Expired, .. } => Some(EXPIRED_ERROR.to_owned()),
            _ => self.last_error.clone(),
        }
    }

    /// When it last became claimable, or would have; a lapse makes it so unless it has expired.
    fn last_ready_at(&self, now: i64) -> i64 {
        match self.stored {
            Stored::Claimed { deadline, .. }
                if deadline <= now
                    && self.attempt < self.max_attempts
                    && self.expires_at.is_none_or(|at| deadline < at) =>
            {
                deadline
            }
            _ => self.ready_at,
        }
    }

    fn view(&self, queue: &str, now: i64) -> Option<JobView> {
        let mut view = JobView {
            id: self.id,
            queue: queue.to_owned(),
            state: JobState::Pending,
            payload: self.payload.clone(),
            headers: self.headers.clone(),
            priority: self.priority,
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            enqueued_at: self.enqueued_at,
            ready_at: self.last_ready_at(now),
            visibility: self.visibility,
            retry_base: self.retry_base,
            retention: self.retention,
            expires_at: self.expires_at,
            unique_key: self.key.clone(),
            worker: None,
            deadline: None,
            last_error: self.error(now),
            died_at: None,
        };
        match self.standing(now) {
            Standing::Gone { .. } => return None,
            Standing::Pending { .. } => {}
            Standing::Claimed { deadline } => {
                view.state = JobState::Claimed;
                view.deadline = Some(deadline);
                if let Stored::Claimed { worker, .. } = &self.stored {
                    view.worker = Some(worker.clone());
                }
            }
            Standing::Dead { died_at, .. } => {
                view.state = JobState::Dead;
                view.died_at = Some(died_at);
            }
        }
        Some(view)
    }
}

impl Queue {
    pub(super) fn job(&self, id: i64) -> Option<&Job> {
        self.jobs.iter().find(|job| job.id == id)
    }

    pub(super) fn job_mut(&mut self, id: i64) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.id == id)
    }

    pub(super) fn put(&mut self, job: Job) {
        self.jobs.retain(|other| other.id != job.id);
        let place = self.jobs.iter().position(|other| other.id > job.id);
        self.jobs.insert(place.unwrap_or(self.jobs.len()), job);
    }

    pub(super) fn remove(&mut self, id: i64) {
        self.jobs.retain(|job| job.id != id);
    }

    pub(super) fn holder_of(&self, key: &str, now: i64) -> Option<i64> {
        let holds = |job: &&Job| job.key.as_deref() == Some(key) && job.is_live(now);
        self.jobs.iter().find(holds).map(|job| job.id)
    }

    /// From now on the engine may have stored what the clock had done.
    pub(super) fn touch(&mut self, now: i64) {
        for job in &mut self.jobs {
            job.swept |= !job.is_live(now);
            job.wiped |= matches!(job.standing(now), Standing::Gone { .. });
        }
    }

    /// Adds a job, or finds the one that holds its key.
    pub(super) fn enqueue(
        &mut self,
        now: i64,
        stamps: &Stamps,
        input: &JobInput,
        id: impl FnOnce() -> i64,
    ) -> i64 {
        if let Some(holder) = input.key.and_then(|key| self.holder_of(key, now)) {
            return holder;
        }
        // A job of this very call may have expired at once, and be buried for its key.
        self.touch(now);
        let due = match input.when {
            When::Now => now,
            When::After(delay) => later(now, delay),
            // One that is past is claimable since its enqueue.
            When::At(micros) => now.max(now + (micros + 999).div_euclid(1_000)),
        };
        let mut job = Job {
            id: id(),
            payload: payload_text(input.payload),
            headers: Vec::new(),
            priority: input.priority,
            attempt: 0,
            max_attempts: input.max_attempts.or(stamps.max_attempts).unwrap_or(3),
            enqueued_at: now,
            ready_at: due,
            visibility: stamps.visibility.map_or(300_000, ms),
            retry_base: stamps.retry_base.map_or(5_000, ms),
            retention: stamps.retention.map(ms),
            expires_at: input.expires.map(|after| later(now, after)),
            key: input.key.map(str::to_owned),
            last_error: None,
            stored: Stored::Pending { taken_in: false },
            swept: false,
            wiped: false,
        };
        if let Some(header) = input.header {
            job.headers.push(("trace".to_owned(), header.to_string()));
        }
        job.become_pending(due, now);
        let id = job.id;
        self.put(job);
        id
    }

    /// Hands out jobs; `skipped` are those that a transaction holds.
    pub(super) fn claim(
        &mut self,
        now: i64,
        worker: &str,
        max: usize,
        skipped: &[i64],
        mut token: impl FnMut() -> u64,
    ) -> Vec<(ClaimView, u64)> {
        if self.paused || max == 0 {
            return Vec::new();
        }
        self.take_in(now, skipped);
        let mut found: Vec<&mut Job> = self
            .jobs
            .iter_mut()
            .filter(|job| !skipped.contains(&job.id))
            .filter(|job| job.stored == Stored::Pending { taken_in: true } && job.is_live(now))
            .collect();
        found.sort_by_key(|job| (-i64::from(job.priority), job.ready_at, job.id));
        found.truncate(max);
        let name = &self.name;
        let hand_out = |job: &mut Job| {
            let (token, deadline) = (token(), later(now, ms_back(job.visibility)));
            job.attempt += 1;
            job.stored = Stored::Claimed { worker: worker.to_owned(), token, deadline };
            let view = ClaimView {
                id: job.id,
                queue: name.clone(),
                attempt: job.attempt,
                max_attempts: job.max_attempts,
                payload: job.payload.clone(),
                headers: job.headers.clone(),
                enqueued_at: job.enqueued_at,
                visibility: job.visibility,
                deadline,
            };
            (view, token)
        };
        found.into_iter().map(hand_out).collect()
    }

    fn take_in(&mut self, now: i64, skipped: &[i64]) {
        let mut backlog: Vec<(i64, i64)> = self
            .jobs
            .iter()
            .filter(|job| !skipped.contains(&job.id))
            .filter(|job| job.stored != Stored::Pending { taken_in: true })
            .filter_map(|job| match job.standing(now) {
                Standing::Pending { ready_at } if ready_at <= now => Some((ready_at, job.id)),
                _ => None,
            })
            .collect();
        backlog.sort_unstable();
        for (ready_at, id) in backlog.into_iter().take(TAKE_IN) {
            if let Some(job) = self.job_mut(id) {
                job.become_pending(ready_at, now);
            }
        }
    }

    /// Settles a claim. A retry without a delay may have chosen `at` by itself.
    pub(super) fn settle(
        &mut self,
        now: i64,
        claim: &Claim,
        action: &Action,
        at: Option<i64>,
    ) -> Result<Value, Fault> {
        let job = self.jobs.iter_mut().find(|job| job.id == claim.id);
        let Some(job) = job.filter(|job| job.is_held(claim.token, now)) else {
            return Err(Fault::ClaimLost);
        };
        match action {
            Action::Ack => {
                self.remove(claim.id);
                Ok(Value::Done)
            }
            Action::Retry { error, delay } => {
                job.last_error = Some((*error).to_owned());
                if job.attempt >= job.max_attempts {
                    job.stored = Stored::Dead { died_at: now };
                    return Ok(Value::Retried(None));
                }
                let ready_at = match delay {
                    Some(delay) => later(now, *delay),
                    None => {
                        let d = backoff(job.retry_base, job.attempt);
                        at.filter(|at| (now + d / 2..=now + d).contains(at)).unwrap_or(now + d)
                    }
                };
                job.become_pending(ready_at, now);
                Ok(Value::Retried(Some(ready_at)))
            }
            Action::Fail { error } => {
                job.last_error = Some((*error).to_owned());
                job.stored = Stored::Dead { died_at: now };
                Ok(Value::Done)
            }
            Action::Release { delay } => {
                job.attempt -= 1;
                job.become_pending(later(now, *delay), now);
                Ok(Value::Done)
            }
            Action::Heartbeat { extend } => {
                let until = later(now, *extend);
                if let Stored::Claimed { deadline, .. } = &mut job.stored {
                    *deadline = until;
                }
                Ok(Value::Instant(until))
            }
        }
    }

    pub(super) fn cancel(&mut self, now: i64, id: i64) -> bool {
        let live = self.job(id).is_some_and(|job| job.is_live(now));
        if live {
            self.remove(id);
        }
        live
    }

    /// The ids of the dead jobs of a selection, ascending.
    pub(super) fn dead(&self, now: i64, ids: Option<&[i64]>) -> Vec<i64> {
        let chosen = |job: &&Job| ids.is_none_or(|ids| ids.contains(&job.id)) && job.is_dead(now);
        self.jobs.iter().filter(chosen).map(|job| job.id).collect()
    }

    pub(super) fn requeue(&mut self, now: i64, ids: Option<&[i64]>) -> u64 {
        let mut requeued = 0;
        for id in self.dead(now, ids) {
            let key = self.job(id).and_then(|job| job.key.clone());
            if key.is_some_and(|key| self.holder_of(&key, now).is_some()) {
                continue;
            }
            let Some(mut job) = self.job(id).cloned() else { continue };
            // What killed it by the clock is what its record says from now on.
            job.last_error = job.error(now);
            job.attempt = 0;
            job.expires_at = None;
            job.become_pending(now, now);
            self.put(job);
            requeued += 1;
        }
        requeued
    }

    pub(super) fn purge(&mut self, now: i64, ids: Option<&[i64]>) -> u64 {
        let mut purged = 0;
        for id in self.dead(now, ids) {
            self.remove(id);
            purged += 1;
        }
        purged
    }

    /// Stores what the clock implies. Counts what it buries as expired and as lapsed and what it
    /// deletes: at least, where earlier operations had stored what they may have, and at most.
    pub(super) fn maintain(&mut self, now: i64) -> [(u64, u64); 3] {
        let mut counts = [(0, 0); 3];
        let mut count = |kind: usize, surely: bool| {
            counts[kind].0 += u64::from(surely);
            counts[kind].1 += 1;
        };
        for job in &mut self.jobs {
            let (gone, died_at, of) = match job.standing(now) {
                Standing::Dead { died_at, of } => (false, died_at, of),
                Standing::Gone { died_at, of } => (true, died_at, of),
                _ => continue,
            };
            match of {
                Death::Settled => {}
                Death::Expired => count(0, !job.swept && !gone),
                Death::Lapsed => count(1, !job.swept && !gone),
            }
            if gone {
                // What dies and is over at once may count as one or the other.
                count(2, !job.wiped && of == Death::Settled);
            }
            job.last_error = job.error(now);
            job.ready_at = job.last_ready_at(now);
            job.stored = Stored::Dead { died_at };
        }
        self.jobs.retain(|job| !matches!(job.standing(now), Standing::Gone { .. }));
        counts
    }

    pub(super) fn view(&self, now: i64, id: i64) -> Option<JobView> {
        self.job(id)?.view(&self.name, now)
    }

    pub(super) fn views(&self, now: i64) -> Vec<JobView> {
        self.jobs.iter().filter_map(|job| job.view(&self.name, now)).collect()
    }

    pub(super) fn stats(&self, now: i64) -> StatsView {
        let mut stats = StatsView {
            name: self.name.clone(),
            ready: 0,
            delayed: 0,
            claimed: 0,
            dead: 0,
            paused: self.paused,
            oldest_ready_at: None,
        };
        for job in &self.jobs {
            match job.standing(now) {
                Standing::Pending { ready_at } if ready_at <= now => {
                    stats.ready += 1;
                    let oldest = stats.oldest_ready_at.unwrap_or(ready_at).min(ready_at);
                    stats.oldest_ready_at = Some(oldest);
                }
                Standing::Pending { .. } => stats.delayed += 1,
                Standing::Claimed { .. } => stats.claimed += 1,
                Standing::Dead { .. } => stats.dead += 1,
                Standing::Gone { .. } => {}
            }
        }
        stats
    }
}

fn ms_back(millis: i64) -> std::time::Duration {
    std::time::Duration::from_millis(millis.unsigned_abs())
}

/// The longest pause before a job's next attempt.
fn backoff(base: i64, attempt: u32) -> i64 {
    let mut pause = base;
    for _ in 1..attempt {
        pause = (pause * 2).min(3_600_000);
    }
    pause.min(3_600_000)
}

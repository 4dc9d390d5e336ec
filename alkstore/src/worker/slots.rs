//! Who may run next, and how much may be claimed ahead.
//!
//! A lane is a queue or an outbox of the worker. Its fetcher asks before it claims and is granted
//! a number of jobs: as many as free slots are its share, or, where handlers are short, as many as
//! will be started soon. Slots that become free go round the lanes, one job each, so that no lane
//! waits behind another's backlog.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use alkstore_core::Job;
use tokio::sync::Notify;

use super::claim::Claim;
use super::handler::Handle;

/// A job that is claimed ahead should start within this time.
const SOON: Duration = Duration::from_millis(100);

/// How much a new running time counts in the average.
const WEIGHT: f64 = 0.2;

/// A claimed job that waits for a slot.
pub(super) struct Waiting {
    pub(super) job: Job,
    pub(super) claim: Arc<Claim>,
    pub(super) handler: Handle,
    pub(super) arrived: Instant,
    /// How often it was seen waiting.
    seen: u32,
}

impl Waiting {
    pub(super) fn new(job: Job, claim: Arc<Claim>, handler: Handle, arrived: Instant) -> Self {
        Self { job, claim, handler, arrived, seen: 0 }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("job", &self.job).finish_non_exhaustive()
    }
}

/// What a lane may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneLimits {
    /// How many run at the same time.
    pub(super) concurrency: usize,
    /// How many wait in the buffer at most; `None` for an outbox, which claims one by one once it
    /// has its slot.
    pub(super) buffer: Option<usize>,
}

#[derive(Debug)]
struct Lane {
    limits: LaneLimits,
    buffer: VecDeque<Waiting>,
    running: usize,
    reserved: usize,
    /// Granted, and not yet noticed by the fetcher.
    granted: usize,
    /// How long a handler runs, in seconds.
    average: Option<f64>,
}

#[derive(Debug)]
struct State {
    concurrency: usize,
    running: usize,
    buffered: usize,
    reserved: usize,
    stopping: bool,
    /// The lane that was served last.
    turn: usize,
    /// The lanes that wait for a grant, longest first.
    hungry: VecDeque<usize>,
    lanes: Vec<Lane>,
}

/// What takes a free slot.
enum Next {
    Job(Box<Waiting>),
    /// An outbox, which claims by itself.
    Handed,
    Nothing,
}

#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    told: Vec<Notify>,
    /// Too much waits to be settled: nothing is granted.
    clogged: AtomicBool,
}

impl Slots {
    pub(super) fn new(concurrency: usize, lanes: impl Iterator<Item = LaneLimits>) -> Self {
        let lanes: Vec<_> = lanes
            .map(|limits| Lane {
                limits,
                buffer: VecDeque::new(),
                running: 0,
                reserved: 0,
                granted: 0,
                average: None,
            })
            .collect();
        let told = lanes.iter().map(|_| Notify::new()).collect();
        let state = State {
            concurrency,
            running: 0,
            buffered: 0,
            reserved: 0,
            stopping: false,
            turn: 0,
            hungry: VecDeque::new(),
            lanes,
        };
        Self { state: Mutex::new(state), told, clogged: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the lane may claim, and says how many. An outbox has its slot then.
    pub(super) async fn granted(&self, lane: usize) -> usize {
        loop {
            // A permit that is kept: no grant falls between the look and the wait.
            let told = self.told[lane].notified();
            {
                let mut state = self.lock();
                if state.lanes[lane].granted == 0 && !state.hungry.contains(&lane) {
                    state.hungry.push_back(lane);
                    self.serve(&mut state);
                }
                let granted = std::mem::take(&mut state.lanes[lane].granted);
                if granted > 0 {
                    return granted;
                }
            }
            told.await;
        }
    }

    /// Gives lanes that wait what they may have now.
    fn serve(&self, state: &mut State) {
        if state.stopping || self.clogged.load(Ordering::SeqCst) {
            return;
        }
        let mut place = 0;
        while let Some(&lane) = state.hungry.get(place) {
            let count = state.grant(lane);
            if count == 0 {
                place += 1;
                continue;
            }
            state.hungry.remove(place);
            state.take_grant(lane, count);
            self.told[lane].notify_one();
        }
    }

    /// Puts what was claimed on a grant into the buffer, and gives what starts at once.
    pub(super) fn arrived(&self, lane: usize, granted: usize, jobs: Vec<Waiting>) -> Vec<Waiting> {
        let mut state = self.lock();
        state.reserved -= granted;
        state.lanes[lane].reserved -= granted;
        state.buffered += jobs.len();
        state.lanes[lane].buffer.extend(jobs);
        let starting = self.start(&mut state);
        self.serve(&mut state);
        starting
    }

    fn start(&self, state: &mut State) -> Vec<Waiting> {
        let mut starting = Vec::new();
        loop {
            match state.next() {
                Next::Job(job) => starting.push(*job),
                Next::Handed => self.told[state.turn].notify_one(),
                Next::Nothing => return starting,
            }
        }
    }

    /// A job has run so long: its slot is free, and this is the next one for it.
    pub(super) fn finished(&self, lane: usize, took: Duration) -> Option<Waiting> {
        let mut state = self.lock();
        state.leave(lane);
        let took = took.as_secs_f64().max(1e-6);
        let average = &mut state.lanes[lane].average;
        *average = Some(average.map_or(took, |known| known + WEIGHT * (took - known)));
        self.refill(&mut state)
    }

    /// An outbox had nothing to deliver: its slot is free.
    pub(super) fn unused(&self, lane: usize) -> Option<Waiting> {
        let mut state = self.lock();
        state.leave(lane);
        self.refill(&mut state)
    }

    fn refill(&self, state: &mut State) -> Option<Waiting> {
        let next = loop {
            match state.next() {
                Next::Job(job) => break Some(*job),
                Next::Handed => self.told[state.turn].notify_one(),
                Next::Nothing => break None,
            }
        };
        self.serve(state);
        next
    }

    /// Whether settlements can't keep up with the handlers.
    pub(super) fn clog(&self, clogged: bool) {
        if self.clogged.swap(clogged, Ordering::SeqCst) && !clogged {
            self.serve(&mut self.lock());
        }
    }

    /// Nothing starts from here on; what was waiting is returned.
    pub(super) fn stop(&self) -> Vec<Waiting> {
        let mut state = self.lock();
        state.stopping = true;
        state.buffered = 0;
        state.lanes.iter_mut().flat_map(|lane| std::mem::take(&mut lane.buffer)).collect()
    }

    /// Takes out what has been waiting for a whole round of this: handlers have become slower
    /// than they were when it was claimed. Also says whether anything is left.
    pub(super) fn stale(&self) -> (Vec<Waiting>, bool) {
        let mut state = self.lock();
        let mut stale = Vec::new();
        for lane in &mut state.lanes {
            for waiting in &mut lane.buffer {
                waiting.seen += 1;
            }
            while lane.buffer.front().is_some_and(|waiting| waiting.seen > 1) {
                stale.extend(lane.buffer.pop_front());
            }
        }
        state.buffered -= stale.len();
        if !stale.is_empty() {
            for lane in state.lanes.iter_mut().filter(|lane| lane.running > 0) {
                lane.average = None;
            }
        }
        (stale, state.buffered > 0)
    }

    /// How many run and how many wait.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.running, state.buffered)
    }
}

impl State {
    /// How many the lane may claim now.
    fn grant(&self, lane: usize) -> usize {
        let Lane { limits, buffer, running, reserved, .. } = &self.lanes[lane];
        let Some(most) = limits.buffer else {
            return usize::from(self.running < self.concurrency && *running < limits.concurrency);
        };
        let taken = running + buffer.len() + reserved;
        let free = self
            .concurrency
            .saturating_sub(self.running + self.buffered + self.reserved)
            .min(limits.concurrency.saturating_sub(taken));
        let share = free.min((free / self.hungry.len().max(1)).max(1));
        let ahead = self.ahead(lane).min(most);
        let room = ahead.saturating_sub(buffer.len() + reserved);
        // A page at a time: a claim for each job that was started would be a query for each.
        if room * 2 >= ahead { share.max(room) } else { share }
    }

    /// How many jobs of the lane will be started soon.
    fn ahead(&self, lane: usize) -> usize {
        let Lane { limits, average, .. } = &self.lanes[lane];
        let mut pace: f64 = self
            .lanes
            .iter()
            .filter_map(|lane| lane.average.map(|average| count(lane.running) / average))
            .sum();
        let mut own = 1.0;
        if let Some(average) = average {
            own = (SOON.as_secs_f64() * count(limits.concurrency) / average).max(1.0);
            let free = self.concurrency.saturating_sub(self.running);
            pace += count(free.min(limits.concurrency)) / average;
        }
        let waits = |(other, state): &(usize, &Lane)| *other == lane || !state.buffer.is_empty();
        let contenders = self.lanes.iter().enumerate().filter(waits).count();
        whole((SOON.as_secs_f64() * pace / count(contenders)).min(own))
    }

    fn take_grant(&mut self, lane: usize, count: usize) {
        let granted = &mut self.lanes[lane];
        granted.granted = count;
        if granted.limits.buffer.is_none() {
            granted.running += count;
            self.running += count;
        } else {
            granted.reserved += count;
            self.reserved += count;
        }
    }

    /// What takes the next free slot, if there is one: the lanes take turns.
    fn next(&mut self) -> Next {
        if self.stopping || self.running >= self.concurrency {
            return Next::Nothing;
        }
        let lanes = self.lanes.len();
        for step in 1..=lanes {
            let lane = (self.turn + step) % lanes;
            if self.lanes[lane].running >= self.lanes[lane].limits.concurrency {
                continue;
            }
            if self.lanes[lane].limits.buffer.is_none() {
                if let Some(place) = self.hungry.iter().position(|hungry| *hungry == lane) {
                    self.hungry.remove(place);
                    self.take_grant(lane, 1);
                    self.turn = lane;
                    return Next::Handed;
                }
                continue;
            }
            while let Some(waiting) = self.lanes[lane].buffer.pop_front() {
                self.buffered -= 1;
                if waiting.claim.is_lost() {
                    continue;
                }
                self.lanes[lane].running += 1;
                self.running += 1;
                self.turn = lane;
                return Next::Job(Box::new(waiting));
            }
        }
        Next::Nothing
    }

    fn leave(&mut self, lane: usize) {
        self.lanes[lane].running -= 1;
        self.running -= 1;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of jobs")]
fn count(jobs: usize) -> f64 {
    jobs as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of jobs, which saturates"
)]
fn whole(jobs: f64) -> usize {
    jobs as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(concurrency: usize, lanes: &[(usize, Option<usize>)]) -> Slots {
        let limits = |&(concurrency, buffer): &_| LaneLimits { concurrency, buffer };
        Slots::new(concurrency, lanes.iter().map(limits))
    }

    fn hungry(slots: &Slots, lane: usize) -> usize {
        let mut state = slots.lock();
        state.hungry.push_back(lane);
        slots.serve(&mut state);
        std::mem::take(&mut state.lanes[lane].granted)
    }

    /// As if so many jobs of a lane were running, each for so long.
    fn running(slots: &Slots, lane: usize, count: usize, average: f64) {
        let mut state = slots.lock();
        state.running += count;
        state.lanes[lane].running += count;
        state.lanes[lane].average = Some(average);
    }

    #[test]
    fn nothing_is_claimed_ahead_of_handlers_that_are_unknown_or_slow() {
        let new = slots(4, &[(4, Some(256))]);
        assert_eq!(hungry(&new, 0), 4, "what can start at once");
        assert_eq!(hungry(&new, 0), 0, "those are spoken for");
        let slow = slots(4, &[(4, Some(256))]);
        running(&slow, 0, 4, 10.0);
        assert_eq!(hungry(&slow, 0), 0);
    }

    #[test]
    fn what_short_handlers_will_start_soon_is_claimed_ahead() {
        let short = slots(4, &[(4, Some(256)), (4, Some(256))]);
        running(&short, 0, 4, 0.01);
        assert_eq!(hungry(&short, 0), 40, "a tenth of a second's worth");
        assert_eq!(hungry(&short, 1), 1, "of the unknown one, to learn of it");
        let tiny = slots(4, &[(4, Some(256))]);
        running(&tiny, 0, 4, 0.000_01);
        assert_eq!(hungry(&tiny, 0), 256, "bounded");
    }

    #[test]
    fn slow_jobs_are_not_claimed_ahead_because_others_are_short() {
        let mixed = slots(4, &[(4, Some(256)), (4, Some(256))]);
        running(&mixed, 0, 3, 0.01);
        running(&mixed, 1, 1, 10.0);
        assert_eq!(hungry(&mixed, 1), 1);
    }

    #[test]
    fn free_slots_are_shared_out_among_those_who_ask() {
        let slots = slots(4, &[(4, Some(0)), (4, Some(0)), (1, Some(0)), (4, None)]);
        let mut state = slots.lock();
        state.hungry.extend([0, 1, 2]);
        slots.serve(&mut state);
        let granted = state.lanes.iter_mut().map(|lane| std::mem::take(&mut lane.granted));
        assert_eq!(granted.collect::<Vec<_>>(), [1, 1, 1, 0]);
        drop(state);
        assert_eq!(hungry(&slots, 2), 0, "its own limit");
    }

    #[test]
    fn an_outbox_takes_its_turn_at_a_slot_that_becomes_free() {
        let slots = slots(1, &[(1, Some(0)), (1, None)]);
        running(&slots, 0, 1, 0.01);
        assert_eq!(hungry(&slots, 1), 0);
        assert!(slots.finished(0, Duration::from_millis(1)).is_none());
        let state = slots.lock();
        assert_eq!((state.lanes[1].granted, state.lanes[1].running, state.running), (1, 1, 1));
    }

    #[test]
    fn nothing_is_granted_while_settlements_are_behind_or_after_a_stop() {
        let slots = slots(1, &[(1, Some(0))]);
        slots.clog(true);
        assert_eq!(hungry(&slots, 0), 0);
        slots.clog(false);
        assert_eq!(slots.lock().lanes[0].granted, 1);
        let stopped = self::slots(1, &[(1, Some(0))]);
        assert!(stopped.stop().is_empty());
        assert_eq!(hungry(&stopped, 0), 0);
    }
}

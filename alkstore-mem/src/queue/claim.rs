//! Claims.

use std::cmp::Reverse;

use alkstore_core::{
    ClaimToken, Claimed, ClaimedJob, EXPIRED_ERROR, LocalName, QueueName, Timestamp,
};

use super::row::Death;
use super::{PAGE, Phase, QueueState, Row, wake};
use crate::clock::Reading;
use crate::observe::Observed;
use crate::state::{Numbers, View};

/// Claims, into what was made with room for it before the lock was taken.
pub(super) fn claim_jobs(
    view: &mut View<'_>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
    claimed: &mut Claimed,
) {
    view.state.tap.tell(|| Some(Observed::Asked(queue.clone())));
    let Some(state) = view.state.queues.get_mut(queue).filter(|state| !state.paused) else {
        return;
    };
    if max == 0 {
        return;
    }
    let now = view.time.now;
    let taken_in = state.take_in(now);
    state.hand_out(view.time, &mut view.state.numbers, worker, max, claimed);
    claimed.next_due = state.next_due(now);
    claimed.blocked = state.sets.pinned.first().is_some_and(|(deadline, _)| deadline <= now);
    claimed.more |= claimed.jobs.is_empty() && state.has_backlog(now);
    let left = if taken_in > 0 { state.sets.ready.len() } else { 0 };
    wake(view, queue, left);
}

fn claim(row: &mut Row, token: ClaimToken, worker: &LocalName, time: Reading) -> ClaimedJob {
    let deadline = time.after(row.visibility.as_duration());
    row.attempt = row.attempt.saturating_add(1);
    row.token = token;
    row.phase = Phase::Claimed { worker: worker.clone(), deadline };
    ClaimedJob {
        id: row.id,
        token,
        attempt: row.attempt,
        max_attempts: row.max_attempts,
        payload: row.payload.clone(),
        headers: row.headers.clone(),
        enqueued_at: row.enqueued_at,
        visibility_timeout: row.visibility,
        deadline,
    }
}

impl QueueState {
    /// Makes due and lapsed jobs ready, oldest instant first, at most a page, and says how many.
    fn take_in(&mut self, now: Timestamp) -> usize {
        for taken_in in 0..PAGE {
            let next = self.sets.delayed.first().into_iter().chain(self.sets.leased.first()).min();
            match next {
                Some((instant, id)) if instant <= now => {
                    self.change(id, |row| row.pend(row.last_ready_at(now), now));
                }
                _ => return taken_in,
            }
        }
        PAGE
    }

    fn has_backlog(&self, now: Timestamp) -> bool {
        let first = self.sets.delayed.first().into_iter().chain(self.sets.leased.first()).min();
        first.is_some_and(|(instant, _)| instant <= now)
    }

    /// Claims what is ready, in order, and buries what it meets that has expired.
    fn hand_out(
        &mut self,
        time: Reading,
        numbers: &mut Numbers,
        worker: &LocalName,
        max: usize,
        claimed: &mut Claimed,
    ) {
        let mut buried = 0;
        while claimed.jobs.len() < max
            && let Some(&(Reverse(_), _, id)) = self.sets.ready.first()
        {
            let at_its_bound = self.change(id, |row| {
                match row.expires_at.filter(|&at| at <= time.now) {
                    None => {
                        numbers.claim += 1;
                        let token = ClaimToken::stored(numbers.claim);
                        claimed.jobs.push(claim(row, token, worker, time));
                    }
                    Some(_) if buried == PAGE => return true,
                    Some(at) => {
                        buried += 1;
                        row.die(Death { at, reason: Some(EXPIRED_ERROR) });
                    }
                }
                false
            });
            if at_its_bound == Some(true) {
                claimed.more = true;
                break;
            }
        }
    }

    /// The next instant at which a job becomes claimable, or is seen to be held.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let pinned = self.sets.pinned.first().filter(|&(deadline, _)| deadline > now);
        let next =
            self.sets.delayed.first().into_iter().chain(self.sets.leased.first()).chain(pinned);
        next.map(|(instant, _)| instant).min()
    }
}

//! Claims.

use std::cmp::Reverse;

use alkstore_core::{
    ClaimToken, Claimed, ClaimedJob, EXPIRED_ERROR, JobId, LocalName, QueueName, Timestamp,
};

use super::row::Death;
use super::{PAGE, Phase, QueueState, wake};
use crate::clock::Reading;
use crate::observe::Observed;
use crate::state::{Numbers, View};

pub(super) fn claim_jobs(
    view: &mut View<'_>,
    queue: &QueueName,
    worker: &LocalName,
    max: usize,
) -> Claimed {
    view.state.tap.tell(|| Some(Observed::Asked(queue.clone())));
    let Some(state) = view.state.queues.get_mut(queue).filter(|state| !state.paused) else {
        return Claimed::default();
    };
    if max == 0 {
        return Claimed::default();
    }
    let now = view.time.now;
    let taken_in = state.take_in(now);
    let mut claimed = state.hand_out(view.time, &mut view.state.numbers, worker, max);
    claimed.next_due = state.next_due(now);
    claimed.blocked = state.sets.pinned.first().is_some_and(|&(deadline, _)| deadline <= now);
    claimed.more |= claimed.jobs.is_empty() && state.has_backlog(now);
    let left = if taken_in > 0 { state.sets.ready.len() } else { 0 };
    wake(view, queue, left);
    claimed
}

impl QueueState {
    /// Makes due and lapsed jobs ready, oldest instant first, at most a page, and says how many.
    fn take_in(&mut self, now: Timestamp) -> usize {
        for taken_in in 0..PAGE {
            let next = self.sets.delayed.first().into_iter().chain(self.sets.leased.first()).min();
            match next {
                Some(&(instant, id)) if instant <= now => {
                    self.change(id, |row| row.pend(row.last_ready_at(now), now));
                }
                _ => return taken_in,
            }
        }
        PAGE
    }

    fn has_backlog(&self, now: Timestamp) -> bool {
        let first = self.sets.delayed.first().into_iter().chain(self.sets.leased.first()).min();
        first.is_some_and(|&(instant, _)| instant <= now)
    }

    /// Claims what is ready, in order, and buries what it meets that has expired.
    fn hand_out(
        &mut self,
        time: Reading,
        numbers: &mut Numbers,
        worker: &LocalName,
        max: usize,
    ) -> Claimed {
        let mut claimed = Claimed::default();
        let mut buried = 0;
        while claimed.jobs.len() < max
            && let Some(&(Reverse(_), _, id)) = self.sets.ready.first()
        {
            let expired_at = self.row(id).filter(|row| row.is_expired(time.now));
            if let Some(at) = expired_at.and_then(|row| row.expires_at) {
                if buried == PAGE {
                    claimed.more = true;
                    break;
                }
                buried += 1;
                self.change(id, |row| row.die(Death { at, reason: Some(EXPIRED_ERROR) }));
                continue;
            }
            numbers.claim += 1;
            let token = ClaimToken::stored(numbers.claim);
            claimed.jobs.extend(self.claim(id, token, worker, time));
        }
        claimed
    }

    fn claim(
        &mut self,
        id: JobId,
        token: ClaimToken,
        worker: &LocalName,
        time: Reading,
    ) -> Option<ClaimedJob> {
        self.change(id, |row| {
            let deadline = time.after(row.visibility.as_duration());
            row.attempt = row.attempt.saturating_add(1);
            row.token = token;
            row.phase = Phase::Claimed { worker: worker.clone(), deadline };
            ClaimedJob {
                id,
                token,
                attempt: row.attempt,
                max_attempts: row.max_attempts,
                payload: row.payload.clone(),
                headers: row.headers.clone(),
                enqueued_at: row.enqueued_at,
                visibility_timeout: row.visibility,
                deadline,
            }
        })
    }

    /// The next instant at which a job becomes claimable, or is seen to be held.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let pinned = self.sets.pinned.first().filter(|&&(deadline, _)| deadline > now);
        let next =
            self.sets.delayed.first().into_iter().chain(self.sets.leased.first()).chain(pinned);
        next.map(|&(instant, _)| instant).min()
    }
}

//! Dead letters: burying, requeueing, purging, and maintenance.

use alkstore_core::{DeadSelection, JobId, Maintenance, MaintenancePage, QueueName, Timestamp};

use super::row::Standing;
use super::{Agenda, KeyHolder, PAGE, QueueState, key_holder, wake};
use crate::state::{Blocked, View};

impl QueueState {
    /// Stores that a live job is dead or gone, where the clock has made it so, unless a
    /// transaction holds it; says whether it was so.
    pub(super) fn store_death(&mut self, id: JobId, now: Timestamp) -> bool {
        let standing = self.row(id).filter(|row| row.pin.is_none()).map(|row| row.standing(now));
        match standing {
            Some(Standing::Dead(death)) => self.change(id, |row| row.die(death)).is_some(),
            Some(Standing::Gone) => self.take(id).is_some(),
            _ => false,
        }
    }

    /// Stores every death that the clock implies.
    fn store_deaths(&mut self, now: Timestamp) {
        for (_, id) in [self.sets.last_leases.due(now), self.sets.expiring.due(now)].concat() {
            self.store_death(id, now);
        }
    }

    fn selected(&self, which: &DeadSelection, now: Timestamp) -> Vec<JobId> {
        let is_dead = |id: &JobId| {
            self.row(*id).is_some_and(|row| matches!(row.standing(now), Standing::Dead(_)))
        };
        match which {
            DeadSelection::All => self.sets.dead.iter().copied().filter(is_dead).collect(),
            DeadSelection::Ids(ids) => {
                let mut ids: Vec<_> = ids
                    .iter()
                    .copied()
                    .filter(|id| self.sets.dead.contains(id) && is_dead(id))
                    .collect();
                ids.sort_unstable();
                ids.dedup();
                ids
            }
        }
    }
}

pub(super) fn requeue_jobs(
    view: &mut View<'_>,
    queue: &QueueName,
    which: &DeadSelection,
) -> Result<u64, Blocked> {
    let now = view.time.now;
    let Some(state) = view.state.queues.get_mut(queue) else { return Ok(0) };
    state.store_deaths(now);
    let ids = state.selected(which, now);
    let keys: Vec<_> =
        ids.iter().map(|&id| state.row(id).and_then(|row| row.unique_key.clone())).collect();
    // Looked at before anything is requeued, so that a blocked call has requeued nothing.
    for key in keys.iter().flatten() {
        key_holder(view, queue, key)?;
    }
    let mut requeued = 0;
    for (id, key) in ids.into_iter().zip(keys) {
        if let Some(key) = key
            && let KeyHolder::Job(_) = key_holder(view, queue, &key)?
        {
            continue;
        }
        let Some(state) = view.state.queues.get_mut(queue) else { break };
        state.change(id, |row| {
            row.attempt = 0;
            row.expires_at = None;
            row.pend(now, now);
        });
        requeued += 1;
    }
    wake(view, queue, usize::try_from(requeued).unwrap_or(usize::MAX));
    Ok(requeued)
}

pub(super) fn purge_jobs(view: &mut View<'_>, queue: &QueueName, which: &DeadSelection) -> u64 {
    let now = view.time.now;
    let Some(state) = view.state.queues.get_mut(queue) else { return 0 };
    state.store_deaths(now);
    let ids = state.selected(which, now);
    ids.iter().filter(|&&id| state.take(id).is_some()).count() as u64
}

/// One page over all queues.
pub(crate) fn maintain(view: &mut View<'_>) -> MaintenancePage {
    let now = view.time.now;
    let mut done = Maintenance::default();
    let mut left = PAGE;
    for state in view.state.queues.values_mut() {
        left -= state.bury(&mut done.buried, left, |state| &state.sets.last_leases, now);
        left -= state.bury(&mut done.expired, left, |state| &state.sets.expiring, now);
        while left > 0
            && let Some((at, id)) = state.sets.retained.first()
            && at <= now
        {
            state.take(id);
            done.purged += 1;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    view.state.queues.retain(|_, state| !state.is_unused());
    MaintenancePage { done, more: left == 0 }
}

impl QueueState {
    /// Buries what has fallen due in a set, at most so many, and says how many.
    fn bury(
        &mut self,
        count: &mut u64,
        most: usize,
        set: impl Fn(&Self) -> &Agenda,
        now: Timestamp,
    ) -> usize {
        let (mut buried, mut last) = (0, None);
        // From one to the next, so that a page of a large backlog costs no more than a page.
        while buried < most
            && let Some(at) = set(self).next(last)
            && at.0 <= now
        {
            last = Some(at);
            buried += usize::from(self.store_death(at.1, now));
        }
        *count += buried as u64;
        buried
    }
}

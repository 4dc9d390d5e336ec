//! Reads: what the clock makes of the rows, whatever was stored of it.

use std::ops::Bound;

use alkstore_core::{JobFilter, JobId, JobRecord, QueueName, QueueStats, Timestamp};

use super::QueueState;
use super::row::Standing;
use crate::state::View;

pub(crate) fn find_job(view: &View<'_>, queue: &QueueName, id: JobId) -> Option<JobRecord> {
    let now = view.time.now;
    if let Some(image) = view.tx.as_ref().and_then(|staged| staged.image_in(queue, id)) {
        return image?.record(queue, now);
    }
    view.state.queues.get(queue)?.row(id)?.record(queue, now)
}

pub(super) fn find_jobs(view: &View<'_>, queue: &QueueName, filter: &JobFilter) -> Vec<JobRecord> {
    let now = view.time.now;
    let Some(state) = view.state.queues.get(queue) else { return Vec::new() };
    let from = filter.after.map_or(Bound::Unbounded, Bound::Excluded);
    state
        .rows
        .range((from, Bound::Unbounded))
        .filter_map(|(_, row)| row.record(queue, now))
        .filter(|record| filter.state.is_none_or(|state| record.state == state))
        .take(filter.limit)
        .collect()
}

pub(super) fn queue_stats(view: &View<'_>, queue: Option<&QueueName>) -> Vec<QueueStats> {
    let now = view.time.now;
    let queues = &view.state.queues;
    if let Some(name) = queue {
        let unknown = || QueueStats::new(name.as_str());
        return vec![queues.get(name).map_or_else(unknown, |state| state.stats(name, now))];
    }
    let mut stats: Vec<_> = queues
        .iter()
        .map(|(name, state)| state.stats(name, now))
        .filter(|s| s.paused || s.ready + s.delayed + s.claimed + s.dead > 0)
        .collect();
    stats.sort_by(|a, b| a.name.cmp(&b.name));
    stats
}

impl QueueState {
    fn stats(&self, name: &QueueName, now: Timestamp) -> QueueStats {
        let mut stats = QueueStats::new(name.as_str());
        stats.paused = self.paused;
        for row in self.rows.values() {
            match row.standing(now) {
                Standing::Pending { ready_at } if ready_at <= now => {
                    stats.ready += 1;
                    let oldest = stats.oldest_ready_at.get_or_insert(ready_at.into());
                    *oldest = (*oldest).min(ready_at.into());
                }
                Standing::Pending { .. } => stats.delayed += 1,
                Standing::Claimed => stats.claimed += 1,
                Standing::Dead(_) => stats.dead += 1,
                Standing::Gone => {}
            }
        }
        stats
    }
}

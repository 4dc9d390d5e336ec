//! What an operation outside the open transaction has to expect of it.

use super::op::{CONSUMERS, Op, queue_name};
use super::queue::{Claim, Standing};
use super::state::{Model, pick};
use super::tx::{OpenTx, Staged};

/// More milliseconds than an operation waits for a transaction.
const SOON: i64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Conflict {
    None,
    /// It answers as if there were none, or is unavailable.
    May,
    /// It is unavailable.
    Must,
    /// What it answers is the engine's, so it isn't asked.
    Unclear,
}

impl Model {
    pub(super) fn conflict(&self, op: &Op, one_writer: bool) -> Conflict {
        let Some(tx) = &self.tx else { return Conflict::None };
        if !op.writes_outside() {
            return Conflict::None;
        }
        match self.rows(tx, op) {
            // What a lock's handle can't do at once it leaves to the ttl.
            Conflict::None if one_writer && op.ends_a_holding() => Conflict::Unclear,
            Conflict::None if one_writer => Conflict::May,
            conflict => conflict,
        }
    }

    /// What it has to expect where a transaction holds no more than the rows it changed.
    fn rows(&self, tx: &OpenTx, op: &Op) -> Conflict {
        match op {
            Op::Begin { .. } => Conflict::Unclear,
            Op::Settle { claim, .. } => match pick(&self.claims, *claim) {
                Some(claim) => self.of_claim(tx, claim),
                None => Conflict::None,
            },
            Op::AckBatch { claims } => self.of_batch(tx, &self.batch(claims)),
            Op::Cancel { job, .. } => match self.job(job) {
                Some((queue, id)) if self.data.queues[queue].job(id).is_some() => {
                    self.of_job(tx, id)
                }
                _ => Conflict::None,
            },
            Op::Enqueue { queue, jobs, .. } => {
                let name = queue_name(*queue);
                let of_key = |key| self.of_key(tx, name, key);
                let found: Vec<_> = jobs.iter().filter_map(|job| job.key).map(of_key).collect();
                [Conflict::Unclear, Conflict::Must]
                    .into_iter()
                    .find(|conflict| found.contains(conflict))
                    .unwrap_or(Conflict::None)
            }
            Op::Dead { queue, .. } if changes(tx, Some(queue_name(*queue))) => Conflict::Unclear,
            Op::Maintain { .. } if changes(tx, None) => Conflict::Unclear,
            Op::Save { stream, consumer, rewind, .. } if saves(tx, *stream, *consumer) => {
                match rewind {
                    true => Conflict::Unclear,
                    false => Conflict::May,
                }
            }
            Op::Forget { stream, consumer, .. } if saves(tx, *stream, *consumer) => {
                Conflict::Unclear
            }
            _ => Conflict::None,
        }
    }

    /// Those that nobody holds are settled, the others are unavailable, each for itself.
    fn of_batch(&self, tx: &OpenTx, places: &[usize]) -> Conflict {
        let claims: Vec<_> = places.iter().map(|place| &self.claims[*place]).collect();
        let conflicts: Vec<_> = claims.iter().map(|claim| self.of_claim(tx, claim)).collect();
        let lapses_soon = |claim: &&Claim| {
            let job = self.data.queues[claim.queue.as_str()].job(claim.id);
            job.is_some_and(|job| {
                job.is_held(claim.token, self.now) && !job.is_held(claim.token, self.now + SOON)
            })
        };
        match conflicts.iter().all(|conflict| *conflict == Conflict::None) {
            true => Conflict::None,
            false if conflicts.contains(&Conflict::May) => Conflict::Unclear,
            false if claims.iter().any(lapses_soon) => Conflict::Unclear,
            false => Conflict::May,
        }
    }

    /// A claim that is lost may be found so at once.
    fn of_claim(&self, tx: &OpenTx, claim: &Claim) -> Conflict {
        let job = self.data.queues[claim.queue.as_str()].job(claim.id);
        match self.of_job(tx, claim.id) {
            Conflict::Must if !job.is_some_and(|job| job.is_held(claim.token, self.now)) => {
                Conflict::May
            }
            conflict => conflict,
        }
    }

    fn of_job(&self, tx: &OpenTx, id: i64) -> Conflict {
        let job = self.data.queues.values().find_map(|queue| queue.job(id));
        let held =
            job.is_some_and(|job| matches!(job.standing(self.now), Standing::Claimed { .. }));
        match tx.pinned().contains(&id) {
            true if held => Conflict::Must,
            true => Conflict::May,
            false if tx.found().contains(&id) => Conflict::May,
            false => Conflict::None,
        }
    }

    fn of_key(&self, tx: &OpenTx, queue: &str, key: &str) -> Conflict {
        let has_key = |id: i64| {
            let job = self.data.queues[queue].job(id);
            job.is_some_and(|job| job.key.as_deref() == Some(key))
        };
        let staged = tx.staged().iter().any(|staged| {
            matches!(staged, Staged::Added { queue: of, job }
                if *of == queue && job.key.as_deref() == Some(key))
        });
        match tx.pinned().into_iter().any(has_key) {
            true => Conflict::Unclear,
            false if staged => Conflict::Must,
            false => Conflict::None,
        }
    }

    /// Whether a queue's stats depend on how the engine sees a job that is held by a transaction
    /// and no longer by its claim.
    pub(super) fn is_unclear(&self, queue: &str) -> bool {
        let pinned = self.tx.as_ref().map(OpenTx::pinned).unwrap_or_default();
        let mut jobs = pinned.into_iter().filter_map(|id| self.data.queues[queue].job(id));
        jobs.any(|job| !matches!(job.standing(self.now), Standing::Claimed { .. }))
    }
}

/// Whether the transaction changed jobs of a queue, or of any.
fn changes(tx: &OpenTx, queue: Option<&str>) -> bool {
    tx.staged().iter().any(|staged| match staged {
        Staged::Added { queue: of, .. } => queue.is_none_or(|queue| *of == queue),
        Staged::Settled { queue: of, .. } => queue.is_none_or(|queue| of == queue),
        _ => false,
    })
}

fn saves(tx: &OpenTx, stream: usize, consumer: usize) -> bool {
    tx.staged().iter().any(|staged| {
        matches!(staged, Staged::Saved { stream: s, consumer: c, .. }
            if *s == stream && *c == CONSUMERS[consumer])
    })
}

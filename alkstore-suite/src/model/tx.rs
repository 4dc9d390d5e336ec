//! What a transaction does: it keeps what it changed, and puts that in place when it commits.

use super::answer::{Answer, EventView, Fault, Value};
use super::op::{CONSUMERS, Ending, TxOp, queue_name};
use super::queue::Job;
use super::state::{Data, Model, pick};
use super::stream::Stream;

#[derive(Debug, Clone)]
pub(super) struct OpenTx {
    /// Which open of a store it belongs to.
    pub(super) store: u32,
    /// What was committed when it began: it may go on reading that.
    snapshot: Data,
    staged: Vec<Staged>,
    /// Jobs that hold a key which it wanted for another.
    found: Vec<i64>,
}

#[derive(Debug, Clone)]
pub(super) enum Staged {
    Added {
        queue: &'static str,
        job: Job,
    },
    /// A job that was there, and what is left of it.
    Settled {
        queue: String,
        id: i64,
        job: Option<Job>,
    },
    Published {
        stream: usize,
        event: EventView,
    },
    Saved {
        stream: usize,
        consumer: &'static str,
        offset: i64,
    },
}

impl OpenTx {
    pub(super) fn new(store: u32, snapshot: Data) -> Self {
        Self { store, snapshot, staged: Vec::new(), found: Vec::new() }
    }

    pub(super) fn staged(&self) -> &[Staged] {
        &self.staged
    }

    pub(super) fn found(&self) -> &[i64] {
        &self.found
    }

    /// The committed jobs that nobody else may take or settle meanwhile.
    pub(super) fn pinned(&self) -> Vec<i64> {
        let settled = |staged: &Staged| match staged {
            Staged::Settled { id, .. } => Some(*id),
            _ => None,
        };
        self.staged.iter().filter_map(settled).collect()
    }

    /// Puts in place what is staged: all of it, or what the transaction itself sees of it.
    fn put_into(&self, data: &mut Data, events_too: bool) {
        for staged in &self.staged {
            match staged {
                Staged::Added { queue, job } => data.queue(queue).put(job.clone()),
                Staged::Settled { queue, job: Some(job), .. } => data.queue(queue).put(job.clone()),
                Staged::Settled { queue, id, job: None } => data.queue(queue).remove(*id),
                Staged::Published { stream, event } if events_too => {
                    data.stream(*stream).append(event.clone());
                }
                Staged::Published { .. } => {}
                Staged::Saved { stream, consumer, offset } => {
                    // The head may only have grown since it was checked.
                    let _ = data.stream(*stream).save(consumer, *offset);
                }
            }
        }
    }

    /// What is committed now, with what the transaction changed.
    fn view(&self, committed: &Data) -> Data {
        let mut view = committed.clone();
        self.put_into(&mut view, false);
        view
    }
}

impl Model {
    pub(super) fn step_tx(&mut self, op: &TxOp, seen: Option<&Answer>) -> Answer {
        let Some(tx) = self.tx.clone() else { return Ok(Value::Done) };
        let now = self.now;
        let mut view = tx.view(&self.data);
        let mut old_view = tx.view(&tx.snapshot);
        let foreign = |via: usize| self.stores[via] != tx.store;
        let (mut staged, mut found) = (Vec::new(), Vec::<i64>::new());
        let answer = match op {
            TxOp::Enqueue { via, .. } | TxOp::Publish { via, .. } | TxOp::Save { via, .. }
                if foreign(*via) =>
            {
                return Err(Fault::InvalidArgument);
            }
            TxOp::Read { via, .. } if foreign(*via) => return Err(Fault::InvalidArgument),
            TxOp::Enqueue { queue, stamps, jobs, .. } => {
                let name = queue_name(*queue);
                let before: Vec<i64> = view.queue(name).jobs.iter().map(|job| job.id).collect();
                let ids = self.add(name, view.queue(name), stamps, jobs, seen);
                let new = view.queue(name).jobs.iter().filter(|job| !before.contains(&job.id));
                staged.extend(new.map(|job| Staged::Added { queue: name, job: job.clone() }));
                self.data.queue(name).touch(now);
                found.extend(ids.iter().filter(|id| before.contains(id)));
                Value::Ids(ids)
            }
            TxOp::Settle { claim, action } => {
                let Some(claim) = pick(&self.claims, *claim).cloned() else {
                    return Ok(Value::Done);
                };
                if claim.store != tx.store {
                    return Err(Fault::InvalidArgument);
                }
                let at = match seen {
                    Some(Ok(Value::Retried(at))) => *at,
                    _ => None,
                };
                let settled = view.queue(&claim.queue).settle(now, &claim, action, at)?;
                let job = view.queue(&claim.queue).job(claim.id).cloned();
                staged.push(Staged::Settled { queue: claim.queue, id: claim.id, job });
                settled
            }
            TxOp::Publish { stream, events, .. } => {
                let event = |input| Stream::staged(now, input);
                let publish = |input| Staged::Published { stream: *stream, event: event(input) };
                staged.extend(events.iter().map(publish));
                Value::Done
            }
            TxOp::Save { stream, consumer, offset, .. } => {
                let consumer = CONSUMERS[*consumer];
                view.stream(*stream).save(consumer, *offset)?;
                staged.push(Staged::Saved { stream: *stream, consumer, offset: *offset });
                Value::Done
            }
            TxOp::GetJob { job } => {
                let Some((queue, id)) = self.job(job) else { return Ok(Value::Job(None)) };
                let [new, old] = [&mut view, &mut old_view]
                    .map(|view| Value::Job(view.queue(queue).view(now, id).map(Box::new)));
                either(new, old, seen)
            }
            TxOp::GetOffset { stream, consumer } => {
                let [new, old] = [&mut view, &mut old_view]
                    .map(|view| Value::Offset(view.stream(*stream).saved(CONSUMERS[*consumer])));
                either(new, old, seen)
            }
            TxOp::Read { stream, after, limit, .. } => {
                let [new, old] = [&mut view, &mut old_view]
                    .map(|view| Value::Events(view.stream(*stream).read(*after, *limit)));
                either(new, old, seen)
            }
        };
        if let Some(tx) = &mut self.tx {
            tx.staged.extend(staged);
            tx.found.extend(found);
        }
        Ok(answer)
    }

    pub(super) fn end_tx(&mut self, ending: Ending) -> Answer {
        let Some(tx) = self.tx.take() else { return Ok(Value::Done) };
        if ending == Ending::Commit {
            tx.put_into(&mut self.data, true);
            // It may have buried some of its own.
            self.data.queues.values_mut().for_each(|queue| queue.touch(self.now));
        } else {
            for staged in &tx.staged {
                if let Staged::Added { job, .. } = staged {
                    self.never_was(job.id);
                }
            }
        }
        Ok(Value::Done)
    }
}

/// A transaction may read what was committed when it began, or what is committed now.
fn either(new: Value, old: Value, seen: Option<&Answer>) -> Value {
    match seen {
        Some(Ok(seen)) if *seen == old => old,
        _ => new,
    }
}

//! What brings a queue's jobs into the worker.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{ClaimHint, Error, Queue, Result, Topic, Wait, Watch};

use super::claim::Claim;
use super::handler::Handle;
use super::report;
use super::runtime::Runtime;
use super::slots::Waiting;
use super::time::{Backoff, now};

/// A wake that isn't answered within this time is passed on to other workers.
const PASS_ON: Duration = Duration::from_millis(100);

/// Claims as long as it is granted something and there is something, and waits otherwise. Ends
/// with the worker's claiming, and with [`Error::Closed`].
pub(super) async fn run(
    rt: Arc<Runtime>,
    lane: usize,
    queue: Queue,
    handler: Handle,
) -> Result<()> {
    let mut waits = Waits::new(queue.topic());
    loop {
        let granted = waits.granted(&rt, lane).await?;
        let mut grant = Grant { rt: &rt, lane, granted };
        let asked = now();
        let claimed = queue.claim_hinted(&rt.worker, granted).await;
        let (jobs, hint) = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                drop(grant);
                waits.fault(&rt, "claim", error).await?;
                continue;
            }
        };
        rt.health.progress();
        report::claimed(&rt.lanes[lane].meter, jobs.len());
        let all = jobs.len() == granted;
        let waiting = jobs.into_iter().map(|job| {
            let claim = Arc::new(Claim::new(lane, &job, asked));
            Waiting::new(job, claim, handler.clone(), asked)
        });
        grant.fill(waiting.collect());
        if !all && !hint.more {
            waits.wait(&rt, hint).await?;
        } else {
            waits.found();
        }
    }
}

/// What a lane was granted; what isn't used is given back.
struct Grant<'a> {
    rt: &'a Arc<Runtime>,
    lane: usize,
    granted: usize,
}

impl Grant<'_> {
    fn fill(&mut self, jobs: Vec<Waiting>) {
        let Self { rt, lane, granted } = self;
        rt.keeper.hold(jobs.iter().map(|waiting| waiting.claim.clone()));
        let came = jobs.len();
        let starting = rt.slots.arrived(*lane, std::mem::take(granted), jobs);
        if starting.len() < came {
            rt.keeper.tidy();
        }
        starting.into_iter().for_each(|waiting| rt.start(waiting));
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if self.granted > 0 {
            self.fill(Vec::new());
        }
    }
}

/// How a lane waits: for a grant, for work, and after a fault.
pub(super) struct Waits {
    topic: Topic,
    /// Made before the look that found nothing.
    watch: Option<Box<dyn Watch>>,
    looks: u32,
    backoff: Backoff,
}

impl Waits {
    pub(super) fn new(topic: Topic) -> Self {
        Self { topic, watch: None, looks: 0, backoff: Backoff::new() }
    }

    pub(super) async fn granted(&mut self, rt: &Runtime, lane: usize) -> Result<usize> {
        let mut granted = std::pin::pin!(rt.slots.granted(lane));
        if self.watch.is_some() {
            tokio::select! {
                biased;
                granted = &mut granted => return Ok(granted),
                slept = rt.store.sleep(PASS_ON) => slept?,
            }
            // Whoever watches the queue as well may have a slot.
            self.watch = None;
        }
        Ok(granted.await)
    }

    pub(super) fn found(&mut self) {
        self.looks = 0;
        self.backoff.reset();
    }

    /// Waits until it is worth looking again. Where there was no watch yet, that is at once: what
    /// came since the look wakes nobody.
    pub(super) async fn wait(&mut self, rt: &Runtime, hint: ClaimHint) -> Result<()> {
        self.backoff.reset();
        let Some(watch) = &mut self.watch else {
            return match rt.store.watch(self.topic.clone()).await {
                Ok(watch) => {
                    self.watch = Some(watch);
                    Ok(())
                }
                Err(error) => self.fault(rt, "watch", error).await,
            };
        };
        let within = if hint.blocked {
            // What is held by a transaction wakes nobody when that is rolled back.
            self.looks = self.looks.saturating_add(1);
            Backoff::after(self.looks).min(Duration::from_secs(1))
        } else {
            self.looks = 0;
            rt.poll()
        };
        match watch.changed(Wait { until: hint.next_due, within: Some(within) }).await {
            Ok(()) => Ok(()),
            Err(error) => self.fault(rt, "watch", error).await,
        }
    }

    /// Says what happened and pauses, longer each time.
    pub(super) async fn fault(
        &mut self,
        rt: &Runtime,
        operation: &'static str,
        error: Error,
    ) -> Result<()> {
        if matches!(error, Error::Closed) {
            return Err(error);
        }
        rt.fault(operation, &error);
        self.watch = None;
        rt.store.sleep(self.backoff.next()).await
    }
}

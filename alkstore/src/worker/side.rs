//! What runs beside the queues: schedules, maintenance, samples.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{Error, Maintenance, MaintenancePage, Result, run_schedules_observed};

use super::report;
use super::runtime::Runtime;
use super::time::{Backoff, jittered};

/// Stands by for the scheduler's lease and leads, again and again.
pub(super) async fn schedules(rt: Arc<Runtime>) -> Result<()> {
    let mut backoff = Backoff::new();
    while !rt.stop.is_stopped() {
        let ticked = |tick: &alkstore_core::Tick| {
            rt.health.progress();
            report::ticked(tick.fired);
        };
        match run_schedules_observed(rt.store.clone(), rt.stop.clone(), ticked).await {
            Ok(()) => return Ok(()),
            Err(Error::Closed) => return Err(Error::Closed),
            // The passing ones are waited out by the runner itself.
            Err(error) => rt.fault("schedule", &error),
        }
        rt.unless_quit(rt.store.sleep(backoff.next())).await.transpose()?;
    }
    Ok(())
}

/// Sweeps from time to time, in pages.
pub(super) async fn maintenance(rt: Arc<Runtime>, every: Duration) -> Result<()> {
    loop {
        // The pause comes first, so that workers that start together don't sweep together.
        let Some(slept) = rt.unless_quit(rt.store.sleep(jittered(every))).await else {
            return Ok(());
        };
        slept?;
        let mut sum = Maintenance::default();
        loop {
            if rt.quit.is_cancelled() {
                return Ok(());
            }
            let MaintenancePage { done, more } = match rt.store.maintain_page().await {
                Ok(page) => page,
                Err(Error::Closed) => return Err(Error::Closed),
                Err(error) => {
                    rt.fault("maintain", &error);
                    break;
                }
            };
            rt.health.progress();
            sum.expired += done.expired;
            sum.buried += done.buried;
            sum.purged += done.purged;
            if !more {
                report::maintained(&sum);
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Sets the gauges from time to time.
#[cfg(feature = "metrics")]
pub(super) async fn samples(rt: Arc<Runtime>, every: Duration) -> Result<()> {
    loop {
        match crate::metrics::sample(&rt.store).await {
            Ok(()) => rt.health.progress(),
            Err(Error::Closed) => return Err(Error::Closed),
            Err(error) => rt.fault("sample", &error),
        }
        match rt.unless_quit(rt.store.sleep(jittered(every))).await {
            None => return Ok(()),
            Some(slept) => slept?,
        }
    }
}

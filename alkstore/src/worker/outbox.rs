//! Outboxes: one claim at a time goes through [`Outbox::run_once`], which settles it; nothing is
//! claimed ahead, extended, or settled together with others.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use alkstore_core::{BoxFuture, ClaimHint, Delivery, Error, Outbox, Result};
use tokio::sync::oneshot;
use tracing::Instrument;

use super::fetch::Waits;
use super::handler::text;
use super::report;
use super::runtime::Runtime;
use super::time::now;

/// A handler of deliveries; its error is text already.
pub(super) type Deliver =
    Arc<dyn Fn(Delivery) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

pub(super) fn erased<F, Fut, E>(handler: F) -> Deliver
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    let handler = Arc::new(handler);
    Arc::new(move |delivery| {
        let handler = handler.clone();
        Box::pin(async move { handler(delivery).await.map_err(text) })
    })
}

/// What one look at the outbox found.
enum Look {
    /// A delivery has begun, or was made.
    Work,
    Nothing(ClaimHint),
    Fault(Error),
}

/// Looks for deliveries as long as it is granted a slot, one after the other; those that have
/// begun go on beside it.
pub(super) async fn run(
    rt: Arc<Runtime>,
    lane: usize,
    outbox: Outbox,
    deliver: Deliver,
) -> Result<()> {
    let mut waits = Waits::new(outbox.topic());
    loop {
        waits.granted(&rt, lane).await?;
        let (tell, told) = oneshot::channel();
        let once = once(rt.clone(), lane, outbox.clone(), deliver.clone(), tell);
        rt.spawn(&rt.runners, "delivering", once);
        // Where it isn't told, the task was ended with the worker.
        let Ok(look) = told.await else { return Ok(()) };
        match look {
            Look::Work => waits.found(),
            Look::Nothing(hint) if hint.more => waits.found(),
            Look::Nothing(hint) => waits.wait(&rt, hint).await?,
            Look::Fault(error) => waits.fault(&rt, "deliver", error).await?,
        }
    }
}

/// One `run_once`, in the slot that the lane was granted. Tells as soon as it is known whether
/// there is a delivery.
async fn once(
    rt: Arc<Runtime>,
    lane: usize,
    outbox: Outbox,
    deliver: Deliver,
    tell: oneshot::Sender<Look>,
) -> Result<()> {
    let (begun, mut begins) = oneshot::channel();
    let ran = {
        let mut running = std::pin::pin!(outbox.run_once_hinted(&rt.worker, |delivery| {
            // The one who listens is below.
            let _ = begun.send((delivery.id().get(), delivery.attempt()));
            handled(&rt, lane, delivery, &deliver)
        }));
        // Until the delivery begins, dropping the call gives the claim back.
        let claimed = tokio::select! {
            biased;
            ran = &mut running => Err(ran),
            begun = &mut begins => Ok(begun.ok()),
            () = rt.quit.cancelled() => Err(Ok(Some(ClaimHint::default()))),
        };
        match claimed {
            Err(ran) => (ran, begins.try_recv().ok()),
            Ok(begun) => {
                let _ = tell.send(Look::Work);
                let took = now();
                let ran = tokio::select! {
                    biased;
                    ran = running => ran,
                    // Its grace is over: the claim lapses at its deadline.
                    () = rt.halt.cancelled() => Ok(None),
                };
                rt.next(rt.slots.finished(lane, took.elapsed()));
                return ended(&rt, lane, ran, begun);
            }
        }
    };
    let (ran, begun) = ran;
    rt.next(rt.slots.unused(lane));
    let look = match &ran {
        Ok(Some(hint)) => Look::Nothing(*hint),
        Ok(None) => Look::Work,
        Err(Error::ClaimLost { .. }) => Look::Work,
        Err(Error::Closed) => return Err(Error::Closed),
        Err(_) if begun.is_some() => Look::Work,
        Err(_) => {
            let Err(error) = ran else { return Ok(()) };
            let _ = tell.send(Look::Fault(error));
            return Ok(());
        }
    };
    let _ = tell.send(look);
    ended(&rt, lane, ran, begun)
}

/// The delivery as `run_once` makes it.
async fn handled(
    rt: &Arc<Runtime>,
    lane: usize,
    delivery: Delivery,
    deliver: &Deliver,
) -> Result<(), String> {
    let lane = &rt.lanes[lane];
    report::claimed(&lane.meter, 1);
    let (span, started) = (report::delivery_span(lane, &delivery), now());
    let work = deliver(delivery.clone()).instrument(span.clone());
    let result = match rt.in_time(lane, super::run::caught(work)).await {
        Some(Ok(result)) => result,
        Some(Err(panic)) => Err(panic),
        None => Err(lane.timed_out()),
    };
    let took = started.elapsed();
    lane.meter.ran(took);
    let ended = report::delivered(lane, &delivery, took, result.as_ref().err().map(String::as_str));
    report::ran(&span, ended.name(), took);
    result
}

fn ended(
    rt: &Runtime,
    lane: usize,
    ran: Result<Option<ClaimHint>>,
    begun: Option<(i64, u32)>,
) -> Result<()> {
    match ran {
        Ok(_) => rt.health.progress(),
        Err(Error::Closed) => return Err(Error::Closed),
        Err(Error::ClaimLost { .. }) => {
            if let Some((id, attempt)) = begun {
                report::lost_job(&rt.lanes[lane], id, attempt);
            }
        }
        Err(error) => rt.fault("deliver", &error),
    }
    Ok(())
}

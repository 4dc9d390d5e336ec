//! Rows of docs/architecture/outbox.md.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alkstore_core::{
    Claimed, Delivery, Error, JobId, JobRecord, JobState, LocalName, Outbox, OutboxOpts, QueueName,
    Result, SettleAction, Settled, Settlement, StopToken, Store, StoreExt, async_trait,
};
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;

use crate::cx::{Cx, Task};
use crate::fault::{Layer, layered};

mod address;
mod deliver;
mod dropped;
mod enqueue;
mod faults;
mod heartbeat;
mod run;

pub(crate) use self::address::*;
pub(crate) use self::deliver::*;
pub(crate) use self::dropped::*;
pub(crate) use self::enqueue::*;
pub(crate) use self::faults::*;
pub(crate) use self::heartbeat::*;
pub(crate) use self::run::*;

const NAME: &str = "mails";
const QUEUE: &str = "__alkstore_outbox:mails";

/// What a delivery comes to.
type Outcome = Result<(), String>;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn outbox(store: &Arc<dyn Store>) -> Outbox {
    store.outbox(NAME).unwrap()
}

async fn put(store: &Arc<dyn Store>, payload: &str) -> JobId {
    outbox(store).enqueue(payload, OutboxOpts::new()).await.unwrap()
}

/// One delivery that must be known.
async fn record(store: &Arc<dyn Store>, id: JobId) -> JobRecord {
    outbox(store).get_job(id).await.unwrap().expect("a delivery that is known")
}

async fn gone(store: &Arc<dyn Store>, id: JobId) -> bool {
    outbox(store).get_job(id).await.unwrap().is_none()
}

/// Delivers what is due first, well.
async fn deliver(store: &Arc<dyn Store>) -> Result<bool> {
    outbox(store).run_once("w", async |_| Ok::<_, String>(())).await
}

fn is_claim_lost<T>(result: &Result<T>, id: JobId) -> bool {
    matches!(result, Err(Error::ClaimLost { id: lost, .. }) if *lost == id)
}

/// A `run_once` beside the row whose delivery is under way until the row says how it ends.
struct Held {
    delivery: Delivery,
    end: oneshot::Sender<Outcome>,
    task: Task<Result<bool>>,
}

impl Held {
    async fn begin(cx: &Cx, store: &Arc<dyn Store>) -> Self {
        let (begun, delivery) = oneshot::channel();
        let (end, outcome) = oneshot::channel();
        let outbox = outbox(store);
        let task = cx.spawn(async move {
            let delivering = async |delivery| {
                let _ = begun.send(delivery);
                outcome.await.unwrap_or_else(|_| Err("the row let go of it".to_owned()))
            };
            outbox.run_once("w", delivering).await
        });
        let delivery = cx.within(delivery).await.expect("a delivery began");
        Self { delivery, end, task }
    }

    /// Lets the delivery end and waits for what `run_once` makes of it.
    async fn end(self, outcome: Outcome) -> Result<bool> {
        let _ = self.end.send(outcome);
        self.task.join().await
    }
}

/// A `run` beside the row, whose deliveries the row ends one by one.
struct Courier {
    stop: StopToken,
    begun: mpsc::UnboundedReceiver<(Delivery, oneshot::Sender<Outcome>)>,
    task: Task<Result<()>>,
}

impl Courier {
    fn start(cx: &Cx, store: &Arc<dyn Store>) -> Self {
        let (begin, begun) = mpsc::unbounded();
        let (stop, outbox) = (StopToken::new(), outbox(store));
        let token = stop.clone();
        let task = cx.spawn(async move {
            let delivering = |delivery: Delivery| {
                let (end, outcome) = oneshot::channel();
                let _ = begin.unbounded_send((delivery, end));
                async { outcome.await.unwrap_or_else(|_| Err("the row let go of it".to_owned())) }
            };
            outbox.run("courier", delivering, token).await
        });
        Self { stop, begun, task }
    }

    /// The next delivery that begins.
    async fn next(&mut self, cx: &Cx) -> (Delivery, oneshot::Sender<Outcome>) {
        cx.within(self.begun.next()).await.expect("the run goes on")
    }

    /// Lets the next delivery end well and gives its payload.
    async fn deliver(&mut self, cx: &Cx) -> String {
        let (delivery, end) = self.next(cx).await;
        end.send(Ok(())).expect("it is under way");
        delivery.decode().unwrap()
    }

    /// Whether no delivery begins for a while.
    async fn rests(&mut self, cx: &Cx) -> bool {
        cx.settle().await;
        self.begun.try_recv().is_err()
    }

    async fn stop(self) -> Result<()> {
        self.stop.stop();
        self.task.join().await
    }
}

/// What happens to a settlement.
enum Fault {
    /// Nothing is written.
    Before(Error),
    /// As before, but answered for the one item.
    OfItem(Error),
    /// It is written all the same.
    After(Error),
    /// It reaches the engine once the row lets it.
    Gate(oneshot::Receiver<()>),
}

/// Counts what an outbox asks of the engine, and answers with faults where it has any.
#[derive(Default)]
struct Script {
    claims: AtomicUsize,
    claim_faults: Mutex<VecDeque<Error>>,
    settlements: AtomicUsize,
    settlement_faults: Mutex<VecDeque<Fault>>,
}

impl Script {
    fn over(self, store: &Arc<dyn Store>) -> (Arc<Self>, Arc<dyn Store>) {
        let script = Arc::new(self);
        (script.clone(), layered(store.clone(), script))
    }

    /// A store whose next settlements meet these faults, heartbeats excepted.
    fn of_settlements(
        store: &Arc<dyn Store>,
        faults: impl IntoIterator<Item = Fault>,
    ) -> (Arc<Self>, Arc<dyn Store>) {
        let settlement_faults = Mutex::new(faults.into_iter().collect());
        Self { settlement_faults, ..Self::default() }.over(store)
    }

    /// A store whose next claims meet these faults.
    fn of_claims(
        store: &Arc<dyn Store>,
        faults: impl IntoIterator<Item = Error>,
    ) -> (Arc<Self>, Arc<dyn Store>) {
        let claim_faults = Mutex::new(faults.into_iter().collect());
        Self { claim_faults, ..Self::default() }.over(store)
    }

    fn claims(&self) -> usize {
        self.claims.load(Ordering::SeqCst)
    }

    fn settlements(&self) -> usize {
        self.settlements.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Layer for Script {
    async fn claim_jobs(
        &self,
        inner: &dyn Store,
        queue: &QueueName,
        worker: &LocalName,
        max: usize,
    ) -> Result<Claimed> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let fault = self.claim_faults.lock().unwrap().pop_front();
        match fault {
            Some(fault) => Err(fault),
            None => inner.claim_jobs(queue, worker, max).await,
        }
    }

    async fn settle_jobs(
        &self,
        inner: &dyn Store,
        items: Vec<Settlement>,
    ) -> Result<Vec<Result<Settled>>> {
        if items.iter().all(|item| matches!(item.action, SettleAction::Heartbeat { .. })) {
            return inner.settle_jobs(items).await;
        }
        self.settlements.fetch_add(1, Ordering::SeqCst);
        let fault = self.settlement_faults.lock().unwrap().pop_front();
        match fault {
            None => inner.settle_jobs(items).await,
            Some(Fault::Before(fault)) => Err(fault),
            Some(Fault::OfItem(fault)) => Ok(vec![Err(fault)]),
            Some(Fault::After(fault)) => {
                inner.settle_jobs(items).await?;
                Err(fault)
            }
            Some(Fault::Gate(gate)) => {
                let _ = gate.await;
                inner.settle_jobs(items).await
            }
        }
    }
}

fn unavailable() -> Error {
    Error::unavailable("busy")
}

fn commit_unknown() -> Error {
    Error::commit_unknown("cut off")
}

/// Asserts that a delivery waits for its first attempt, as if nobody had touched it.
fn assert_untouched(record: &JobRecord) {
    assert_eq!((record.state, record.attempt), (JobState::Pending, 0), "{record:?}");
}

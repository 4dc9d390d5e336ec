//! Heartbeats: claims that the worker holds are extended at a third of their visibility timeout,
//! all of the same length together.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use alkstore_core::{
    BoxFuture, ClaimToken, Error, JobId, Lease, Result, SettleAction, Settled, Settlement,
};
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::claim::{Claim, Staged};
use super::report;
use super::runtime::Runtime;
use super::time::{Backoff, now};

/// How many are extended in one call.
const BATCH: usize = 512;

/// A claimed job that waits longer than this for its slot is given back.
const TIDY: Duration = Duration::from_secs(1);

type Key = (JobId, ClaimToken);

fn key(claim: &Claim) -> Key {
    (claim.reference.id, claim.reference.token)
}

/// What is to be begun.
#[derive(Debug)]
pub(super) enum Ask {
    Beats(Duration),
    Tidying,
}

pub(super) type Asks = UnboundedReceiver<Ask>;

#[derive(Debug, Default)]
struct Held {
    claims: HashMap<Key, Arc<Claim>>,
    /// The lengths that have a timer.
    beating: HashSet<Duration>,
    tidying: bool,
}

#[derive(Debug)]
pub(super) struct Keeper {
    held: Mutex<Held>,
    asks: UnboundedSender<Ask>,
}

impl Keeper {
    pub(super) fn new() -> (Self, Asks) {
        let (asks, asked) = unbounded_channel();
        (Self { held: Mutex::default(), asks }, asked)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends these claims from now on, until each is forgotten or lost.
    pub(super) fn hold(&self, claims: impl Iterator<Item = Arc<Claim>>) {
        let mut held = self.lock();
        for claim in claims {
            if held.beating.insert(claim.length) {
                self.ask(Ask::Beats(claim.length));
            }
            held.claims.insert(key(&claim), claim);
        }
    }

    pub(super) fn forget<'a>(&self, claims: impl Iterator<Item = &'a Claim>) {
        let mut held = self.lock();
        for claim in claims {
            held.claims.remove(&key(claim));
        }
    }

    /// Looks after the buffer while there is something in it.
    pub(super) fn tidy(&self) {
        let mut held = self.lock();
        if !held.tidying {
            held.tidying = true;
            self.ask(Ask::Tidying);
        }
    }

    fn ask(&self, ask: Ask) {
        // Where nobody listens any more, the worker is at its end.
        let _ = self.asks.send(ask);
    }

    /// What of a length is to be extended; its timer ends where there is nothing.
    fn due(&self, length: Duration) -> Vec<Arc<Claim>> {
        let mut held = self.lock();
        let due: Vec<_> =
            held.claims.values().filter(|claim| claim.length == length).cloned().collect();
        if due.is_empty() {
            held.beating.remove(&length);
        }
        due
    }
}

enum Event {
    Due(Duration),
    Beaten(Beat, Instant, Result<Vec<Result<Settled>>>),
    Again(Beat),
    Tidy,
    Closed,
}

/// Claims that are extended in one call.
struct Beat {
    claims: Vec<Arc<Claim>>,
    tries: u32,
}

type Events = FuturesUnordered<BoxFuture<'static, Event>>;

/// Extends what is held, as long as the store is open.
pub(super) async fn run(rt: Arc<Runtime>, mut asked: Asks) -> Result<()> {
    let mut events = Events::new();
    loop {
        let event = tokio::select! {
            biased;
            Some(ask) = asked.recv() => {
                match ask {
                    Ask::Beats(length) => events.push(timer(&rt, length)),
                    Ask::Tidying => events.push(after(&rt, TIDY, || Event::Tidy)),
                }
                continue;
            }
            Some(event) = events.next() => event,
        };
        match event {
            Event::Due(length) => {
                let due = rt.keeper.due(length);
                if !due.is_empty() {
                    events.push(timer(&rt, length));
                    begin(&rt, due, &events);
                }
            }
            Event::Beaten(beat, asked, Ok(results)) if results.len() == beat.claims.len() => {
                rt.health.progress();
                beaten(&rt, beat, asked, results, &events);
            }
            Event::Beaten(.., Err(Error::Closed)) | Event::Closed => return Err(Error::Closed),
            Event::Beaten(beat, _, result) => {
                let error = result.err().unwrap_or_else(|| {
                    Error::engine("the engine answered a batch with another number of results")
                });
                rt.fault("heartbeat", &error);
                again(&rt, beat, &events);
            }
            Event::Again(beat) => events.push(call(&rt, beat)),
            Event::Tidy => {
                if rt.give_back_stale() {
                    events.push(after(&rt, TIDY, || Event::Tidy));
                } else {
                    rt.keeper.lock().tidying = false;
                    // What came in between the look and this asked for nothing.
                    if rt.slots.counts().1 > 0 {
                        rt.keeper.tidy();
                    }
                }
            }
        }
    }
}

fn after(
    rt: &Arc<Runtime>,
    pause: Duration,
    event: impl FnOnce() -> Event + Send + 'static,
) -> BoxFuture<'static, Event> {
    let store = rt.store.clone();
    async move {
        match store.sleep(pause).await {
            Ok(()) => event(),
            Err(_) => Event::Closed,
        }
    }
    .boxed()
}

fn timer(rt: &Arc<Runtime>, length: Duration) -> BoxFuture<'static, Event> {
    after(rt, length / 3, move || Event::Due(length))
}

fn begin(rt: &Arc<Runtime>, due: Vec<Arc<Claim>>, events: &Events) {
    // What a handler acked in a transaction may have to wait for its end: apart.
    let (staged, due): (Vec<_>, Vec<_>) = due
        .into_iter()
        .filter(|claim| !claim.beating.swap(true, std::sync::atomic::Ordering::SeqCst))
        .partition(|claim| claim.staged() != Staged::No);
    for claims in due.chunks(BATCH).chain(staged.chunks(BATCH)) {
        events.push(call(rt, Beat { claims: claims.to_vec(), tries: 0 }));
    }
}

fn call(rt: &Arc<Runtime>, beat: Beat) -> BoxFuture<'static, Event> {
    let store = rt.store.clone();
    async move {
        let item = |claim: &Arc<Claim>| Settlement {
            claim: claim.reference.clone(),
            action: SettleAction::Heartbeat { extend: Lease::saturating(claim.length) },
        };
        let (asked, items) = (now(), beat.claims.iter().map(item).collect());
        let results = store.settle_jobs(items).await;
        Event::Beaten(beat, asked, results)
    }
    .boxed()
}

fn beaten(
    rt: &Arc<Runtime>,
    beat: Beat,
    asked: Instant,
    results: Vec<Result<Settled>>,
    events: &Events,
) {
    let mut left = Vec::new();
    for (claim, result) in beat.claims.into_iter().zip(results) {
        match result {
            Ok(settled) => {
                if let Settled::Held(deadline) = settled {
                    claim.extended(deadline.into(), asked);
                }
                claim.beating.store(false, std::sync::atomic::Ordering::SeqCst);
            }
            Err(Error::ClaimLost { .. }) => lost(rt, &claim),
            Err(error) => {
                rt.fault("heartbeat", &error);
                left.push(claim);
            }
        }
    }
    again(rt, Beat { claims: left, tries: beat.tries }, events);
}

/// Tries again what is still held; a claim that has run out meanwhile is lost.
fn again(rt: &Arc<Runtime>, beat: Beat, events: &Events) {
    let Beat { claims, tries } = beat;
    let claims: Vec<_> = claims
        .into_iter()
        .filter(|claim| {
            let lapsed = claim.remaining().is_zero();
            if lapsed {
                lost(rt, claim);
            }
            !lapsed && rt.keeper.lock().claims.contains_key(&key(claim))
        })
        .collect();
    let Some(least) = claims.iter().map(|claim| claim.length).min() else { return };
    let pause = Backoff::after(tries).min(least / 6);
    let beat = Beat { claims, tries: tries.saturating_add(1) };
    events.push(after(rt, pause, move || Event::Again(beat)));
}

/// A claim is gone. Where it was being settled, or acked in a transaction, that is the reason,
/// and its settlement will tell.
fn lost(rt: &Runtime, claim: &Arc<Claim>) {
    let known = rt.keeper.lock().claims.remove(&key(claim)).is_some();
    if known && claim.staged() == Staged::No && !claim.is_settling() {
        claim.lose();
        report::lost(&rt.lanes[claim.lane], claim);
    }
}

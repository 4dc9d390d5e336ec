//! The state that all handles share, and the view of it that one operation has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use alkstore_core::{LockName, QueueName, ScheduleName, StreamName};
use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::clock::{Clock, Reading};
use crate::lock::LockState;
use crate::notify::Listeners;
use crate::observe::{Observer, Tap};
use crate::queue::QueueState;
use crate::schedule::ScheduleState;
use crate::stream::StreamState;
use crate::tx::Staged;
use crate::wake::{Topics, Wakes};

/// What every store on the same data shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    state: Apart<Mutex<State>>,
    /// Somebody's transaction ended: what waited for it tries again.
    pub(crate) tx_ended: Notify,
}

/// On cache lines of its own, so that whoever takes the lock leaves the clock beside it alone.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// What lies between two looks at the lock, in turns of a loop that does nothing. The short ones
/// take about as long as somebody else's call does where cores hand each other their data quickly:
/// they take turns then. Where they don't, the long one, some tens of microseconds, leaves the data
/// to one core for many calls. Who waits longer than that sleeps.
const PAUSES: [u32; 9] = [2, 2, 2, 2, 2, 2, 2, 2, 1_000];

impl Shared {
    pub(crate) fn new(clock: Arc<dyn Clock>, observer: Option<Arc<dyn Observer>>) -> Self {
        let state = State { tap: Tap(observer), ..State::default() };
        Self { clock, state: Apart(Mutex::new(state)), tx_ended: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        for turns in PAUSES {
            if let Some(state) = self.state.0.try_lock() {
                return state;
            }
            (0..turns).for_each(|_| std::hint::spin_loop());
        }
        self.state.0.lock()
    }
}

/// What every call on a queue touches comes first, on as few cache lines as can be.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct State {
    /// In boxes, so that a lookup reads cache lines that nobody writes.
    pub(crate) queues: HashMap<QueueName, Box<QueueState>, RandomState>,
    pub(crate) numbers: Numbers,
    pub(crate) topics: Topics,
    pub(crate) tap: Tap,
    pub(crate) streams: BTreeMap<StreamName, StreamState>,
    pub(crate) locks: BTreeMap<LockName, LockState>,
    pub(crate) schedules: BTreeMap<ScheduleName, ScheduleState>,
    pub(crate) listeners: Listeners,
}

impl State {
    /// A queue, which exists from now on.
    pub(crate) fn queue(&mut self, name: &QueueName) -> &mut QueueState {
        let name = match self.queues.get_key_value(name) {
            Some((known, _)) => known.clone(),
            // A copy: how many hold the caller's name changes with every job.
            None => QueueName::stored(name.as_str()),
        };
        self.queues.entry(name).or_default()
    }
}

/// Numbers that only grow.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) job: i64,
    pub(crate) claim: i64,
    pub(crate) tx: u64,
}

/// The state as one operation sees it: at one instant, and inside a transaction or not.
///
/// Every write primitive is written once, over this: outside of a transaction it takes effect at
/// once, inside it is staged.
pub(crate) struct View<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) time: Reading,
    pub(crate) wakes: &'a mut Wakes,
    pub(crate) tx: Option<&'a mut Staged>,
}

/// The operation has to wait for somebody else's transaction; it has changed nothing.
#[derive(Debug)]
pub(crate) struct Blocked;

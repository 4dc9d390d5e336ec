//! The state that all handles share, and the view of it that one operation has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use alkstore_core::{LockName, QueueName, ScheduleName, StreamName};
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

/// How long the lock is waited for awake, in turns of a loop that does nothing: some tens of
/// microseconds. Who holds it has its data in its core's cache and is let go on for a while; whoever
/// looks more often takes it, and the data, from core to core. Who waits longer than that sleeps.
const TURNS_AWAKE: u32 = 2_000;

impl Shared {
    pub(crate) fn new(clock: Arc<dyn Clock>, observer: Option<Arc<dyn Observer>>) -> Self {
        let state = State { tap: Tap(observer), ..State::default() };
        Self { clock, state: Apart(Mutex::new(state)), tx_ended: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        if let Some(state) = self.state.0.try_lock() {
            return state;
        }
        (0..TURNS_AWAKE).for_each(|_| std::hint::spin_loop());
        self.state.0.lock()
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) queues: HashMap<QueueName, QueueState>,
    pub(crate) streams: BTreeMap<StreamName, StreamState>,
    pub(crate) locks: BTreeMap<LockName, LockState>,
    pub(crate) schedules: BTreeMap<ScheduleName, ScheduleState>,
    pub(crate) listeners: Listeners,
    pub(crate) topics: Topics,
    pub(crate) numbers: Numbers,
    pub(crate) tap: Tap,
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

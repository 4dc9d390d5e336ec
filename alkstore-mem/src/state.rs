//! The state that all handles share, and the view of it that one operation has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use alkstore_core::{LockName, QueueName, ScheduleName, StreamName};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::{Clock, Reading};
use crate::lock::LockState;
use crate::notify::Listeners;
use crate::queue::QueueState;
use crate::schedule::ScheduleState;
use crate::stream::StreamState;
use crate::tx::Staged;
use crate::wake::{Topics, Wakes};

/// What every store on the same data shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) state: Mutex<State>,
    /// Somebody's transaction ended: what waited for it tries again.
    pub(crate) tx_ended: Notify,
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

//! What is acquired comes back where nobody takes it: its caller may be gone before it hears of it.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use alkstore_core::{Error, Result};
use futures_util::future::select;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, pause};
use crate::group::Progress;
use crate::hub::Hub;
use crate::sql::{Outcome, Write};
use crate::store::Open;
use crate::writer::Size;

/// How long a read waits for what is on its way back.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is on its way back: a read that begins after something was dropped shows it given back.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    under_way: AtomicUsize,
    arrived: Notify,
}

impl Returns {
    fn left(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    fn arrived(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.arrived.notify_waiters();
    }

    /// Ends once everything has arrived, or when that takes too long: another process may hold
    /// the file.
    pub(crate) async fn all_arrived(&self) {
        if self.under_way.load(Ordering::SeqCst) == 0 {
            return;
        }
        let arrived = async {
            loop {
                let mut arrived = pin!(self.arrived.notified());
                arrived.as_mut().enable();
                if self.under_way.load(Ordering::SeqCst) == 0 {
                    return;
                }
                arrived.await;
            }
        };
        select(pin!(arrived), pin!(pause(PATIENCE))).await;
    }
}

/// A write that gives something back.
pub(crate) type GiveBack = Box<dyn FnMut(&mut Write<'_>) -> Outcome<()> + Send>;

/// Gives something back without waiting.
pub(crate) fn give_back(hub: &Arc<Hub>, clock: &Arc<dyn Clock>, run: GiveBack) {
    hub.returns.left();
    let returned = hub.clone();
    hub.writer.give_back(clock.clone(), run, move |_| returned.returns.arrived());
}

const UNDER_WAY: u8 = 0;
const ABANDONED: u8 = 1;
const ENDED: u8 = 2;

/// Where an acquisition stands: whether its caller is gone, and whether it has ended.
struct Ticket {
    state: AtomicU8,
    hub: Weak<Hub>,
}

impl Ticket {
    fn abandon(&self) {
        let order = Ordering::SeqCst;
        if let Some(hub) = self.hub.upgrade() {
            // Counted first, so that it can't arrive before it has left.
            hub.returns.left();
            if self.state.compare_exchange(UNDER_WAY, ABANDONED, order, order).is_err() {
                hub.returns.arrived();
            }
        }
    }

    /// It was taken, has failed, or is back.
    fn end(&self) {
        if self.state.swap(ENDED, Ordering::SeqCst) == ABANDONED
            && let Some(hub) = self.hub.upgrade()
        {
            hub.returns.arrived();
        }
    }
}

/// The one who waits for an acquisition.
struct Caller {
    ticket: Arc<Ticket>,
    progress: Progress,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.progress.has_begun() {
            self.ticket.abandon();
        }
    }
}

/// Something on its way to who acquired it.
struct Handed<T, R: FnOnce(T) -> Option<GiveBack>> {
    value: Option<(T, R)>,
    ticket: Arc<Ticket>,
    clock: Arc<dyn Clock>,
}

impl<T, R: FnOnce(T) -> Option<GiveBack>> Drop for Handed<T, R> {
    fn drop(&mut self) {
        let Some((value, return_it)) = self.value.take() else { return };
        let ticket = self.ticket.clone();
        match (ticket.hub.upgrade(), return_it(value)) {
            (Some(hub), Some(run)) => {
                hub.writer.give_back(self.clock.clone(), run, move |_| ticket.end());
            }
            _ => ticket.end(),
        }
    }
}

impl Open {
    /// Runs a write that acquires something; `return_it` says how that is given back, where there
    /// is anything, if its caller is gone before it has it.
    pub(crate) async fn acquire<T: Send + 'static>(
        &self,
        size: Size,
        run: impl FnMut(&mut Write<'_>) -> Outcome<T> + Send + 'static,
        return_it: impl FnOnce(T) -> Option<GiveBack> + Send + 'static,
    ) -> Result<T> {
        self.usable()?;
        let (answer, answered) = oneshot::channel();
        let clock = self.options.clock.clone();
        let hub = Arc::downgrade(&self.hub);
        let ticket = Arc::new(Ticket { state: AtomicU8::new(UNDER_WAY), hub });
        let answering = {
            let (ticket, clock) = (ticket.clone(), clock.clone());
            move |result: Result<T>| {
                if result.is_err() {
                    ticket.end();
                }
                let value = |value| Handed { value: Some((value, return_it)), ticket, clock };
                drop(answer.send(result.map(value)));
            }
        };
        let (place, turn) = self.hub.writer.write(&self.hub, clock, (size, run), answering)?;
        let _caller = Caller { ticket: ticket.clone(), progress: place.progress() };
        self.take(turn, &place).await;
        let mut handed = self.answer(place, answered).await?;
        ticket.end();
        let value = handed.value.take().map(|(value, _)| value);
        value.ok_or_else(|| Error::engine("an acquisition was handed over twice"))
    }
}

//! What is acquired comes back where nobody takes it: its caller may be gone before it hears of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alkstore_core::{BoxFuture, Error, Result};
use futures_util::future::select;
use tokio::sync::{Notify, oneshot};

use crate::clock::pause;
use crate::error::{Outcome, Stage};
use crate::sql::Sql;
use crate::store::{Open, unless};

/// How long a call waits for what is on its way back.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is on its way back: a call that begins after something was dropped finds it given back.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    under_way: AtomicUsize,
    arrived: Notify,
}

/// One thing that is on its way back, until this is dropped.
#[derive(Debug)]
pub(crate) struct Return(Arc<Open>);

impl Return {
    pub(crate) fn begin(open: &Arc<Open>) -> Self {
        open.returns.under_way.fetch_add(1, Ordering::SeqCst);
        Self(open.clone())
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        let returns = &self.0.returns;
        returns.under_way.fetch_sub(1, Ordering::SeqCst);
        returns.arrived.notify_waiters();
    }
}

impl Returns {
    /// Ends once everything has arrived, or when that takes too long.
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

/// How something is given back.
pub(crate) type GiveBack = Box<dyn for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<()>> + Send + Sync>;

/// Gives something back without waiting.
pub(crate) fn give_back(open: &Arc<Open>, run: GiveBack) {
    let under_way = Return::begin(open);
    let open = open.clone();
    open.clone().spawn(async move {
        // Its lease ends it where this fails.
        let _ = open.on_connection(Stage::Harmless, &run).await;
        drop(under_way);
    });
}

/// Something on its way to who acquired it.
struct Handed<T, R: FnOnce(T) -> Option<GiveBack>> {
    value: Option<(T, R)>,
    open: Arc<Open>,
    /// Until it is known to be taken it may have to come back.
    _under_way: Option<Return>,
}

impl<T, R: FnOnce(T) -> Option<GiveBack>> Drop for Handed<T, R> {
    fn drop(&mut self) {
        if let Some((value, return_it)) = self.value.take()
            && let Some(run) = return_it(value)
        {
            give_back(&self.open, run);
        }
    }
}

/// The one who waits for an acquisition: gone before it ended, the acquisition is on its way back.
struct Caller {
    open: Arc<Open>,
    gone: Option<oneshot::Sender<Return>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(gone) = self.gone.take() {
            // Where nobody takes it, the acquisition has ended.
            drop(gone.send(Return::begin(&self.open)));
        }
    }
}

impl Open {
    /// Runs a write that acquires something; `return_it` says how that is given back, where there
    /// is anything, if its caller is gone before it has it.
    pub(crate) async fn acquire<T: Send + 'static>(
        self: &Arc<Self>,
        run: impl for<'c> Fn(Sql<'c>) -> BoxFuture<'c, Outcome<T>> + Send + Sync + 'static,
        return_it: impl FnOnce(T) -> Option<GiveBack> + Send + 'static,
    ) -> Result<T> {
        self.usable()?;
        self.returns.all_arrived().await;
        let (answer, answered) = oneshot::channel();
        let (gone, caller_gone) = oneshot::channel();
        let mut caller = Caller { open: self.clone(), gone: Some(gone) };
        let open = self.clone();
        self.spawn(async move {
            let mut caller_gone = caller_gone;
            let mut answer = answer;
            // Once it is sent it comes to its end.
            let Some(conn) = unless(answer.closed(), open.pool.acquire()).await else { return };
            let outcome = match conn {
                Ok(conn) => open.on_this(conn, Stage::Sent, &run).await,
                Err(error) => Err(error),
            };
            let under_way = caller_gone.try_recv().ok();
            let handed = outcome.map(|value| Handed {
                value: Some((value, return_it)),
                open: open.clone(),
                _under_way: under_way,
            });
            drop(answer.send(handed));
            drop(caller_gone);
        });
        let answer = answered.await;
        caller.gone = None;
        let mut handed = answer.unwrap_or(Err(Error::Closed))?;
        let value = handed.value.take().map(|(value, _)| value);
        value.ok_or_else(|| Error::engine("an acquisition was handed over twice"))
    }
}

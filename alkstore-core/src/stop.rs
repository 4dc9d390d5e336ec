//! How a loop is told to end.

use std::future::Future;

use tokio_util::sync::CancellationToken;

/// Tells loops to end: [`stop`](Self::stop) lets them finish what they hold,
/// [`abort`](Self::abort) is the second signal and drops it.
///
/// Clones share the signal.
///
/// # Examples
///
/// ```
/// use alkstore_core::StopToken;
///
/// let stop = StopToken::new();
/// let seen_by_the_loop = stop.clone();
/// stop.stop();
/// assert!(seen_by_the_loop.is_stopped() && !seen_by_the_loop.is_aborted());
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopToken {
    stop: CancellationToken,
    abort: CancellationToken,
}

impl StopToken {
    /// A token that nobody has stopped yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks loops to finish what they hold and to end.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether [`stop`](Self::stop) or [`abort`](Self::abort) was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until [`stop`](Self::stop) or [`abort`](Self::abort) is called.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + '_ {
        self.stop.cancelled()
    }

    /// Asks loops to end at once: handlers are dropped, nothing is drained.
    pub fn abort(&self) {
        self.abort.cancel();
        self.stop.cancel();
    }

    /// Whether [`abort`](Self::abort) was called.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.abort.is_cancelled()
    }

    /// Waits until [`abort`](Self::abort) is called.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub fn aborted(&self) -> impl Future<Output = ()> + Send + '_ {
        self.abort.cancelled()
    }
}

impl From<CancellationToken> for StopToken {
    /// Cancelling the token is [`stop`](StopToken::stop), and the other way round.
    fn from(stop: CancellationToken) -> Self {
        Self { stop, abort: CancellationToken::new() }
    }
}

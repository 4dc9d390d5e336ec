//! What rows of several mechanisms work with.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use alkstore_core::Payload;
use futures_util::task::AtomicWaker;

/// Fails where a result isn't the error of that pattern.
macro_rules! refused {
    ($result:expr, $($error:tt)+) => {
        match $result {
            Err($($error)+) => {}
            other => panic!("expected {}, got {other:?}", stringify!($($error)+)),
        }
    };
}
pub(super) use refused;

/// An instant so long before 1970; 1970 where the target, as wasm, has none before it.
pub(super) fn before_1970(by: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A waker that counts its wakes, and that shows whether anybody still holds it.
#[derive(Default)]
pub(super) struct Witness {
    wakes: AtomicUsize,
    task: AtomicWaker,
}

impl Wake for Witness {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.task.wake();
    }
}

impl Witness {
    /// How often it was woken.
    pub(super) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }

    /// Whether nobody else holds it.
    pub(super) fn is_alone(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    /// Awaits a future, which sees no other waker than this.
    pub(super) async fn watch<F: Future>(self: Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(self.clone());
        poll_fn(|cx| {
            self.task.register(cx.waker());
            future.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }
}

/// Lets others run.
pub(super) async fn give_way() {
    let mut gave_way = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A payload of exactly so many bytes, at least two.
pub(super) fn payload_of(bytes: usize) -> Payload {
    Payload::from_json_text(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap()
}

/// Names that differ, though a comparison less strict than byte for byte takes some for equal.
pub(super) fn names_alike() -> Vec<String> {
    let long = "n".repeat(254);
    let alike =
        ["name", "Name", "caf\u{e9}", "cafe\u{301}", "a b", "a  b", "a%", "a_", "it's \"x\""];
    alike.map(String::from).into_iter().chain([format!("{long}1"), format!("{long}2")]).collect()
}

/// Names that break the rule for every name.
pub(super) fn bad_names() -> Vec<String> {
    let bad = ["", " a", "a ", "\u{3000}a", "a\nb", "a\u{0}b", "a\u{85}b"];
    bad.map(String::from).into_iter().chain(["n".repeat(256), "\u{e9}".repeat(128)]).collect()
}

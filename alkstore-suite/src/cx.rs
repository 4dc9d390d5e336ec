//! What a row works with.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use alkstore_core::{BoxFuture, Store, Timestamp};
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable, Either, RemoteHandle, select};

use crate::factory::{Capabilities, Data, OpenOptions, StoreFactory};

/// How long a row watches, in real time, that something doesn't happen.
const QUIET: Duration = Duration::from_millis(15);

/// A row's own data, the first store on it, and the means to move time and run things beside it.
pub struct Cx {
    factory: Arc<dyn StoreFactory>,
    data: Arc<dyn Data>,
    /// The first store on the data, opened with default options.
    pub store: Arc<dyn Store>,
}

impl Cx {
    pub(crate) async fn new(factory: Arc<dyn StoreFactory>) -> Self {
        let data = factory.fresh().await;
        let store = data.open(OpenOptions::default()).await.expect("a fresh store opens");
        Self { factory, data, store }
    }

    /// A context with data of its own, which sees nothing of this one.
    pub async fn isolated(&self) -> Self {
        Self::new(self.factory.clone()).await
    }

    /// What the engine declares.
    pub fn capabilities(&self) -> Capabilities {
        self.factory.capabilities()
    }

    /// The data itself, for what the shortcuts here don't cover.
    pub fn data(&self) -> &Arc<dyn Data> {
        &self.data
    }

    /// Opens another, independent store on the same data.
    pub async fn open(&self, options: OpenOptions) -> Arc<dyn Store> {
        self.data.open(options).await.expect("a further store opens on the same data")
    }

    /// Opens another, independent store on the same data with default options.
    pub async fn second(&self) -> Arc<dyn Store> {
        self.open(OpenOptions::default()).await
    }

    /// Moves the clock.
    pub async fn advance(&self, by: Duration) {
        self.data.advance(by).await;
    }

    /// What the engine's clock shows.
    pub async fn now(&self) -> Timestamp {
        self.data.now().await
    }

    /// Runs a future beside the row.
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let (abort, registration) = AbortHandle::new_pair();
        let done = Arc::new(AtomicBool::new(false));
        let finished = done.clone();
        let (job, result) = async move {
            let result = Abortable::new(future, registration).await;
            finished.store(true, Ordering::SeqCst);
            result
        }
        .remote_handle();
        self.factory.spawn(job.boxed());
        Task { factory: self.factory.clone(), abort, done, result }
    }

    /// Runs futures beside the row, let go at the same moment, and gives their results in order.
    pub async fn together<T: Send + 'static>(
        &self,
        futures: impl IntoIterator<Item = BoxFuture<'static, T>>,
    ) -> Vec<T> {
        let (open, gate) = oneshot::channel::<()>();
        let gate = gate.shared();
        let tasks: Vec<_> = futures
            .into_iter()
            .map(|future| {
                let gate = gate.clone();
                self.spawn(async move {
                    let _ = gate.await;
                    future.await
                })
            })
            .collect();
        let _ = open.send(());
        let mut results = Vec::with_capacity(tasks.len());
        for task in tasks {
            results.push(task.join().await);
        }
        results
    }

    /// Awaits what has to happen; the row fails where it doesn't within the factory's patience.
    pub async fn within<T>(&self, future: impl Future<Output = T>) -> T {
        let patience = self.factory.patience();
        let timeout = self.factory.sleep(patience);
        match select(pin!(future), timeout).await {
            Either::Left((value, _)) => value,
            Either::Right(_) => panic!("nothing happened within {patience:?}"),
        }
    }

    /// Polls a future for a short real time, to see that it does *not* end: `None` then.
    pub async fn briefly<F: Future + Unpin>(&self, future: &mut F) -> Option<F::Output> {
        match select(future, self.factory.sleep(QUIET)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// Lets everything beside the row run for a short real time, so that it has come to rest.
    pub async fn settle(&self) {
        self.factory.sleep(QUIET).await;
    }

    /// Waits until a condition holds, looking again and again.
    pub async fn until<F, Fut>(&self, mut holds: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        self.within(async {
            while !holds().await {
                self.factory.sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Moves time on in steps, with a short real pause after each, until the future ends. For
    /// what waits on the engine's clock several times over, and for what some engines measure in
    /// real time.
    pub async fn advancing<T>(&self, step: Duration, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut waited = Duration::ZERO;
        loop {
            let pause = Duration::from_millis(1);
            match select(future.as_mut(), self.factory.sleep(pause)).await {
                Either::Left((value, _)) => return value,
                Either::Right(_) => self.advance(step).await,
            }
            waited += pause;
            assert!(waited < self.factory.patience(), "nothing happened while time went on");
        }
    }
}

/// A future that runs beside the row. Dropped, it is cancelled.
#[must_use = "a task that is dropped is cancelled"]
pub struct Task<T> {
    factory: Arc<dyn StoreFactory>,
    abort: AbortHandle,
    done: Arc<AtomicBool>,
    result: RemoteHandle<Result<T, futures_util::future::Aborted>>,
}

impl<T: Send + 'static> Task<T> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// Drops the future where it stands and waits until that is done.
    pub async fn cancel(self) {
        self.abort.abort();
        let _ = self.result.await;
    }

    /// Its result; the row fails where it doesn't end within the factory's patience. A panic in
    /// it goes on here.
    pub async fn join(self) -> T {
        let patience = self.factory.patience();
        match select(self.result, self.factory.sleep(patience)).await {
            Either::Left((Ok(value), _)) => value,
            Either::Left((Err(_), _)) => panic!("the task was cancelled"),
            Either::Right(_) => panic!("a task didn't end within {patience:?}"),
        }
    }
}

/// Drops a future after its first poll, then one after its second, and so on, until one comes to
/// its end, whose result is returned. `dropped` looks at the store after each drop.
pub async fn drop_at_every_await<T, M, F, D, Fut>(mut make: M, mut dropped: D) -> T
where
    M: FnMut() -> F,
    F: Future<Output = T>,
    D: FnMut() -> Fut,
    Fut: Future<Output = ()>,
{
    for polls in 0..1_000 {
        let mut future = Box::pin(make());
        if let Some(value) = poll_times(future.as_mut(), polls).await {
            return value;
        }
        drop(future);
        dropped().await;
    }
    panic!("the future doesn't end");
}

/// Polls a future so many times and gives its result where it ended.
async fn poll_times<F: Future>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    let mut polled = 0;
    poll_fn(|cx: &mut Context<'_>| {
        if polled == times {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polled == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

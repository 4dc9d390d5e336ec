//! What it costs that commits notify: Postgres serializes those that do.

use std::sync::Arc;
use std::time::Duration;

use alkstore::{EnqueueOpts, PgStore, StoreExt};
use parking_lot::Mutex;

use super::{DATABASE, database, empty};
use crate::handles::{payload, repeat};
use crate::measure::{Reading, pause};

/// When something else of the queue falls due: what falls due later wakes nobody.
pub const OTHERS_DUE: Duration = Duration::from_secs(1_800);

/// Lends each of many to one call at a time.
pub fn exclusively<T>(all: Vec<T>) -> impl Fn() -> Lent<T> + Clone + Send + 'static
where
    T: Send + 'static,
{
    let free = Arc::new(Mutex::new(all));
    move || Lent { lent: free.lock().pop(), back: free.clone() }
}

/// One of many, until this is dropped.
#[derive(Debug)]
pub struct Lent<T> {
    lent: Option<T>,
    back: Arc<Mutex<Vec<T>>>,
}

impl<T> Lent<T> {
    pub fn get(&mut self) -> anyhow::Result<&mut T> {
        self.lent.as_mut().ok_or_else(|| anyhow::anyhow!("more calls than there is to lend"))
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        self.back.lock().extend(self.lent.take());
    }
}

/// Single enqueues by so many stores of one connection each, beside a store that listens. Each
/// commit tells that a job is ready, or none does: their jobs fall due later than others.
pub async fn committers(count: usize, wake: bool) -> anyhow::Result<Reading> {
    let listening = empty().await?;
    let delay = if wake { Duration::ZERO } else { 2 * OTHERS_DUE };
    let first = EnqueueOpts::new().delay(OTHERS_DUE);
    listening.queue("q")?.enqueue_with(payload()?, first).await?;
    let waiter = listening.queue("other")?;
    let waiting = tokio::spawn(async move { waiter.next("w").await });
    pause(Duration::from_millis(20)).await;
    let (url, _) = database(DATABASE).await?;
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(PgStore::builder(&url).max_connections(1).connect().await?);
    }
    let queues: Result<Vec<_>, _> = stores.iter().map(|store| store.queue("q")).collect();
    let (lend, payload) = (exclusively(queues?), payload()?);
    let reading = repeat(count, move || {
        let (mut queue, payload) = (lend(), payload.clone());
        async move {
            queue.get()?.enqueue_with(payload, EnqueueOpts::new().delay(delay)).await?;
            Ok(1)
        }
    })
    .await;
    waiting.abort();
    for store in stores.iter().chain([&listening]) {
        store.close().await?;
    }
    reading
}

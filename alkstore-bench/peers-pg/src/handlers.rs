//! The workloads of peers that hand out jobs to handlers only, in a worker of their own.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use alkstore_bench::handles::{self, WAKES};
use alkstore_bench::measure::{Reading, now};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// As many as alkstore has.
pub const CONNECTIONS: u32 = 10;

/// How many handlers wait for single jobs. underway misses what comes while its only slot looks for
/// the last time, for a minute, so that one is too few.
pub const FEW: usize = 2;

/// How many handlers are many.
pub const MANY: usize = 32;

/// What a job carries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Body {
    body: String,
}

impl Body {
    pub fn new() -> anyhow::Result<Self> {
        Ok(serde_json::from_str(&handles::payload_text())?)
    }
}

/// Where a handler tells that it runs; it does nothing else.
#[derive(Debug, Clone)]
pub struct Told {
    count: Arc<AtomicU64>,
    times: mpsc::UnboundedSender<Instant>,
}

impl Told {
    fn new() -> (Self, mpsc::UnboundedReceiver<Instant>) {
        let (times, heard) = mpsc::unbounded_channel();
        (Self { count: Arc::default(), times }, heard)
    }

    pub fn tell(&self, body: &Body) {
        if body.body.starts_with('x') {
            self.count.fetch_add(1, Ordering::SeqCst);
            let _ = self.times.send(now());
        }
    }
}

/// A queue of a peer's.
pub trait Peer: Clone + Send + Sync + 'static {
    /// A queue with nothing in it.
    fn empty() -> impl Future<Output = anyhow::Result<Self>>;

    fn enqueue(&self) -> impl Future<Output = anyhow::Result<u64>> + Send;

    fn enqueue_many(&self, count: usize) -> impl Future<Output = anyhow::Result<u64>> + Send;

    /// Starts a worker that runs so many handlers at once, and goes on until the runtime ends.
    fn start(&self, at_once: usize, told: Told) -> impl Future<Output = anyhow::Result<()>>;
}

pub async fn enqueue<P: Peer>(tasks: usize) -> anyhow::Result<Reading> {
    let peer = P::empty().await?;
    handles::repeat(tasks, move || {
        let peer = peer.clone();
        async move { peer.enqueue().await }
    })
    .await
}

pub async fn enqueue_many<P: Peer>(batch: usize) -> anyhow::Result<Reading> {
    let peer = P::empty().await?;
    handles::repeat(1, move || {
        let peer = peer.clone();
        async move { peer.enqueue_many(batch).await }
    })
    .await
}

/// From the first handler to the last.
pub async fn drain<P: Peer>(at_once: usize, backlog: u64) -> anyhow::Result<Reading> {
    let peer = P::empty().await?;
    let mut left = usize::try_from(backlog)?;
    while left > 0 {
        let page = left.min(1_000);
        peer.enqueue_many(page).await?;
        left -= page;
    }
    let (told, mut heard) = Told::new();
    peer.start(at_once, told).await?;
    let mut next = async || {
        let heard = heard.recv().await;
        heard.ok_or_else(|| anyhow::anyhow!("the worker has ended"))
    };
    let first = next().await?;
    let mut last = first;
    for _ in 1..backlog {
        last = last.max(next().await?);
    }
    Ok(Reading::Rate { count: backlog - 1, took: last.duration_since(first) })
}

/// Two producers, and four handlers at once.
pub async fn pipeline<P: Peer>(in_flight: usize) -> anyhow::Result<Reading> {
    let peer = P::empty().await?;
    let (told, _heard) = Told::new();
    let done = told.count.clone();
    peer.start(4, told).await?;
    let enqueue = move || {
        let peer = peer.clone();
        async move { peer.enqueue().await }
    };
    handles::flow(2 * in_flight, enqueue, &done).await
}

pub async fn wake<P: Peer>() -> anyhow::Result<Reading> {
    let peer = P::empty().await?;
    let (told, heard) = Told::new();
    peer.start(FEW, told).await?;
    // Until it listens.
    alkstore_bench::measure::pause(std::time::Duration::from_millis(100)).await;
    handles::woken(WAKES, async || peer.enqueue().await.map(drop), heard).await
}

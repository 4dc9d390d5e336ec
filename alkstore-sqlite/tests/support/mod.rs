//! The SQLite engine as a column of the suite.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{BoxFuture, Result, Store, Timestamp};
use alkstore_sqlite::{Clock, Durability, SqliteData, SqliteStore};
use alkstore_suite::{Capabilities, Data, OpenOptions, StoreFactory};
use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::Notify;

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub(crate) struct ManualClock {
    now: Mutex<Duration>,
    moved: Notify,
}

impl ManualClock {
    pub(crate) fn new() -> Self {
        // 2026-01-01T00:00:00Z
        Self { now: Mutex::new(Duration::from_secs(1_767_225_600)), moved: Notify::new() }
    }

    pub(crate) fn advance(&self, by: Duration) {
        {
            let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            *now = now.saturating_add(by);
        }
        self.moved.notify_waiters();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep_until(&self, instant: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let instant = instant.since(Timestamp::EPOCH);
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                moved.as_mut().enable();
                if self.now() >= instant {
                    return;
                }
                moved.await;
            }
        })
    }
}

/// A directory in memory where there is one: what is tested isn't the disk.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
}

pub(crate) struct SqliteFactory;

#[async_trait]
impl StoreFactory for SqliteFactory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            multi_process: true,
            unwinds: cfg!(panic = "unwind"),
            one_writer: true,
        }
    }

    async fn fresh(&self) -> Arc<dyn Data> {
        let directory = directory();
        let path = directory.path().join("suite.db");
        let clock = Arc::new(ManualClock::new());
        Arc::new(Fresh { _directory: directory, path, clock, data: Mutex::new(Vec::new()) })
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    #[expect(clippy::disallowed_methods, reason = "the suite's own waits are in real time")]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

struct Fresh {
    _directory: TempDir,
    path: PathBuf,
    clock: Arc<ManualClock>,
    data: Mutex<Vec<SqliteData>>,
}

#[async_trait]
impl Data for Fresh {
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        let mut builder = SqliteStore::builder(&self.path)
            .clock(self.clock.clone())
            .durability(Durability::Normal);
        if !options.safety_poll {
            builder = builder.safety_poll(None);
        }
        if let Some(limit) = options.payload_limit {
            builder = builder.payload_limit(limit);
        }
        if let Some(timeout) = options.lock_timeout {
            builder = builder.lock_timeout(timeout);
        }
        if let Some(limits) = options.listener {
            builder = builder.listener_limits(limits);
        }
        let store = builder.open().await?;
        self.data.lock().unwrap_or_else(PoisonError::into_inner).push(store.data());
        Ok(Arc::new(store))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        for data in &*self.data.lock().unwrap_or_else(PoisonError::into_inner) {
            data.wake_all();
        }
    }

    async fn now(&self) -> Timestamp {
        Timestamp::EPOCH.plus(self.clock.now())
    }

    fn location(&self) -> Option<String> {
        Some(self.path.display().to_string())
    }
}

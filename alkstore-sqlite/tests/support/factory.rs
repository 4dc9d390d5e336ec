//! The SQLite engine as a column of the suite.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{BoxFuture, Result, Store, Timestamp};
use alkstore_sqlite::{Clock, Durability, SqliteData, SqliteStore};
use alkstore_suite::{Capabilities, Data, OpenOptions, StoreFactory};
use async_trait::async_trait;
use tempfile::TempDir;

use crate::clock::ManualClock;
use crate::directory::directory;

pub(crate) struct SqliteFactory;

#[async_trait]
impl StoreFactory for SqliteFactory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            multi_process: true,
            unwinds: cfg!(panic = "unwind"),
            one_writer: true,
            one_connection: false,
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

    fn waits_in_real_time(&self) -> bool {
        true
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

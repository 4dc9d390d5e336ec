//! The memory engine as a column of the suite.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alkstore_core::{BoxFuture, Result, Store, Timestamp};
use alkstore_mem::{Clock, ManualClock, MemData, MemStore};
use alkstore_suite::{Capabilities, Data, OpenOptions, StoreFactory};
use async_trait::async_trait;

pub(crate) struct MemFactory;

#[async_trait]
impl StoreFactory for MemFactory {
    fn capabilities(&self) -> Capabilities {
        Capabilities { unwinds: cfg!(panic = "unwind"), ..Capabilities::default() }
    }

    async fn fresh(&self) -> Arc<dyn Data> {
        Arc::new(Fresh { clock: Arc::new(ManualClock::new()), data: Mutex::new(None) })
    }

    #[cfg(not(target_family = "wasm"))]
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    #[cfg(target_family = "wasm")]
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        wasm_bindgen_futures::spawn_local(future);
    }

    #[cfg(not(target_family = "wasm"))]
    #[expect(clippy::disallowed_methods, reason = "the suite's own waits are in real time")]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    #[cfg(target_family = "wasm")]
    async fn sleep(&self, duration: Duration) {
        send_wrapper::SendWrapper::new(gloo_timers::future::sleep(duration)).await;
    }
}

struct Fresh {
    clock: Arc<ManualClock>,
    /// The data live as long as a store on them does, not as long as this.
    data: Mutex<Option<MemData>>,
}

#[async_trait]
impl Data for Fresh {
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        let mut builder = MemStore::builder().clock(self.clock.clone());
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
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        let again = data.as_ref().and_then(|data| data.open(builder.clone()));
        let store = again.unwrap_or_else(|| builder.build());
        *data = Some(store.data());
        Ok(Arc::new(store))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        if let Some(data) = &*self.data.lock().unwrap_or_else(PoisonError::into_inner) {
            data.wake_all();
        }
    }

    async fn now(&self) -> Timestamp {
        Timestamp::EPOCH.plus(self.clock.now())
    }
}

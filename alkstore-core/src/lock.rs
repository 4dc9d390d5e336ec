//! Locks: leases by name, with fencing tokens.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::error::Result;
use crate::name::{LocalName, LockName};
use crate::store::Store;
use crate::time::{Countdown, Lease, Timestamp};
use crate::wake::{Topic, Wait};

/// The very acquisition that an operation holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRef {
    /// The lock.
    pub name: LockName,
    /// The acquisition.
    pub token: u64,
}

/// What an attempt to take a lock found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// It is the caller's.
    Held {
        /// The fencing token.
        token: u64,
        /// Until when.
        expires_at: Timestamp,
    },
    /// Somebody holds it.
    Busy {
        /// Until when, unless it is renewed or released.
        until: Timestamp,
    },
}

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's name.
    pub name: String,
    /// Who took it, in their own words.
    pub owner: String,
    /// The fencing token of the acquisition.
    pub token: u64,
    /// When it ends unless it is renewed.
    pub expires_at: SystemTime,
}

impl LockInfo {
    /// For engines: a lock that is held.
    #[must_use]
    pub fn new(lock: &LockRef, owner: &LocalName, expires_at: Timestamp) -> Self {
        Self {
            name: lock.name.to_string(),
            owner: owner.to_string(),
            token: lock.token,
            expires_at: expires_at.into(),
        }
    }
}

/// The lock primitives of an engine.
#[async_trait]
pub trait LockStore {
    /// Takes a lock that nobody holds. Each acquisition's token is larger than every earlier one
    /// of that name. A caller that is gone before it saw the lock gives it back.
    async fn acquire_lock(
        &self,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired>;

    /// Holds a lock for a full `ttl` from now; [`Error::LockLost`](crate::Error::LockLost) where
    /// this acquisition doesn't hold it.
    async fn renew_lock(&self, lock: &LockRef, ttl: Lease) -> Result<Timestamp>;

    /// Gives a lock back; [`Error::LockLost`](crate::Error::LockLost) where this acquisition
    /// doesn't hold it.
    async fn release_lock(&self, lock: &LockRef) -> Result<()>;

    /// Gives a lock back as best it can, without waiting: its handle was dropped.
    fn abandon_lock(&self, lock: &LockRef);

    /// The locks that are held, by name.
    async fn held_locks(&self) -> Result<Vec<LockInfo>>;
}

/// A lock that is held, until it is released or its ttl runs out.
///
/// Pass [`token`](Self::token) to whatever the lock protects and let that refuse a smaller one
/// than it has seen: a holder that was paused beyond its ttl can't do harm then. Dropping the
/// handle releases the lock as best it can; the ttl is the guarantee.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use alkstore_core::StoreExt;
/// use alkstore_mem::MemStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> alkstore_core::Result<()> {
/// let store = MemStore::new();
/// let ttl = Duration::from_secs(30);
/// let mut lock = store.lock("nightly-report", "host-a", ttl).await?;
/// assert!(store.try_lock("nightly-report", "host-b", ttl).await?.is_none());
/// lock.renew(ttl).await?;
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    store: Arc<dyn Store>,
    lock: LockRef,
    owner: LocalName,
    expires_at: Timestamp,
    countdown: Countdown,
    released: bool,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.lock.name)
            .field("owner", &self.owner)
            .field("token", &self.lock.token)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

impl Lock {
    pub(crate) async fn try_acquire(
        store: Arc<dyn Store>,
        name: LockName,
        owner: LocalName,
        ttl: Lease,
    ) -> Result<std::result::Result<Self, Timestamp>> {
        let countdown = Countdown::start(ttl.as_duration());
        Ok(match store.acquire_lock(&name, &owner, ttl).await? {
            Acquired::Held { token, expires_at } => {
                let lock = LockRef { name, token };
                Ok(Self { store, lock, owner, expires_at, countdown, released: false })
            }
            Acquired::Busy { until } => Err(until),
        })
    }

    pub(crate) async fn acquire(
        store: Arc<dyn Store>,
        name: LockName,
        owner: LocalName,
        ttl: Lease,
    ) -> Result<Self> {
        let mut watch = store.watch(Topic::Lock(name.clone())).await?;
        loop {
            match Self::try_acquire(store.clone(), name.clone(), owner.clone(), ttl).await? {
                Ok(lock) => return Ok(lock),
                Err(until) => watch.changed(Wait { until: Some(until), within: None }).await?,
            }
        }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name.as_str()
    }

    /// Who took it, in their own words.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.owner.as_str()
    }

    /// The fencing token: larger than that of every earlier acquisition of this name.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.lock.token
    }

    /// When it ends unless it is renewed, on the engine's clock.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at.into()
    }

    /// How long it still holds, by this process's monotonic clock, counted from before it was
    /// asked for: safe where the wall clock is wrong.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.countdown.remaining()
    }

    /// Holds the lock for a full `ttl` from now on.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`](crate::Error::LockLost) where this acquisition holds no longer;
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) outside 1 ms to 10 years; or
    /// what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the lock is renewed or not; this handle may then show the older expiry.
    pub async fn renew(&mut self, ttl: Duration) -> Result<()> {
        let ttl = Lease::new("ttl", ttl)?;
        let countdown = Countdown::start(ttl.as_duration());
        self.expires_at = self.store.renew_lock(&self.lock, ttl).await?;
        self.countdown = countdown;
        Ok(())
    }

    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`](crate::Error::LockLost) where this acquisition holds no longer, or
    /// what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the lock is released as if the handle had been dropped.
    pub async fn release(mut self) -> Result<()> {
        let result = self.store.release_lock(&self.lock).await;
        self.released = result.is_ok();
        result
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.released {
            self.store.abandon_lock(&self.lock);
        }
    }
}

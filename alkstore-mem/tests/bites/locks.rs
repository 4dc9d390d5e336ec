//! Engines that break a rule of locks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    Acquired, Error, Lease, LocalName, LockInfo, LockName, LockRef, Result, Store, Timestamp,
    async_trait,
};
use alkstore_suite::Data;
use alkstore_suite::fault::Layer;
use parking_lot::Mutex;

async fn holder(inner: &dyn Store, name: &LockName) -> Result<Option<LockInfo>> {
    Ok(inner.held_locks().await?.into_iter().find(|lock| lock.name == name.as_str()))
}

/// Tokens begin at 1 again after a release: the lock's row went with it.
#[derive(Default)]
pub(crate) struct TokensBeginAgain {
    before: Mutex<HashMap<LockName, u64>>,
}

impl TokensBeginAgain {
    fn inner(&self, lock: &LockRef) -> LockRef {
        let before = self.before.lock().get(&lock.name).copied().unwrap_or(0);
        LockRef { name: lock.name.clone(), token: lock.token.saturating_add(before) }
    }
}

#[async_trait]
impl Layer for TokensBeginAgain {
    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        let mut acquired = inner.acquire_lock(name, owner, ttl).await?;
        if let Acquired::Held { token, .. } = &mut acquired {
            *token -= self.before.lock().get(name).copied().unwrap_or(0);
        }
        Ok(acquired)
    }

    async fn renew_lock(&self, inner: &dyn Store, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        inner.renew_lock(&self.inner(lock), ttl).await
    }

    async fn release_lock(&self, inner: &dyn Store, lock: &LockRef) -> Result<()> {
        let lock = self.inner(lock);
        inner.release_lock(&lock).await?;
        self.before.lock().insert(lock.name, lock.token);
        Ok(())
    }

    fn abandon_lock(&self, inner: &dyn Store, lock: &LockRef) {
        inner.abandon_lock(&self.inner(lock));
    }

    async fn held_locks(&self, inner: &dyn Store) -> Result<Vec<LockInfo>> {
        let mut locks = inner.held_locks().await?;
        for lock in &mut locks {
            lock.token -= self.before.lock().get(lock.name.as_str()).copied().unwrap_or(0);
        }
        Ok(locks)
    }
}

/// How a lock goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grip {
    /// Its owner takes it again.
    Reentrant,
    /// A release that comes late frees the next holder's lock.
    ReleasesTheNext,
    /// A release that comes late says that all is well.
    ReleasesQuietly,
    /// A renewal adds to what is left.
    RenewalAdds,
    /// Dropping the handle leaves it held.
    NotAbandoned,
    /// It is held a millisecond longer than it says.
    HeldLonger,
}

/// Holds locks badly.
pub(crate) struct HoldsBadly {
    grip: Grip,
    data: Arc<dyn Data>,
}

impl HoldsBadly {
    pub(crate) fn layer(grip: Grip, data: Arc<dyn Data>) -> Arc<dyn Layer> {
        Arc::new(Self { grip, data })
    }

    /// The ttl that the engine is told, and by how much what it says is made to look earlier.
    fn ttl(&self, ttl: Lease) -> (Lease, i64) {
        match Lease::new("ttl", ttl.as_duration() + Duration::from_millis(1)) {
            Ok(longer) if self.grip == Grip::HeldLonger => (longer, 1),
            _ => (ttl, 0),
        }
    }
}

#[async_trait]
impl Layer for HoldsBadly {
    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        let (ttl, early) = self.ttl(ttl);
        let mut acquired = inner.acquire_lock(name, owner, ttl).await?;
        if let Acquired::Held { expires_at, .. } = &mut acquired {
            *expires_at = expires_at.plus_millis(-early);
        }
        if self.grip == Grip::Reentrant
            && let Acquired::Busy { until } = acquired
            && let Some(held) = holder(inner, name).await?
            && held.owner == owner.as_str()
        {
            return Ok(Acquired::Held { token: held.token, expires_at: until });
        }
        Ok(acquired)
    }

    async fn renew_lock(&self, inner: &dyn Store, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        let left = match holder(inner, &lock.name).await? {
            Some(held) => Timestamp::from(held.expires_at).since(self.data.now().await),
            None => Duration::ZERO,
        };
        match self.grip {
            Grip::RenewalAdds => {
                let sum = Lease::new("ttl", left + ttl.as_duration()).unwrap_or(ttl);
                inner.renew_lock(lock, sum).await
            }
            _ => {
                let (ttl, early) = self.ttl(ttl);
                Ok(inner.renew_lock(lock, ttl).await?.plus_millis(-early))
            }
        }
    }

    async fn held_locks(&self, inner: &dyn Store) -> Result<Vec<LockInfo>> {
        let mut locks = inner.held_locks().await?;
        let (_, early) = self.ttl(Lease::new("ttl", Duration::from_secs(1))?);
        for lock in &mut locks {
            lock.expires_at -= Duration::from_millis(early.unsigned_abs());
        }
        Ok(locks)
    }

    async fn release_lock(&self, inner: &dyn Store, lock: &LockRef) -> Result<()> {
        match inner.release_lock(lock).await {
            Err(Error::LockLost { .. }) if self.grip == Grip::ReleasesTheNext => {
                if let Some(held) = holder(inner, &lock.name).await? {
                    let next = LockRef { name: lock.name.clone(), token: held.token };
                    inner.release_lock(&next).await?;
                }
                Ok(())
            }
            Err(Error::LockLost { .. }) if self.grip == Grip::ReleasesQuietly => Ok(()),
            released => released,
        }
    }

    fn abandon_lock(&self, inner: &dyn Store, lock: &LockRef) {
        if self.grip != Grip::NotAbandoned {
            inner.abandon_lock(lock);
        }
    }
}

/// A renewal after the expiry revives the lock where nobody else took it.
#[derive(Default)]
pub(crate) struct RevivesExpired {
    owners: Mutex<HashMap<LockName, LocalName>>,
    revived: Mutex<HashMap<(LockName, u64), u64>>,
}

impl RevivesExpired {
    fn present(&self, lock: &LockRef) -> LockRef {
        let token = self.revived.lock().get(&(lock.name.clone(), lock.token)).copied();
        LockRef { name: lock.name.clone(), token: token.unwrap_or(lock.token) }
    }
}

#[async_trait]
impl Layer for RevivesExpired {
    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        let acquired = inner.acquire_lock(name, owner, ttl).await?;
        if matches!(acquired, Acquired::Held { .. }) {
            self.owners.lock().insert(name.clone(), owner.clone());
        }
        Ok(acquired)
    }

    async fn renew_lock(&self, inner: &dyn Store, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        let renewed = inner.renew_lock(&self.present(lock), ttl).await;
        let owner = self.owners.lock().get(&lock.name).cloned();
        if let (Err(Error::LockLost { .. }), Some(owner)) = (&renewed, owner)
            && let Acquired::Held { token, expires_at } =
                inner.acquire_lock(&lock.name, &owner, ttl).await?
        {
            self.revived.lock().insert((lock.name.clone(), lock.token), token);
            return Ok(expires_at);
        }
        renewed
    }

    async fn release_lock(&self, inner: &dyn Store, lock: &LockRef) -> Result<()> {
        inner.release_lock(&self.present(lock)).await
    }

    fn abandon_lock(&self, inner: &dyn Store, lock: &LockRef) {
        inner.abandon_lock(&self.present(lock));
    }
}

/// Any number of runners lead the scheduler.
pub(crate) struct ManyLeaders;

#[async_trait]
impl Layer for ManyLeaders {
    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        match inner.acquire_lock(name, owner, ttl).await? {
            Acquired::Busy { until } if *name == LockName::scheduler() => {
                Ok(Acquired::Held { token: u64::MAX, expires_at: until })
            }
            acquired => Ok(acquired),
        }
    }

    async fn renew_lock(&self, inner: &dyn Store, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        if lock.token == u64::MAX {
            return Ok(Timestamp::FAR_AWAY);
        }
        inner.renew_lock(lock, ttl).await
    }

    async fn release_lock(&self, inner: &dyn Store, lock: &LockRef) -> Result<()> {
        if lock.token == u64::MAX {
            return Ok(());
        }
        inner.release_lock(lock).await
    }
}

/// An acquisition whose caller is gone is held all the same.
pub(crate) struct KeepsDroppedLocks;

#[async_trait]
impl Layer for KeepsDroppedLocks {
    async fn acquire_lock(
        &self,
        inner: &dyn Store,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        let (store, name, owner) = (inner.shared(), name.clone(), owner.clone());
        let acquiring = tokio::spawn(async move { store.acquire_lock(&name, &owner, ttl).await });
        acquiring.await.unwrap_or_else(|_| Err(Error::engine("the call was cut off")))
    }
}

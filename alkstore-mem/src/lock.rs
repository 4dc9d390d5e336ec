//! Locks.

use alkstore_core::{
    Acquired, Error, Lease, LocalName, LockInfo, LockName, LockRef, LockStore, Result, StoreId,
    Timestamp, Topic,
};
use async_trait::async_trait;

use crate::state::{State, View};
use crate::store::MemStore;
use crate::wake::Wakes;

/// A lock's name stays after its release: its count of acquisitions is what fences them.
#[derive(Debug, Default)]
pub(crate) struct LockState {
    token: u64,
    holder: Option<Holder>,
}

#[derive(Debug)]
struct Holder {
    owner: LocalName,
    expires_at: Timestamp,
    store: StoreId,
}

impl LockState {
    fn holder_at(&self, now: Timestamp) -> Option<&Holder> {
        self.holder.as_ref().filter(|holder| now < holder.expires_at)
    }
}

fn acquire(
    view: &mut View<'_>,
    store: StoreId,
    name: &LockName,
    owner: &LocalName,
    ttl: Lease,
) -> Acquired {
    let lock = view.state.locks.entry(name.clone()).or_default();
    if let Some(holder) = lock.holder_at(view.time.now) {
        return Acquired::Busy { until: holder.expires_at };
    }
    let expires_at = view.time.after(ttl.as_duration());
    lock.token += 1;
    lock.holder = Some(Holder { owner: owner.clone(), expires_at, store });
    Acquired::Held { token: lock.token, expires_at }
}

/// Runs an operation on the lock of this very acquisition, while it holds.
fn while_held<T>(
    view: &mut View<'_>,
    lock: &LockRef,
    operation: impl FnOnce(&mut LockState) -> T,
) -> Result<T> {
    let now = view.time.now;
    let held = view.state.locks.get_mut(&lock.name);
    match held.filter(|held| held.token == lock.token && held.holder_at(now).is_some()) {
        Some(held) => Ok(operation(held)),
        None => Err(Error::LockLost { name: lock.name.to_string() }),
    }
}

fn wake_one(view: &mut View<'_>, lock: &LockRef) {
    view.state.topics.wake(view.wakes, 1, || Topic::Lock(lock.name.clone()));
}

fn renew(view: &mut View<'_>, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
    let expires_at = view.time.after(ttl.as_duration());
    let sooner = while_held(view, lock, |held| {
        held.holder.as_mut().is_some_and(|holder| {
            std::mem::replace(&mut holder.expires_at, expires_at) > expires_at
        })
    })?;
    if sooner {
        wake_one(view, lock);
    }
    Ok(expires_at)
}

fn release(view: &mut View<'_>, lock: &LockRef) -> Result<()> {
    while_held(view, lock, |held| held.holder = None)?;
    wake_one(view, lock);
    Ok(())
}

/// A store that closes ends its runner, which can't release anything any more: the next one starts
/// at once all the same. Other locks are left to their ttl, which is what their holders count on.
pub(crate) fn give_up_leadership(state: &mut State, wakes: &mut Wakes, store: StoreId) {
    let name = LockName::scheduler();
    let lock = state.locks.get_mut(&name);
    if let Some(lock) = lock.filter(|l| l.holder.as_ref().is_some_and(|h| h.store == store)) {
        lock.holder = None;
        state.topics.wake(wakes, 1, || Topic::Lock(name));
    }
}

#[async_trait]
impl LockStore for MemStore {
    async fn acquire_lock(
        &self,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        self.open.act(|view| acquire(view, self.open.id, name, owner, ttl))
    }

    async fn renew_lock(&self, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        self.open.act(|view| renew(view, lock, ttl))?
    }

    async fn release_lock(&self, lock: &LockRef) -> Result<()> {
        self.open.act(|view| release(view, lock))?
    }

    fn abandon_lock(&self, lock: &LockRef) {
        // Lost or closed already: then there is nothing to give back.
        let _ = self.open.act(|view| release(view, lock));
    }

    async fn held_locks(&self) -> Result<Vec<LockInfo>> {
        self.open.act(|view| {
            let now = view.time.now;
            let held = view.state.locks.iter().filter_map(|(name, lock)| {
                let holder = lock.holder_at(now)?;
                let lock = LockRef { name: name.clone(), token: lock.token };
                Some(LockInfo::new(&lock, &holder.owner, holder.expires_at))
            });
            held.collect()
        })
    }
}

//! Locks.

use alkstore_core::{
    Acquired, Error, Lease, LocalName, LockInfo, LockName, LockRef, LockStore, Result, Timestamp,
    Topic,
};
use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::acquire::{GiveBack, give_back};
use crate::sql::{self, Outcome, Write};
use crate::store::{Open, SqliteStore};
use crate::writer::Size;

const HOLDER: &str = "SELECT expires_at FROM alkstore_locks WHERE name = ?1 AND owner IS NOT NULL AND expires_at > ?2";

const ACQUIRE: &str = "INSERT INTO alkstore_locks (name, token, owner, expires_at)
    VALUES (?1, 1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE
        SET token = token + 1, owner = excluded.owner, expires_at = excluded.expires_at
    RETURNING token";

const RENEW: &str = "UPDATE alkstore_locks SET expires_at = ?4
    WHERE name = ?1 AND token = ?2 AND owner IS NOT NULL AND expires_at > ?3";

const RELEASE: &str = "UPDATE alkstore_locks SET owner = NULL
    WHERE name = ?1 AND token = ?2 AND owner IS NOT NULL AND expires_at > ?3";

const HELD: &str = "SELECT name, token, owner, expires_at FROM alkstore_locks
    WHERE owner IS NOT NULL AND expires_at > ?1";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[HOLDER, ACQUIRE, RENEW, RELEASE];

/// Until when somebody holds a lock.
fn held_until(conn: &Connection, name: &LockName, now: i64) -> Outcome<Option<Timestamp>> {
    let expires_at = sql::one(conn, HOLDER, params![name.as_str(), now], |row| row.get(0))?;
    Ok(expires_at.map(Timestamp::from_millis))
}

fn acquire(
    write: &mut Write<'_>,
    name: &LockName,
    owner: &LocalName,
    ttl: Lease,
) -> Outcome<Acquired> {
    if let Some(until) = held_until(write.conn, name, write.time.now)? {
        return Ok(Acquired::Busy { until });
    }
    let expires_at = write.time.after(ttl.as_duration());
    let values = params![name.as_str(), owner.as_str(), expires_at];
    // Stepped to its end: before that it isn't done.
    let tokens = sql::all(write.conn, ACQUIRE, values, |row| row.get::<_, i64>(0))?;
    let token = tokens.first().map_or(0, |token| token.unsigned_abs());
    Ok(Acquired::Held { token, expires_at: Timestamp::from_millis(expires_at) })
}

fn token(lock: &LockRef) -> i64 {
    i64::try_from(lock.token).unwrap_or(i64::MAX)
}

fn lost(lock: &LockRef) -> Error {
    Error::LockLost { name: lock.name.to_string() }
}

fn renew(write: &mut Write<'_>, lock: &LockRef, ttl: Lease) -> Outcome<Timestamp> {
    let expires_at = write.time.after(ttl.as_duration());
    let values = params![lock.name.as_str(), token(lock), write.time.now, expires_at];
    if write.run(RENEW, values)? == 0 {
        return Err(lost(lock).into());
    }
    write.effects.sooner(Topic::Lock(lock.name.clone()), expires_at);
    Ok(Timestamp::from_millis(expires_at))
}

fn release(write: &mut Write<'_>, lock: &LockRef) -> Outcome<()> {
    let values = params![lock.name.as_str(), token(lock), write.time.now];
    if write.run(RELEASE, values)? == 0 {
        return Err(lost(lock).into());
    }
    write.effects.wake(Topic::Lock(lock.name.clone()), 1);
    Ok(())
}

/// Where it is lost already there is nothing to give back.
fn return_it(lock: LockRef) -> GiveBack {
    Box::new(move |write| release(write, &lock))
}

impl Open {
    async fn acquire_lock(
        &self,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        let now = self.reading().now;
        let probed = name.clone();
        // Where somebody holds it, nobody has to be kept from writing.
        if let Some(until) = self.peek(move |conn| held_until(conn, &probed, now)).await? {
            return Ok(Acquired::Busy { until });
        }
        let (wanted, owner, lock) = (name.clone(), owner.clone(), name.clone());
        let acquired = self
            .acquire(
                Size::Small,
                move |write| acquire(write, &wanted, &owner, ttl),
                |acquired| match acquired {
                    Acquired::Held { token, .. } => Some(return_it(LockRef { name: lock, token })),
                    Acquired::Busy { .. } => None,
                },
            )
            .await?;
        if let Acquired::Held { token, .. } = acquired
            && *name == LockName::scheduler()
        {
            *self.leadership.lock() = Some(LockRef { name: name.clone(), token });
            if self.close.is_closed() {
                self.give_up_leadership();
            }
        }
        Ok(acquired)
    }

    /// A store that closes ends its runner, which can't release anything any more: the next one
    /// starts at once all the same. Other locks are left to their ttl, which is what their
    /// holders count on.
    pub(crate) fn give_up_leadership(&self) {
        if let Some(lock) = self.leadership.lock().take() {
            give_back(&self.hub, &self.options.clock, return_it(lock));
        }
    }
}

#[async_trait]
impl LockStore for SqliteStore {
    async fn acquire_lock(
        &self,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        self.open.acquire_lock(name, owner, ttl).await
    }

    async fn renew_lock(&self, lock: &LockRef, ttl: Lease) -> Result<Timestamp> {
        let lock = lock.clone();
        self.open.write(Size::Small, move |write| renew(write, &lock, ttl)).await
    }

    async fn release_lock(&self, lock: &LockRef) -> Result<()> {
        let lock = lock.clone();
        self.open.write(Size::Small, move |write| release(write, &lock)).await
    }

    fn abandon_lock(&self, lock: &LockRef) {
        // A closed store writes nothing; the ttl ends the lock then.
        if !self.open.close.is_closed() {
            give_back(&self.open.hub, &self.open.options.clock, return_it(lock.clone()));
        }
    }

    async fn held_locks(&self) -> Result<Vec<LockInfo>> {
        let now = self.open.reading().now;
        self.open
            .read(move |conn| {
                let mut held = sql::all(conn, HELD, [now], |row| {
                    let token: i64 = row.get(1)?;
                    let name = LockName::stored(row.get::<_, String>(0)?);
                    let lock = LockRef { name, token: token.unsigned_abs() };
                    let owner = LocalName::stored(row.get::<_, String>(2)?);
                    let expires_at = Timestamp::from_millis(row.get(3)?);
                    Ok(LockInfo::new(&lock, &owner, expires_at))
                })?;
                held.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(held)
            })
            .await
    }
}

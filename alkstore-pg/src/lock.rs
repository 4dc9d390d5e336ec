//! Locks.

use std::sync::Arc;

use alkstore_core::{
    Acquired, Error, Lease, LocalName, LockInfo, LockName, LockRef, LockStore, Result, Timestamp,
};
use async_trait::async_trait;
use sqlx::Row;

use crate::acquire::{GiveBack, give_back};
use crate::error::Outcome;
use crate::sql::Sql;
use crate::store::{Open, PgStore};

const ACQUIRE: &str = "SELECT taken, token, until, us FROM {s}.acquire_lock($1, $2, $3)";

const RENEW: &str = "SELECT {s}.renew_lock($1, $2, $3)";

const RELEASE: &str = "SELECT {s}.release_lock($1, $2)";

const HELD: &str = "SELECT name, token, owner, expires_at FROM {s}.locks
    WHERE owner IS NOT NULL AND expires_at > {s}.now_ms() ORDER BY name";

async fn acquire(
    sql: &mut Sql<'_>,
    name: &LockName,
    owner: &LocalName,
    ttl: Lease,
) -> Outcome<(Acquired, i64)> {
    let statement =
        sql.query(ACQUIRE).bind(name.to_string()).bind(owner.to_string()).bind(ttl.as_millis());
    let row = sql.one(statement).await?;
    let until = Timestamp::from_millis(row.try_get(2)?);
    let acquired = if row.try_get(0)? {
        let token: i64 = row.try_get(1)?;
        Acquired::Held { token: token.unsigned_abs(), expires_at: until }
    } else {
        Acquired::Busy { until }
    };
    Ok((acquired, row.try_get(3)?))
}

fn token(lock: &LockRef) -> i64 {
    i64::try_from(lock.token).unwrap_or(i64::MAX)
}

fn lost(lock: &LockRef) -> Error {
    Error::LockLost { name: lock.name.to_string() }
}

async fn renew(sql: &mut Sql<'_>, lock: &LockRef, ttl: Lease) -> Outcome<Timestamp> {
    let statement =
        sql.query(RENEW).bind(lock.name.to_string()).bind(token(lock)).bind(ttl.as_millis());
    let until: Option<i64> = sql.one(statement).await?.try_get(0)?;
    until.map(Timestamp::from_millis).ok_or_else(|| lost(lock).into())
}

async fn release(sql: &mut Sql<'_>, lock: &LockRef) -> Outcome<()> {
    let statement = sql.query(RELEASE).bind(lock.name.to_string()).bind(token(lock));
    if sql.one(statement).await?.try_get(0)? { Ok(()) } else { Err(lost(lock).into()) }
}

/// Where it is lost already there is nothing to give back.
fn return_it(lock: LockRef) -> GiveBack {
    Box::new(move |mut sql| {
        let lock = lock.clone();
        Box::pin(async move { release(&mut sql, &lock).await })
    })
}

impl Open {
    async fn acquire_lock(
        self: &Arc<Self>,
        name: &LockName,
        owner: &LocalName,
        ttl: Lease,
    ) -> Result<Acquired> {
        let (wanted, owner, lock) = (name.clone(), owner.clone(), name.clone());
        let (acquired, us) = self
            .acquire(
                move |mut sql| {
                    let (wanted, owner) = (wanted.clone(), owner.clone());
                    Box::pin(async move { acquire(&mut sql, &wanted, &owner, ttl).await })
                },
                |(acquired, _)| match acquired {
                    Acquired::Held { token, .. } => Some(return_it(LockRef { name: lock, token })),
                    Acquired::Busy { .. } => None,
                },
            )
            .await?;
        self.clock.learn(us);
        if let Acquired::Held { token, .. } = acquired
            && *name == LockName::scheduler()
        {
            *self.leadership.lock() = Some(LockRef { name: name.clone(), token });
        }
        Ok(acquired)
    }

    /// A store that closes ends its runner, which can't release anything any more: the next one
    /// starts at once all the same. Other locks are left to their ttl, which is what their
    /// holders count on.
    pub(crate) fn give_up_leadership(self: &Arc<Self>) {
        if let Some(lock) = self.leadership.lock().take() {
            give_back(self, return_it(lock));
        }
    }
}

#[async_trait]
impl LockStore for PgStore {
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
        let renewed = self
            .open
            .write(move |mut sql| {
                let lock = lock.clone();
                Box::pin(async move { renew(&mut sql, &lock, ttl).await })
            })
            .await;
        // A close that began meanwhile has given the scheduler's lease away itself.
        if matches!(renewed, Err(Error::LockLost { .. })) {
            self.open.usable()?;
        }
        renewed
    }

    async fn release_lock(&self, lock: &LockRef) -> Result<()> {
        let lock = lock.clone();
        self.open
            .write(move |mut sql| {
                let lock = lock.clone();
                Box::pin(async move { release(&mut sql, &lock).await })
            })
            .await
    }

    fn abandon_lock(&self, lock: &LockRef) {
        // A closed store writes nothing; the ttl ends the lock then.
        if !self.open.close.is_closed() {
            give_back(&self.open, return_it(lock.clone()));
        }
    }

    async fn held_locks(&self) -> Result<Vec<LockInfo>> {
        self.open
            .read(|mut sql| {
                Box::pin(async move {
                    let statement = sql.query(HELD);
                    let rows = sql.all(statement).await?;
                    rows.iter()
                        .map(|row| {
                            let token: i64 = row.try_get(1)?;
                            let name = LockName::stored(row.try_get::<String, _>(0)?);
                            let lock = LockRef { name, token: token.unsigned_abs() };
                            let owner = LocalName::stored(row.try_get::<String, _>(2)?);
                            let expires_at = Timestamp::from_millis(row.try_get(3)?);
                            Ok(LockInfo::new(&lock, &owner, expires_at))
                        })
                        .collect()
                })
            })
            .await
    }
}

//! Taking part in a transaction that the application began on a connection of its own.

use alkstore_core::{Error, Result, StoreBase, Tx};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use crate::error::{Outcome, Stage};
use crate::sql::Sql;
use crate::store::{Open, PgStore};
use crate::tx::{Attached, Inside};

/// Where the connection leads, and what its transaction sees. One that waits for locks without
/// end waits as long as the store does, until the transaction ends.
const WHERE: &str = "SELECT current_setting('transaction_isolation'),
    to_regclass($1) IS NOT NULL,
    set_config('lock_timeout', CASE WHEN current_setting('lock_timeout') = '0'
        THEN $2 ELSE current_setting('lock_timeout') END, true)";

const IDENTITY: &str = "SELECT value FROM {s}.meta WHERE key = 'identity'";

impl PgStore {
    /// Takes part in a transaction that the application began: what is staged shares its fate, and
    /// its commit wakes who waits.
    ///
    /// The handle doesn't own the transaction: [`Tx::commit`] and dropping it end the attachment
    /// and nothing else. [`Tx::rollback`] is [`Error::InvalidArgument`], and [`Tx::engine`] has
    /// nothing to give, since the application has the connection.
    ///
    /// Where the transaction waits for locks without end (`lock_timeout = 0`, the server's
    /// default), it waits as long as the store does from here on.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the connection isn't inside a transaction that sqlx began,
    /// leads to another database than the store's, or the transaction isn't READ COMMITTED: on a
    /// snapshot that is older than a claim, the claim would seem lost. Or what the engine meets.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use alkstore_core::{EnqueueOpts, StoreExt};
    /// use alkstore_pg::{PgStore, sqlx};
    ///
    /// # async fn place_order(pool: sqlx::PgPool, store: PgStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let receipts = store.queue("receipts")?;
    /// let mut sql = pool.begin().await?;
    /// sqlx::query("INSERT INTO orders (total) VALUES ($1)").bind(42).execute(&mut *sql).await?;
    /// let mut tx = store.attach(&mut sql).await?;
    /// receipts.enqueue_tx(&mut tx, &"order 1", EnqueueOpts::new()).await?;
    /// drop(tx);
    /// sql.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn attach<'c>(&self, conn: &'c mut PgConnection) -> Result<Tx<'c>> {
        let open = &self.open;
        open.usable()?;
        if !conn.is_in_transaction() {
            return Err(refused("a connection outside of a transaction", "begin one first"));
        }
        let found = look(open, conn).await;
        let (isolation, identity) = found.map_err(|failure| failure.into_error(Stage::Harmless))?;
        if identity != Some(open.identity) {
            return Err(refused(
                "a connection to another database",
                &format!("one to the database that holds the store's schema {:?}", self.schema()),
            ));
        }
        if isolation != "read committed" {
            return Err(refused(
                &format!("a transaction of the isolation level {isolation}"),
                "READ COMMITTED: an older snapshot would deny claims that hold",
            ));
        }
        let (touched, pending) = (false, false);
        let inside = Inside { conn, open: open.clone(), mark: None, touched, pending };
        Ok(Tx::new(self.store_id(), self.limits(), Box::new(Attached(inside))))
    }
}

fn refused(found: &str, expected: &str) -> Error {
    Error::invalid_argument("conn", found, expected)
}

async fn look(open: &Open, conn: &mut PgConnection) -> Outcome<(String, Option<i64>)> {
    let mut sql = Sql { conn, texts: &open.texts };
    let patience = open.options.lock_timeout.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    let statement = sql.query(WHERE).bind(open.texts.fill("{s}.meta")).bind(patience.to_string());
    let row = sql.one(statement).await?;
    let isolation = row.try_get(0)?;
    if !row.try_get::<bool, _>(1)? {
        return Ok((isolation, None));
    }
    let statement = sql.query(IDENTITY);
    Ok((isolation, Some(sql.one(statement).await?.try_get(0)?)))
}

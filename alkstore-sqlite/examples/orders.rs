//! Orders of a shop, and the mails about them, in one SQLite file: an order and its mail commit
//! together or not at all, whether the store began the transaction or the application did.
//!
//! ```text
//! cargo run -p alkstore-sqlite --example orders -- shop.db
//! ```
#![allow(clippy::print_stdout, reason = "it shows what it does")]

use std::convert::Infallible;
use std::error::Error;
use std::path::Path;

use alkstore_core::{Outbox, OutboxOpts, StoreExt};
use alkstore_sqlite::rusqlite::{self, Connection, TransactionBehavior};
use alkstore_sqlite::{SqliteStore, SqliteTx};
use serde::{Deserialize, Serialize};

const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY,
    customer TEXT NOT NULL,
    cents INTEGER NOT NULL CHECK (cents > 0)
) STRICT";

/// What is mailed about an order.
#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    to: String,
    order: i64,
}

fn insert(conn: &Connection, customer: &str, cents: i64) -> rusqlite::Result<i64> {
    let order = "INSERT INTO orders (customer, cents) VALUES (?1, ?2)";
    conn.execute(order, rusqlite::params![customer, cents])?;
    Ok(conn.last_insert_rowid())
}

/// Places an order in a transaction of the store.
async fn place(
    store: &SqliteStore,
    mails: &Outbox,
    customer: &str,
    cents: i64,
) -> Result<i64, Box<dyn Error + Send + Sync>> {
    let mut tx = store.begin_tx().await?;
    let sql = tx.engine::<SqliteTx>().ok_or("a transaction of another engine")?;
    let to = customer.to_owned();
    // The connection lives on a thread where it may block; an error here rolls everything back.
    let order = sql.run(move |conn| insert(conn, &to, cents)).await??;
    let mail = Mail { to: customer.to_owned(), order };
    mails.enqueue_tx(&mut tx, &mail, OutboxOpts::new()).await?;
    tx.commit().await?;
    Ok(order)
}

/// Places an order in a transaction of the application, on a connection of its own.
fn place_attached(
    store: &SqliteStore,
    mails: &Outbox,
    conn: &mut Connection,
    customer: &str,
    cents: i64,
) -> Result<i64, Box<dyn Error + Send + Sync>> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let order = insert(&tx, customer, cents)?;
    let mail = Mail { to: customer.to_owned(), order };
    store.attach(&tx)?.enqueue_outbox(mails, &mail, OutboxOpts::new())?;
    tx.commit()?;
    Ok(order)
}

/// Places some orders, one of which fails, and sends what is to be sent.
pub(crate) async fn run(path: &Path) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
    let store = SqliteStore::open(path).await?;
    let mails = store.outbox("mails")?;
    let mut conn = Connection::open(path)?;
    conn.execute_batch(ORDERS)?;

    let mut told = Vec::new();
    let order = place(&store, &mails, "ada", 4_200).await?;
    told.push(format!("order {order} is placed"));
    let order = place_attached(&store, &mails, &mut conn, "grace", 1_700)?;
    told.push(format!("order {order} is placed"));
    for failed in [
        place(&store, &mails, "nobody", 0).await,
        place_attached(&store, &mails, &mut conn, "nobody", 0),
    ] {
        told.push(format!("no order and no mail: {}", failed.err().ok_or("it was placed")?));
    }

    let (sent, inbox) = std::sync::mpsc::channel();
    let send = |delivery: alkstore_core::Delivery| {
        let (sent, mail) = (sent.clone(), delivery.decode::<Mail>());
        async move {
            if let Ok(mail) = mail {
                // Here it would be sent; an error or a crash brings it again.
                let _ = sent.send(format!("{} is told of order {}", mail.to, mail.order));
            }
            Ok::<_, Infallible>(())
        }
    };
    while mails.run_once("mailer", send).await? {}
    told.extend(inbox.try_iter());
    let orders = conn.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0))?;
    told.push(format!("{orders} orders, {} mails left", mails.stats().await?.ready));
    store.close().await?;
    Ok(told)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "shop.db".to_owned());
    for line in run(Path::new(&path)).await? {
        println!("{line}");
    }
    Ok(())
}

//! Orders of a shop in Postgres, with plain sqlx: an order and the mail about it commit together or
//! not at all, whether the store began the transaction or the application did; and a job that does
//! its work in the database is done exactly once, because its effect and its `ack` commit together.
//!
//! ```text
//! cargo run -p alkstore-pg --example orders -- postgres://app@localhost/app
//! ```
#![allow(clippy::print_stdout, reason = "it shows what it does")]

use std::convert::Infallible;
use std::error::Error;

use alkstore_core::{EnqueueOpts, Outbox, OutboxOpts, Queue, StoreExt};
use alkstore_pg::sqlx::postgres::{PgConnection, PgPool};
use alkstore_pg::sqlx::{self, Executor, Row};
use alkstore_pg::{PgStore, PgTx};
use serde::{Deserialize, Serialize};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text NOT NULL,
        cents bigint NOT NULL CHECK (cents > 0)
    );
    CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, pieces bigint NOT NULL);
    INSERT INTO stock VALUES ('book', 10) ON CONFLICT DO NOTHING";

/// What is mailed about an order, and what has to be taken from the shelf for it.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: i64,
    customer: String,
}

type Failure = Box<dyn Error + Send + Sync>;

struct Shop {
    store: PgStore,
    /// The application's own connections, to the same database.
    pool: PgPool,
    mails: Outbox,
    picking: Queue,
}

async fn insert(conn: &mut PgConnection, customer: &str, cents: i64) -> sqlx::Result<Order> {
    let order = "INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id";
    let row = sqlx::query(order).bind(customer).bind(cents).fetch_one(conn).await?;
    Ok(Order { id: row.try_get(0)?, customer: customer.to_owned() })
}

impl Shop {
    async fn open(url: &str) -> Result<Self, Failure> {
        let (store, pool) = (PgStore::connect(url).await?, PgPool::connect(url).await?);
        pool.execute(TABLES).await?;
        let (mails, picking) = (store.outbox("mails")?, store.queue("picking")?);
        Ok(Self { store, pool, mails, picking })
    }

    /// Places an order in a transaction of the store.
    async fn place(&self, customer: &str, cents: i64) -> Result<i64, Failure> {
        let mut tx = self.store.begin_tx().await?;
        let own = tx.engine::<PgTx>().ok_or("a transaction of another engine")?;
        // An error here leaves by `?`, and the transaction that is dropped rolls back.
        let order = insert(own.connection(), customer, cents).await?;
        self.mails.enqueue_tx(&mut tx, &order, OutboxOpts::new()).await?;
        self.picking.enqueue_tx(&mut tx, &order, EnqueueOpts::new()).await?;
        tx.commit().await?;
        Ok(order.id)
    }

    /// Places an order in a transaction that the application began, and commits by itself.
    async fn place_attached(&self, customer: &str, cents: i64) -> Result<i64, Failure> {
        let mut own = self.pool.begin().await?;
        let order = insert(&mut own, customer, cents).await?;
        let mut tx = self.store.attach(&mut own).await?;
        self.mails.enqueue_tx(&mut tx, &order, OutboxOpts::new()).await?;
        self.picking.enqueue_tx(&mut tx, &order, EnqueueOpts::new()).await?;
        drop(tx);
        own.commit().await?;
        Ok(order.id)
    }

    /// Takes a book from the shelf for the next order: the job is acked with its effect, so that
    /// it happens once, whenever this program is killed.
    async fn pick(&self) -> Result<Option<i64>, Failure> {
        let Some(mut job) = self.picking.claim("picker").await? else { return Ok(None) };
        let order: Order = job.decode()?;
        let mut tx = self.store.begin_tx().await?;
        let own = tx.engine::<PgTx>().ok_or("a transaction of another engine")?;
        let take = "UPDATE stock SET pieces = pieces - 1 WHERE item = 'book'";
        own.connection().execute(take).await?;
        job.ack_tx(&mut tx).await?;
        tx.commit().await?;
        Ok(Some(order.id))
    }

    async fn number(&self, query: &'static str) -> Result<i64, Failure> {
        Ok(self.pool.fetch_one(query).await?.try_get(0)?)
    }
}

/// Places some orders, two of which fail, and does what follows from them.
pub(crate) async fn run(url: &str) -> Result<Vec<String>, Failure> {
    let shop = Shop::open(url).await?;
    let mut told = Vec::new();
    told.push(format!("order {} is placed", shop.place("ada", 4_200).await?));
    told.push(format!("order {} is placed", shop.place_attached("grace", 1_700).await?));
    for failed in [shop.place("nobody", 0).await, shop.place_attached("nobody", 0).await] {
        let error = failed.err().ok_or("it was placed")?;
        told.push(format!("no order, no mail, nothing to pick: {error}"));
    }
    while let Some(order) = shop.pick().await? {
        told.push(format!("order {order} is picked"));
    }
    let (sent, inbox) = std::sync::mpsc::channel();
    let send = |delivery: alkstore_core::Delivery| {
        let (sent, order) = (sent.clone(), delivery.decode::<Order>());
        async move {
            if let Ok(order) = order {
                // Here it would be sent; an error or a crash brings it again.
                let _ = sent.send(format!("{} is told of order {}", order.customer, order.id));
            }
            Ok::<_, Infallible>(())
        }
    };
    while shop.mails.run_once("mailer", send).await? {}
    told.extend(inbox.try_iter());
    let orders = shop.number("SELECT count(*) FROM orders").await?;
    let books = shop.number("SELECT pieces FROM stock WHERE item = 'book'").await?;
    let left = shop.mails.stats().await?.ready;
    told.push(format!("{orders} orders, {books} books, {left} mails left"));
    shop.pool.close().await;
    shop.store.close().await?;
    Ok(told)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("give the URL of a database")?;
    for line in run(&url).await? {
        println!("{line}");
    }
    Ok(())
}

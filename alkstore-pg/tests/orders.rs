//! The example, run on a database of its own.
#![allow(clippy::unwrap_used, dead_code, reason = "a test fails by a panic; main isn't called")]

#[path = "../examples/orders.rs"]
mod orders;

use alkstore_pg::sqlx::Executor;
use alkstore_pg::sqlx::{Connection, PgConnection};
use alkstore_suite::pg::Cluster;

#[tokio::test]
async fn orders_and_what_follows_from_them_commit_together_or_not_at_all() {
    let cluster = Cluster::shared();
    let mut connection = PgConnection::connect(&cluster.url()).await.unwrap();
    connection.execute("CREATE DATABASE shop").await.unwrap();
    let url = cluster.url();
    let url = format!("{}/shop", url.rsplit_once('/').unwrap().0);
    let told = orders::run(&url).await.unwrap();
    let (placed, rest) = told.split_at(2);
    let (failed, rest) = rest.split_at(2);
    assert_eq!(placed, ["order 1 is placed", "order 2 is placed"]);
    assert!(failed.iter().all(|line| line.contains("orders_cents_check")), "{failed:?}");
    assert_eq!(
        rest,
        [
            "order 1 is picked",
            "order 2 is picked",
            "ada is told of order 1",
            "grace is told of order 2",
            "2 orders, 8 books, 0 mails left",
        ]
    );
}

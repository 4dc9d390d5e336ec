//! The example of a shop does what it says.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "../examples/orders.rs"]
#[expect(dead_code, reason = "its `main` is for the example alone")]
mod orders;

#[tokio::test]
async fn orders_and_their_mails_commit_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let told = orders::run(&directory.path().join("shop.db")).await.unwrap();
    let failed = "no order and no mail: CHECK constraint failed: cents > 0";
    assert_eq!(
        told,
        [
            "order 1 is placed",
            "order 2 is placed",
            failed,
            failed,
            "ada is told of order 1",
            "grace is told of order 2",
            "2 orders, 0 mails left",
        ]
    );
}

//! Calls of one process that come at the same time go to the server together.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use alkstore_core::{EnqueueOpts, Error, JobFilter, NewJob, StoreExt};
use alkstore_pg::PgStore;
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{AssertSqlSafe, Connection, Executor, Row};
use alkstore_suite::pg::Cluster;
use futures_util::future::join_all;

async fn store() -> PgStore {
    let cluster = Cluster::shared();
    PgStore::builder(&cluster.url()).schema(cluster.fresh_schema()).connect().await.unwrap()
}

/// How many transactions wrote the rows of a store's jobs.
async fn transactions(store: &PgStore) -> i64 {
    let mut sql = PgConnection::connect(&Cluster::shared().url()).await.unwrap();
    let count = format!(r#"SELECT count(DISTINCT xmin::text) FROM "{}".jobs"#, store.schema());
    sql.fetch_one(AssertSqlSafe(count)).await.unwrap().get(0)
}

#[tokio::test]
async fn enqueues_at_the_same_time_share_a_commit() {
    let store = store().await;
    let queue = store.queue("q").unwrap();
    let calls = (0..200).map(|n| {
        let queue = &queue;
        async move {
            if n % 10 == 0 {
                let jobs = (0..3).map(|k| NewJob::new(&(n, k)).unwrap()).collect();
                queue.enqueue_many(jobs).await.unwrap()
            } else {
                let opts = EnqueueOpts::new().priority(n);
                vec![queue.enqueue_with(&(n, 0), opts).await.unwrap()]
            }
        }
    });
    let added = join_all(calls).await;
    // Each caller has the ids of its own jobs, in order.
    for (n, ids) in (0_i32..).zip(added) {
        for (k, id) in (0_i32..).zip(ids) {
            let job = queue.get_job(id).await.unwrap().unwrap();
            assert_eq!(job.payload.decode::<(i32, i32)>().unwrap(), (n, k));
        }
    }
    let transactions = transactions(&store).await;
    assert!(transactions <= 8, "{transactions} transactions for 200 calls");
    store.close().await.unwrap();
}

#[tokio::test]
async fn acks_at_the_same_time_answer_each_for_itself() {
    let store = store().await;
    let queue = store.queue("q").unwrap();
    let jobs = (0..100).map(|n| NewJob::new(&n).unwrap()).collect();
    queue.enqueue_many(jobs).await.unwrap();
    let mut claimed = queue.claim_batch("w", 100).await.unwrap();
    for job in &claimed[..10] {
        assert!(queue.cancel(job.id()).await.unwrap());
    }
    // One is held by a transaction for a while, which holds up nobody else.
    let mut tx = store.begin_tx().await.unwrap();
    claimed[50].ack_tx(&mut tx).await.unwrap();
    let results = join_all(
        claimed.iter_mut().enumerate().map(|(n, job)| async move { (n, job.ack().await) }),
    );
    let ending = async {
        while queue.jobs(JobFilter::new()).await.unwrap().len() > 1 {
            tokio::task::yield_now().await;
        }
        tx.commit().await.unwrap();
    };
    let (results, ()) = futures_util::future::join(results, ending).await;
    for (n, result) in results {
        let lost = n < 10 || n == 50;
        assert_eq!(matches!(result, Err(Error::ClaimLost { .. })), lost, "{n}: {result:?}");
    }
    assert_eq!(queue.stats().await.unwrap().ready, 0);
    store.close().await.unwrap();
}

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

/// Refuses what a job with the payload `"bad"` wants, as a rule of the application's may.
async fn refuse_the_bad(store: &PgStore) {
    let mut sql = PgConnection::connect(&Cluster::shared().url()).await.unwrap();
    let rule = format!(
        r#"CREATE FUNCTION "{0}".refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF coalesce(NEW.payload, OLD.payload) = '"bad"' THEN
                RAISE EXCEPTION 'no bad ones';
            END IF;
            RETURN coalesce(NEW, OLD);
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT OR DELETE ON "{0}".jobs
            FOR EACH ROW EXECUTE FUNCTION "{0}".refuse()"#,
        store.schema()
    );
    sql.execute(AssertSqlSafe(rule)).await.unwrap();
}

/// Whether the server refused it, with its own words and its own error behind them.
fn is_refused<T: std::fmt::Debug>(result: &alkstore_core::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::Engine { message, .. }) if message.contains("no bad ones") => true,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_enqueue_that_fails_fails_alone() {
    let store = store().await;
    refuse_the_bad(&store).await;
    let queue = store.queue("q").unwrap();
    let is_bad = |n: usize| n % 17 == 5;
    let calls = (0..200).map(|n| {
        let queue = &queue;
        async move {
            let payload = if is_bad(n) { "bad".to_owned() } else { n.to_string() };
            let jobs = [format!("{n} before"), payload, format!("{n} after")];
            queue.enqueue_many(jobs.iter().map(|job| NewJob::new(job).unwrap()).collect()).await
        }
    });
    let results = join_all(calls).await;
    let mut added = 0;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(is_refused(result), is_bad(n), "{n}: {result:?}");
        added += result.as_ref().map_or(0, Vec::len) as u64;
    }
    assert_eq!(queue.stats().await.unwrap().ready, added);
    // What was refused is found by halves, not one by one.
    let transactions = transactions(&store).await;
    assert!(transactions <= 100, "{transactions} transactions for 200 calls");
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_ack_that_fails_fails_alone() {
    let store = store().await;
    let queue = store.queue("q").unwrap();
    let is_bad = |n: usize| n % 30 == 7;
    let payload = |n| if is_bad(n) { "bad".to_owned() } else { n.to_string() };
    let jobs = (0..100).map(|n| NewJob::new(&payload(n)).unwrap()).collect();
    queue.enqueue_many(jobs).await.unwrap();
    refuse_the_bad(&store).await;
    let mut claimed = queue.claim_batch("w", 100).await.unwrap();
    let results = join_all(claimed.iter_mut().map(|job| job.ack())).await;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(is_refused(result), is_bad(n), "{n}: {result:?}");
    }
    let left = queue.jobs(JobFilter::new()).await.unwrap();
    assert_eq!(left.len(), 4);
    assert!(left.iter().all(|job| job.payload.as_str() == r#""bad""#), "{left:?}");
    store.close().await.unwrap();
}

//! Ids of jobs and places of events.

use std::collections::BTreeSet;

use alkstore_core::{BoxFuture, EnqueueOpts, Error, JobId, NewJob, Offset, StoreExt};

use super::super::tx::offset;
use crate::cx::Cx;

pub(crate) async fn c20_an_id_is_1_to_the_largest_number(cx: Cx) {
    for number in [0, -1, i64::MIN] {
        let refused = JobId::try_from(number);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    }
    let refused = Offset::try_from(-1);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    let id = cx.store.queue("q").unwrap().enqueue(&1).await.unwrap();
    assert!(id.get() >= 1);
    // The largest ones name nothing, and break nothing.
    let largest = JobId::try_from(i64::MAX).unwrap();
    let queue = cx.store.queue("q").unwrap();
    assert_eq!(queue.get_job(largest).await.unwrap(), None);
    assert!(!queue.cancel(largest).await.unwrap());
    let filter = alkstore_core::JobFilter::new().after(largest);
    assert_eq!(queue.jobs(filter).await.unwrap(), []);
    let stream = cx.store.stream("log").unwrap();
    assert_eq!(stream.read(offset(i64::MAX), 10).await.unwrap(), []);
}

pub(crate) async fn c20_the_start_stands_before_the_first_event(cx: Cx) {
    let stream = cx.store.stream("log").unwrap();
    assert_eq!(Offset::START.get(), 0);
    assert_eq!(stream.consumer("c").unwrap().offset().await.unwrap(), Offset::START);
    assert_eq!(stream.publish(&1).await.unwrap().get(), 1);
    assert_eq!(stream.read(Offset::START, 10).await.unwrap().len(), 1);
}

pub(crate) async fn c21_job_ids_are_unique_in_the_store_and_ascend_within_a_call(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        let writers = stores.clone().into_iter().zip(["a", "b"]).map(|(store, queue)| {
            let add = async move {
                let queue = store.queue(queue).unwrap();
                let jobs = (0..10).map(|n| NewJob::new(&n).unwrap()).collect();
                queue.enqueue_many(jobs).await.unwrap()
            };
            Box::pin(add) as BoxFuture<'static, Vec<JobId>>
        });
        for ids in cx.together(writers).await {
            assert!(ids.is_sorted_by(|one, next| one < next), "round {round}: {ids:?}");
            assert!(ids.iter().all(|id| seen.insert(*id)), "round {round}: {ids:?} has one twice");
        }
    }
}

pub(crate) async fn c21_a_job_id_is_never_reused(cx: Cx) {
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        // Gone in each of the ways in which a job can go, the largest id too.
        let store = cx.second().await;
        let queue = store.queue("q").unwrap();
        let jobs = (0..3).map(|n| NewJob::new(&n).unwrap()).collect();
        let ids = queue.enqueue_many(jobs).await.unwrap();
        assert!(ids.iter().all(|id| seen.insert(*id)), "round {round}: {ids:?} was there before");
        assert!(queue.cancel(ids[0]).await.unwrap());
        queue.claim("w").await.unwrap().unwrap().fail("broken").await.unwrap();
        queue.claim("w").await.unwrap().unwrap().ack().await.unwrap();
        assert_eq!(queue.purge_dead(ids[1]).await.unwrap(), 1);
        assert_eq!(super::super::tx::jobs(&store, "q").await, 0);
        store.close().await.unwrap();
    }
}

pub(crate) async fn c21_an_id_that_a_transaction_took_is_never_reused(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    let mut seen = BTreeSet::new();
    for round in 0..12 {
        let [store, other] = [&stores[round % 2], &stores[(round + 1) % 2]];
        let queue = store.queue("q").unwrap();
        let mut tx = store.begin_tx().await.unwrap();
        let mut ids = vec![queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap()];
        let jobs = (0..3).map(|n| NewJob::new(&n).unwrap()).collect();
        ids.extend(queue.enqueue_many_tx(&mut tx, jobs).await.unwrap());
        match round / 2 % 3 {
            0 => tx.rollback().await.unwrap(),
            1 => drop(tx),
            _ => tx.commit().await.unwrap(),
        }
        // Whoever comes next: the same store, another one, or another transaction.
        ids.push(other.queue("other").unwrap().enqueue(&1).await.unwrap());
        let mut tx = store.begin_tx().await.unwrap();
        ids.push(queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap());
        tx.rollback().await.unwrap();
        assert!(ids.iter().all(|id| seen.insert(*id)), "round {round}: {ids:?} has one again");
    }
}

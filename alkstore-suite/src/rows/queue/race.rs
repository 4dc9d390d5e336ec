//! Two handles at the same moment.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{EnqueueOpts, Error, JobId, JobState, NewJob, Queue, Result, Store, StoreExt};

use super::{
    ROUNDS, add, add_dead, add_many, assert_lost, brief, brief_queue, count, keyed, queue, race,
    record, secs, state, take,
};
use crate::cx::Cx;

/// The queue through two independent handles on the same data.
async fn two(cx: &Cx) -> (Queue, Queue) {
    (brief_queue(cx), cx.second().await.queue_with("q", brief()).unwrap())
}

/// Does it again where it had to wait for too long.
macro_rules! repeat {
    ($call:expr) => {
        loop {
            match $call {
                Err(Error::Unavailable { .. }) => {}
                result => break result.unwrap(),
            }
        }
    };
}

pub(crate) async fn q18_two_enqueues_of_one_key_add_one_job(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let (a, b) = (one.clone(), other.clone());
        let (a, b) = race(&cx, round, async move { add(&a, keyed("k")).await }, async move {
            add(&b, keyed("k")).await
        })
        .await;
        assert_eq!(a, b);
        assert_eq!(count(&one).await, 1);
        assert!(one.cancel(a).await.unwrap());
    }
}

pub(crate) async fn q18_two_batches_with_the_same_keys_add_each_once(cx: Cx) {
    async fn add_keys(queue: Queue, keys: [&'static str; 2]) -> Vec<JobId> {
        repeat!({
            let jobs = keys.map(|key| NewJob::new(&1).unwrap().opts(keyed(key)));
            queue.enqueue_many(jobs.into()).await
        })
    }
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let forth = add_keys(one.clone(), ["a", "b"]);
        let back = add_keys(other.clone(), ["b", "a"]);
        let (forth, mut back) = race(&cx, round, forth, back).await;
        back.reverse();
        assert_eq!(forth, back);
        assert_eq!(count(&one).await, 2);
        for id in forth {
            assert!(one.cancel(id).await.unwrap());
        }
    }
}

pub(crate) async fn q18_two_transactions_that_stage_one_key_add_one_job(cx: Cx) {
    async fn stage(store: Arc<dyn Store>) -> Result<JobId> {
        let mut tx = store.begin_tx().await?;
        let id = store.queue("q")?.enqueue_tx(&mut tx, &1, keyed("k")).await?;
        tx.commit().await?;
        Ok(id)
    }
    let second = cx.second().await;
    let queue = queue(&cx);
    for round in 0..ROUNDS {
        let (one, other) = (cx.store.clone(), second.clone());
        let (a, b) =
            race(&cx, round, async move { repeat!(stage(one.clone()).await) }, async move {
                repeat!(stage(other.clone()).await)
            })
            .await;
        assert_eq!(a, b);
        assert_eq!(count(&queue).await, 1);
        assert!(queue.cancel(a).await.unwrap());
    }
}

pub(crate) async fn q15_a_key_and_the_ack_that_frees_it_leave_at_most_one_job(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let old = add(&one, keyed("k")).await;
        let mut job = take(&one).await;
        let adding = other.clone();
        let ((), id) = race(&cx, round, async move { job.ack().await.unwrap() }, async move {
            add(&adding, keyed("k")).await
        })
        .await;
        assert_eq!(state(&one, old).await, None);
        let left = usize::from(id != old);
        assert_eq!(count(&one).await, left, "the job that the enqueue answered with");
        assert_eq!(one.cancel(id).await.unwrap(), id != old);
    }
}

pub(crate) async fn q22_a_job_goes_to_one_claimant(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add(&one, EnqueueOpts::new()).await;
        let (a, b) = (one.clone(), other.clone());
        let (a, b) = race(&cx, round, async move { a.claim("a").await.unwrap() }, async move {
            b.claim("b").await.unwrap()
        })
        .await;
        let mut jobs: Vec<_> = a.into_iter().chain(b).collect();
        assert_eq!(jobs.len(), 1, "one job, and so many claims");
        assert_eq!((jobs[0].id(), jobs[0].attempt()), (id, 1));
        jobs[0].ack().await.unwrap();
    }
}

pub(crate) async fn q22_batches_of_two_claimants_share_no_job(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let mut added = add_many(&one, 6, EnqueueOpts::new()).await;
        let (a, b) = (one.clone(), other.clone());
        let (a, b) =
            race(&cx, round, async move { a.claim_batch("a", 4).await.unwrap() }, async move {
                b.claim_batch("b", 4).await.unwrap()
            })
            .await;
        assert!(a.len() <= 4 && b.len() <= 4, "more than asked for");
        let rest = one.claim_batch("rest", 6).await.unwrap();
        for mut job in a.into_iter().chain(b).chain(rest) {
            assert_eq!(job.attempt(), 1);
            assert!(added.contains(&job.id()), "job {} was claimed twice", job.id());
            added.retain(|id| *id != job.id());
            job.ack().await.unwrap();
        }
        assert!(added.is_empty(), "{added:?} were claimed by nobody");
    }
}

pub(crate) async fn q22_a_lapsed_job_goes_to_one_claimant(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        add(&one, EnqueueOpts::new()).await;
        let mut stale = take(&one).await;
        cx.advance(secs(10)).await;
        let (a, b) = (one.clone(), other.clone());
        let claims = cx.spawn(async move { b.claim("b").await.unwrap() });
        let (a, stale) = race(&cx, round, async move { a.claim("a").await.unwrap() }, async move {
            stale.heartbeat(secs(60)).await
        })
        .await;
        assert_lost(stale);
        let mut jobs: Vec<_> = a.into_iter().chain(claims.join().await).collect();
        if jobs.is_empty() {
            // Both passed by while somebody else looked at it.
            jobs.push(take(&one).await);
        }
        assert_eq!(jobs.len(), 1, "one job, and so many claims");
        assert_eq!(jobs[0].attempt(), 2);
        jobs[0].ack().await.unwrap();
    }
}

pub(crate) async fn q47_of_an_ack_and_a_cancel_one_takes_effect(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add(&one, EnqueueOpts::new()).await;
        let mut job = take(&one).await;
        let (acked, cancelled) = race(&cx, round, async move { job.ack().await }, {
            let other = other.clone();
            async move { other.cancel(id).await.unwrap() }
        })
        .await;
        assert_ne!(acked.is_ok(), cancelled, "both or neither: {acked:?}");
        if cancelled {
            assert_lost(acked);
        }
        assert_eq!(state(&one, id).await, None);
    }
}

pub(crate) async fn q47_of_two_cancels_one_takes_effect(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add(&one, EnqueueOpts::new()).await;
        let (a, b) = (one.clone(), other.clone());
        let (a, b) = race(&cx, round, async move { a.cancel(id).await.unwrap() }, async move {
            b.cancel(id).await.unwrap()
        })
        .await;
        assert_ne!(a, b);
    }
}

pub(crate) async fn q47_a_claim_and_a_cancel_agree(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add(&one, EnqueueOpts::new()).await;
        let claiming = other.clone();
        let cancelling = one.clone();
        let (claimed, cancelled) =
            race(&cx, round, async move { claiming.claim("w").await.unwrap() }, async move {
                cancelling.cancel(id).await.unwrap()
            })
            .await;
        assert!(cancelled || claimed.is_some());
        match claimed {
            Some(mut job) if cancelled => assert_lost(job.ack().await),
            Some(mut job) => job.ack().await.unwrap(),
            None => {}
        }
        assert_eq!(state(&one, id).await, None);
    }
}

pub(crate) async fn q49_of_two_requeues_one_counts_the_job(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add_dead(&one, EnqueueOpts::new()).await;
        let (a, b) = (one.clone(), other.clone());
        let (a, b) =
            race(&cx, round, async move { a.requeue_dead(id).await.unwrap() }, async move {
                b.requeue_dead(id).await.unwrap()
            })
            .await;
        assert_eq!(a + b, 1);
        assert!(one.cancel(id).await.unwrap());
    }
}

pub(crate) async fn q51_of_a_purge_and_a_requeue_one_has_the_job(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add_dead(&one, EnqueueOpts::new()).await;
        let (a, b) = (one.clone(), other.clone());
        let (purged, requeued) =
            race(&cx, round, async move { a.purge_dead(id).await.unwrap() }, async move {
                b.requeue_dead(id).await.unwrap()
            })
            .await;
        assert_eq!(purged + requeued, 1);
        assert_eq!(one.cancel(id).await.unwrap(), requeued == 1);
    }
}

pub(crate) async fn q50_a_requeue_and_an_enqueue_leave_one_holder_of_a_key(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let dead = add_dead(&one, keyed("k")).await;
        let (a, b) = (one.clone(), other.clone());
        let (requeued, id) =
            race(&cx, round, async move { repeat!(a.requeue_dead(dead).await) }, async move {
                repeat!(b.enqueue_with(&1, keyed("k")).await)
            })
            .await;
        assert_eq!(requeued == 1, id == dead, "requeued {requeued}, and {id} for {dead}");
        assert_eq!(one.stats().await.unwrap().ready, 1);
        assert!(one.cancel(id).await.unwrap());
        assert_eq!(one.purge_dead(dead).await.unwrap(), 1 - requeued);
    }
}

pub(crate) async fn q60_of_two_pauses_one_changes_something(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let (a, b) = (one.clone(), other.clone());
        let (a, b) = if round % 4 < 2 {
            race(&cx, round, async move { a.pause().await.unwrap() }, async move {
                b.pause().await.unwrap()
            })
            .await
        } else {
            race(&cx, round, async move { a.resume().await.unwrap() }, async move {
                b.resume().await.unwrap()
            })
            .await
        };
        assert_eq!(a != b, round % 2 == 0, "round {round}");
    }
}

pub(crate) async fn q53_maintenance_beside_claims_loses_nothing(cx: Cx) {
    let (one, other) = two(&cx).await;
    let second = cx.second().await;
    for round in 0..ROUNDS {
        let again = add(&one, EnqueueOpts::new()).await;
        let ends = add(&one, EnqueueOpts::new().max_attempts(1)).await;
        assert_eq!(one.claim_batch("killed", 2).await.unwrap().len(), 2);
        cx.advance(secs(10)).await;
        let (store, claiming) = (second.clone(), other.clone());
        let (_, jobs) =
            race(&cx, round, async move { store.maintain().await.unwrap() }, async move {
                claiming.claim_batch("w", 9).await.unwrap()
            })
            .await;
        let rest = one.claim_batch("w", 9).await.unwrap();
        let mut jobs: Vec<_> = jobs.into_iter().chain(rest).collect();
        assert_eq!(jobs.len(), 1);
        assert_eq!((jobs[0].id(), jobs[0].attempt()), (again, 2));
        jobs[0].ack().await.unwrap();
        assert_eq!(record(&one, ends).await.state, JobState::Dead);
        assert_eq!(one.purge_dead(ends).await.unwrap(), 1);
    }
}

pub(crate) async fn q42_of_a_release_and_a_cancel_the_holder_learns_which(cx: Cx) {
    let (one, other) = two(&cx).await;
    for round in 0..ROUNDS {
        let id = add(&one, EnqueueOpts::new()).await;
        let mut job = take(&one).await;
        let cancelling = other.clone();
        let (released, cancelled) =
            race(&cx, round, async move { job.release(Duration::ZERO).await }, async move {
                cancelling.cancel(id).await.unwrap()
            })
            .await;
        assert!(cancelled, "pending or claimed, it can be cancelled");
        if released.is_err() {
            assert_lost(released);
        }
        assert_eq!(state(&one, id).await, None);
    }
}

//! Two handles at the same moment, a hundred times over.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{BoxFuture, EnqueueOpts, Error, QueueOpts, Store, StoreExt};

use super::{claimed, jobs, state};
use crate::cx::Cx;

const ROUNDS: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

/// What a contender of a race came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Won,
    Lost,
}

type Contender = BoxFuture<'static, Outcome>;

pub(crate) async fn x38_of_commit_and_cancel_one_wins(cx: Cx) {
    let second = cx.second().await;
    for round in 0..ROUNDS {
        let mut job = claimed(&cx.store, "q").await;
        let (id, before) = (job.id(), jobs(&cx.store, "effects").await);
        let store = cx.store.clone();
        let commits: Contender = Box::pin(async move {
            let mut tx = store.begin_tx().await.unwrap();
            let effects = store.queue("effects").unwrap();
            effects.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
            match job.ack_tx(&mut tx).await {
                Ok(()) => {
                    tx.commit().await.expect("once staged, it can't fail for a lost claim");
                    Outcome::Won
                }
                Err(Error::ClaimLost { .. }) => {
                    tx.rollback().await.unwrap();
                    Outcome::Lost
                }
                Err(error) => panic!("{error}"),
            }
        });
        let queue = second.queue("q").unwrap();
        let cancels: Contender = Box::pin(async move {
            if queue.cancel(id).await.unwrap() { Outcome::Won } else { Outcome::Lost }
        });
        let outcomes = cx.together([commits, cancels]).await;
        assert_ne!(outcomes[0], outcomes[1], "round {round}: commit, cancel");
        let effects = jobs(&second, "effects").await - before;
        assert_eq!(effects, usize::from(outcomes[0] == Outcome::Won), "round {round}");
        assert_eq!(state(&second, "q", id).await, None, "round {round}");
    }
}

pub(crate) async fn x38_what_a_rollback_frees_goes_to_one_claimant(cx: Cx) {
    let (second, third) = (cx.second().await, cx.second().await);
    let queue = cx.store.queue_with("q", QueueOpts::new().visibility_timeout(MINUTE)).unwrap();
    for round in 0..ROUNDS {
        let id = queue.enqueue(&round).await.unwrap();
        let mut job = queue.claim("w").await.unwrap().expect("the job that was just enqueued");
        let mut tx = cx.store.begin_tx().await.unwrap();
        job.ack_tx(&mut tx).await.unwrap();
        cx.advance(MINUTE).await;
        let rolls_back: BoxFuture<'static, Option<u32>> = Box::pin(async move {
            tx.rollback().await.unwrap();
            None
        });
        let claims = |store: &Arc<dyn Store>| -> BoxFuture<'static, Option<u32>> {
            let queue = store.queue("q").unwrap();
            Box::pin(async move { Some(queue.claim("w").await.unwrap()?.attempt()) })
        };
        let claims = cx.together([claims(&second), rolls_back, claims(&third)]).await;
        let mut attempts: Vec<_> = claims.into_iter().flatten().collect();
        if let Some(late) = queue.claim("w").await.unwrap() {
            attempts.push(late.attempt());
        }
        assert_eq!(attempts, [2], "round {round}: the attempts of its claims");
        queue.cancel(id).await.unwrap();
    }
}

pub(crate) async fn x38_nobody_sees_half_a_commit(cx: Cx) {
    let second = cx.second().await;
    for round in 0..ROUNDS {
        let (writer, reader) = (cx.store.clone(), second.clone());
        let writes: BoxFuture<'static, ()> = Box::pin(async move {
            let mut tx = writer.begin_tx().await.unwrap();
            for queue in ["first", "second"] {
                let queue = writer.queue(queue).unwrap();
                queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
            }
            tx.commit().await.unwrap();
        });
        let reads: BoxFuture<'static, ()> = Box::pin(async move {
            for _ in 0..10 {
                for [one, other] in [["first", "second"], ["second", "first"]] {
                    let seen = jobs(&reader, one).await;
                    let also = jobs(&reader, other).await;
                    assert!(also >= seen, "round {round}: {seen} in {one}, then {also} in {other}");
                }
            }
        });
        cx.together([writes, reads]).await;
    }
    assert_eq!(jobs(&second, "first").await, ROUNDS);
    assert_eq!(jobs(&second, "second").await, ROUNDS);
}

pub(crate) async fn x38_one_key_from_inside_and_outside_adds_one_job(cx: Cx) {
    let second = cx.second().await;
    let queue = cx.store.queue("q").unwrap();
    let keyed = || EnqueueOpts::new().unique_key("k");
    for round in 0..ROUNDS {
        let (inside, outside) = (cx.store.clone(), second.queue("q").unwrap());
        let transacts: BoxFuture<'static, _> = Box::pin(async move {
            let queue = inside.queue("q").unwrap();
            let mut tx = inside.begin_tx().await.unwrap();
            let id = queue.enqueue_tx(&mut tx, &1, keyed()).await.unwrap();
            tx.commit().await.unwrap();
            id
        });
        let enqueues: BoxFuture<'static, _> =
            Box::pin(async move { outside.enqueue_with(&2, keyed()).await.unwrap() });
        let ids = cx.together([transacts, enqueues]).await;
        assert_eq!(ids[0], ids[1], "round {round}");
        assert_eq!(jobs(&cx.store, "q").await, 1, "round {round}");
        assert!(queue.cancel(ids[0]).await.unwrap(), "round {round}");
    }
}

pub(crate) async fn x38_a_claimed_job_was_committed_whole(cx: Cx) {
    let second = cx.second().await;
    for round in 0..ROUNDS {
        let (writer, claimer) = (cx.store.clone(), second.clone());
        let writes: BoxFuture<'static, ()> = Box::pin(async move {
            let mut tx = writer.begin_tx().await.unwrap();
            let (job, fact) = (writer.queue("job").unwrap(), writer.stream("facts").unwrap());
            job.enqueue_tx(&mut tx, &round, EnqueueOpts::new()).await.unwrap();
            fact.publish_tx(&mut tx, &round.to_string(), Default::default()).await.unwrap();
            tx.commit().await.unwrap();
        });
        let claims: BoxFuture<'static, ()> = Box::pin(async move {
            let mut job = claimer.queue("job").unwrap().next("w").await.unwrap();
            let facts = super::log(&claimer, "facts").await;
            assert_eq!(facts.len(), round + 1, "the job is there, its fact isn't");
            job.ack().await.unwrap();
        });
        cx.together([writes, claims]).await;
    }
}

//! The queue behind an outbox: who reaches it, and what is seen of it.

use alkstore_core::{
    DeadSelection, Error, JobFilter, JobId, JobState, OutboxOpts, QueueOpts, ScheduleOpts,
    StoreExt, Timestamp,
};

use super::{Held, NAME, QUEUE, deliver, outbox, put, record, secs};
use crate::cx::Cx;

pub(crate) async fn o1_the_backing_queue_is_reached_only_through_its_outbox(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let reserved =
        |error: &Error| matches!(error, Error::ReservedName { name, .. } if name == QUEUE);
    assert!(reserved(&cx.store.queue(QUEUE).unwrap_err()));
    assert!(reserved(&cx.store.queue_with(QUEUE, QueueOpts::new()).unwrap_err()));
    let scheduled = cx.store.schedule("s", "@every 5s", QUEUE, &1, ScheduleOpts::new()).await;
    assert!(reserved(&scheduled.unwrap_err()));
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert!(reserved(&tx.get_job_tx(QUEUE, id).await.unwrap_err()));
    tx.rollback().await.unwrap();
    assert_eq!(record(&cx.store, id).await.queue, QUEUE);
}

pub(crate) async fn o1_an_outbox_has_a_shared_name(cx: Cx) {
    let long = "n".repeat(256);
    for name in ["", " a", "a ", "a\tb", "a\u{85}", long.as_str()] {
        let result = cx.store.outbox(name).map(drop);
        assert!(
            matches!(&result, Err(Error::InvalidName { name: given, .. }) if given == name),
            "{name:?}: {result:?}"
        );
    }
    for name in ["__alkstore_", QUEUE] {
        let result = cx.store.outbox(name).map(drop);
        assert!(matches!(result, Err(Error::ReservedName { .. })), "{name:?}: {result:?}");
    }
    assert_eq!(cx.store.outbox(&long[1..]).unwrap().name(), &long[1..]);
}

pub(crate) async fn o1_outboxes_are_apart_from_each_other_and_from_queues(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    for other in ["mail", "Mails", "mails:", "post"] {
        let other = cx.store.outbox(other).unwrap();
        assert!(other.get_job(id).await.unwrap().is_none(), "{other:?}");
        assert!(!other.run_once("w", async |_| Ok::<_, String>(())).await.unwrap(), "{other:?}");
        assert!(!other.cancel(id).await.unwrap(), "{other:?}");
        assert!(other.pause().await.unwrap(), "{other:?}");
    }
    let queue = cx.store.queue(NAME).unwrap();
    assert!(queue.claim("w").await.unwrap().is_none());
    assert!(queue.get_job(id).await.unwrap().is_none());
    assert!(queue.pause().await.unwrap());
    assert!(deliver(&cx.store).await.unwrap());
}

pub(crate) async fn o25_a_delivery_is_found_by_id_and_listed(cx: Cx) {
    let mails = outbox(&cx.store);
    let mut ids = Vec::new();
    for payload in ["a", "b", "c"] {
        ids.push(put(&cx.store, payload).await);
    }
    let held = Held::begin(&cx, &cx.store).await;
    assert_eq!(held.delivery.id(), ids[0]);
    let listed = async |filter| -> Vec<JobId> {
        outbox(&cx.store).jobs(filter).await.unwrap().iter().map(|job| job.id).collect()
    };
    assert_eq!(listed(JobFilter::new()).await, ids);
    assert_eq!(listed(JobFilter::new().after(ids[0]).limit(1)).await, ids[1..2]);
    assert_eq!(listed(JobFilter::new().state(JobState::Claimed)).await, ids[..1]);
    let found = mails.get_job(ids[0]).await.unwrap().expect("it is known");
    assert_eq!((found.queue.as_str(), found.payload.as_str()), (QUEUE, "\"a\""));
    assert_eq!((found.state, found.worker_id.as_deref()), (JobState::Claimed, Some("w")));
    assert!(held.end(Ok(())).await.unwrap());
    assert!(mails.get_job(ids[0]).await.unwrap().is_none());
}

pub(crate) async fn o25_stats_count_deliveries(cx: Cx) {
    let mails = outbox(&cx.store);
    let now = cx.now().await;
    put(&cx.store, "claimed").await;
    let held = Held::begin(&cx, &cx.store).await;
    put(&cx.store, "ready").await;
    mails.enqueue(&"delayed", OutboxOpts::new().delay(secs(9))).await.unwrap();
    let stats = mails.stats().await.unwrap();
    assert_eq!((stats.ready, stats.delayed, stats.claimed, stats.dead), (1, 1, 1, 0));
    assert_eq!((stats.name.as_str(), stats.paused), (QUEUE, false));
    assert_eq!(stats.oldest_ready_at.map(Timestamp::from), Some(now));
    assert!(held.end(Ok(())).await.unwrap());
}

pub(crate) async fn o25_a_delivery_is_cancelled_unless_it_is_dead(cx: Cx) {
    let mails = outbox(&cx.store);
    let id = put(&cx.store, "waits").await;
    assert!(mails.cancel(id).await.unwrap());
    assert!(!mails.cancel(id).await.unwrap());
    let id = put(&cx.store, "under way").await;
    let held = Held::begin(&cx, &cx.store).await;
    assert!(mails.cancel(id).await.unwrap());
    let settled = held.end(Ok(())).await;
    assert!(matches!(settled, Err(Error::ClaimLost { .. })), "{settled:?}");
    let id = kill(&cx, "dead").await;
    assert!(!mails.cancel(id).await.unwrap());
    assert_eq!(record(&cx.store, id).await.state, JobState::Dead);
}

/// A delivery that has failed for good.
async fn kill(cx: &Cx, payload: &str) -> JobId {
    let mails = outbox(&cx.store);
    let id = mails.enqueue(payload, OutboxOpts::new().max_attempts(1)).await.unwrap();
    assert!(mails.run_once("w", async |_| Err("no such address")).await.unwrap());
    id
}

pub(crate) async fn o25_dead_deliveries_are_requeued(cx: Cx) {
    let mails = outbox(&cx.store);
    let (first, second) = (kill(&cx, "a").await, kill(&cx, "b").await);
    assert_eq!(mails.requeue_dead(first).await.unwrap(), 1);
    assert_eq!(mails.requeue_dead(first).await.unwrap(), 0);
    assert_eq!(record(&cx.store, second).await.state, JobState::Dead);
    assert!(deliver(&cx.store).await.unwrap());
    assert!(mails.get_job(first).await.unwrap().is_none(), "the requeued one was delivered");
    assert_eq!(mails.requeue_dead(DeadSelection::All).await.unwrap(), 1);
    assert!(deliver(&cx.store).await.unwrap());
}

pub(crate) async fn o25_dead_deliveries_are_purged(cx: Cx) {
    let mails = outbox(&cx.store);
    let first = kill(&cx, "a").await;
    kill(&cx, "b").await;
    put(&cx.store, "live").await;
    assert_eq!(mails.purge_dead(vec![first]).await.unwrap(), 1);
    assert!(mails.get_job(first).await.unwrap().is_none());
    assert_eq!(mails.purge_dead(DeadSelection::All).await.unwrap(), 1);
    let stats = mails.stats().await.unwrap();
    assert_eq!((stats.dead, stats.ready), (0, 1));
}

pub(crate) async fn o25_a_paused_outbox_delivers_nothing(cx: Cx) {
    let mails = outbox(&cx.store);
    put(&cx.store, "a").await;
    let held = Held::begin(&cx, &cx.store).await;
    assert!(mails.pause().await.unwrap());
    assert!(!mails.pause().await.unwrap());
    put(&cx.store, "b").await;
    assert!(!deliver(&cx.second().await).await.unwrap());
    assert!(held.end(Ok(())).await.unwrap(), "what is under way is settled");
    assert!(mails.stats().await.unwrap().paused);
    assert!(mails.resume().await.unwrap());
    assert!(!mails.resume().await.unwrap());
    assert!(deliver(&cx.store).await.unwrap());
}

pub(crate) async fn o26_the_backing_queue_is_listed_among_the_queues(cx: Cx) {
    let longest = "o".repeat(255);
    put(&cx.store, "a").await;
    let far = cx.store.outbox(&longest).unwrap();
    far.enqueue(&1, OutboxOpts::new()).await.unwrap();
    cx.store.outbox("paused").unwrap().pause().await.unwrap();
    cx.store.queue("Z").unwrap().enqueue(&1).await.unwrap();
    let backing = |name: &str| format!("__alkstore_outbox:{name}");
    assert_eq!(backing(&longest).len(), 273);
    let listed = cx.second().await.queues().await.unwrap();
    let names: Vec<_> = listed.iter().map(|queue| queue.name.clone()).collect();
    assert_eq!(names, ["Z".to_owned(), QUEUE.to_owned(), backing(&longest), backing("paused")]);
    let ready: Vec<_> = listed.iter().map(|queue| (queue.ready, queue.paused)).collect();
    assert_eq!(ready, [(1, false), (1, false), (1, false), (0, true)]);
    assert!(far.run_once("w", async |_| Ok::<_, String>(())).await.unwrap());
}

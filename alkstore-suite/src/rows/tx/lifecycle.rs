//! Begin, commit, rollback, drop; what is seen meanwhile, and who is woken.

use std::time::Duration;

use alkstore_core::{EnqueueOpts, JobState, PublishOpts, Retried, StoreExt, Topic, Wait};

use super::{Everything, beside, claimed, impatient, jobs, offset};
use crate::cx::Cx;

pub(crate) async fn x1_commit_makes_everything_staged_visible(cx: Cx) {
    let second = cx.second().await;
    let mut bell = second.listen(Everything::CHANNEL).await.unwrap();
    let mut all = Everything::new(&cx.store).await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    all.stage(&cx.store, &mut tx).await;
    tx.commit().await.unwrap();

    assert_eq!(all.seen_by(&cx.store).await, Everything::whole());
    assert_eq!(all.seen_by(&second).await, Everything::whole());
    let message = cx.within(bell.recv()).await.unwrap().unwrap();
    assert_eq!(message.payload.as_str(), r#""rung""#);
}

pub(crate) async fn x2_rollback_undoes_everything(cx: Cx) {
    let second = cx.second().await;
    let mut bell = second.listen(Everything::CHANNEL).await.unwrap();
    let mut all = Everything::new(&cx.store).await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    all.stage(&cx.store, &mut tx).await;
    tx.rollback().await.unwrap();

    assert_eq!(all.seen_by(&cx.store).await, Everything::nothing());
    assert_eq!(all.seen_by(&second).await, Everything::nothing());
    let heard = cx.briefly(&mut Box::pin(bell.recv())).await;
    assert!(heard.is_none(), "{heard:?}");
}

pub(crate) async fn x3_a_dropped_transaction_is_rolled_back(cx: Cx) {
    let second = cx.second().await;
    let mut bell = second.listen(Everything::CHANNEL).await.unwrap();
    let mut all = Everything::new(&cx.store).await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    all.stage(&cx.store, &mut tx).await;
    drop(tx);

    assert_eq!(all.seen_by(&cx.store).await, Everything::nothing());
    assert_eq!(all.seen_by(&second).await, Everything::nothing());
    let heard = cx.briefly(&mut Box::pin(bell.recv())).await;
    assert!(heard.is_none(), "{heard:?}");
    // What it held is free again.
    all.acked.ack().await.unwrap();
    all.retried.ack().await.unwrap();
    all.failed.ack().await.unwrap();
    second.queue("new").unwrap().enqueue(&"one").await.unwrap();
    assert_eq!(jobs(&cx.store, "new").await, 1);
}

pub(crate) async fn x4_nobody_else_sees_what_is_staged(cx: Cx) {
    let (second, hasty) = (cx.second().await, impatient(&cx).await);
    let mut bell = second.listen(Everything::CHANNEL).await.unwrap();
    let mut all = Everything::new(&cx.store).await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    all.stage(&cx.store, &mut tx).await;

    if !cx.capabilities().one_connection {
        assert_eq!(all.seen_by(&cx.store).await, Everything::nothing(), "the store it is of");
    }
    assert_eq!(all.seen_by(&second).await, Everything::nothing(), "another store");
    for queue in ["new", "again"] {
        let queue = hasty.queue(queue).unwrap();
        let job = beside(&cx, queue.claim("thief")).await.flatten();
        assert!(job.is_none(), "claimed {job:?} before the commit");
    }
    let outbox = hasty.outbox("mails").unwrap();
    let delivered = beside(&cx, outbox.run_once("thief", async |_| Ok::<_, String>(()))).await;
    assert_ne!(delivered, Some(true));
    let heard = cx.briefly(&mut Box::pin(bell.recv())).await;
    assert!(heard.is_none(), "{heard:?}");
    tx.commit().await.unwrap();
    assert_eq!(all.seen_by(&second).await, Everything::whole());
}

pub(crate) async fn x5_reads_inside_see_what_the_transaction_wrote(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let reader = cx.store.stream("log").unwrap().consumer("reader").unwrap();
    cx.store.stream("log").unwrap().publish(&"before").await.unwrap();
    let mut acked = claimed(&cx.store, "q").await;
    let mut retried = claimed(&cx.store, "q").await;
    let mut failed = claimed(&cx.store, "q").await;
    let pause = Duration::from_secs(60);

    let mut tx = cx.store.begin_tx().await.unwrap();
    let held = tx.get_job_tx("q", acked.id()).await.unwrap().expect("a committed job");
    assert_eq!(held.state, JobState::Claimed);

    let staged = queue.enqueue_tx(&mut tx, &"new", EnqueueOpts::new().priority(7)).await.unwrap();
    let record = tx.get_job_tx("q", staged).await.unwrap().expect("the job it staged");
    assert_eq!((record.state, record.priority), (JobState::Pending, 7));
    assert_eq!(record.payload.as_str(), r#""new""#);

    acked.ack_tx(&mut tx).await.unwrap();
    assert_eq!(tx.get_job_tx("q", acked.id()).await.unwrap(), None);

    let again = retried.retry_tx(&mut tx, "busy", Some(pause)).await.unwrap();
    let record = tx.get_job_tx("q", retried.id()).await.unwrap().expect("the job it retried");
    assert_eq!((record.state, record.last_error.as_deref()), (JobState::Pending, Some("busy")));
    assert_eq!(again, Retried::Again { at: record.ready_at });

    failed.fail_tx(&mut tx, "broken").await.unwrap();
    let record = tx.get_job_tx("q", failed.id()).await.unwrap().expect("the job it failed");
    assert_eq!((record.state, record.last_error.as_deref()), (JobState::Dead, Some("broken")));

    assert_eq!(tx.get_offset_tx("log", "reader").await.unwrap().get(), 0);
    reader.save_offset_tx(&mut tx, offset(1)).await.unwrap();
    assert_eq!(tx.get_offset_tx("log", "reader").await.unwrap().get(), 1);
    tx.commit().await.unwrap();
}

pub(crate) async fn x6_a_commit_wakes_who_waits_for_what_it_brought(cx: Cx) {
    let second = cx.second().await;
    let queue = second.queue("q").unwrap();
    let waiting = cx.spawn(async move { queue.next("w").await.unwrap().id() });
    let mut tail = second.stream("log").unwrap().consumer("c").unwrap().subscribe().await.unwrap();
    let reading = cx.spawn(async move { tail.recv().await.unwrap().unwrap().offset.get() });
    let mut bell = second.listen("bell").await.unwrap();
    let hearing = cx.spawn(async move { bell.recv().await.unwrap().unwrap().payload });
    let outbox = second.outbox("mails").unwrap();
    let stop = alkstore_core::StopToken::new();
    let stopper = stop.clone();
    let delivering = cx.spawn(async move {
        let deliver = |_| {
            stopper.stop();
            async { Ok::<_, String>(()) }
        };
        outbox.run("courier", deliver, stop).await
    });
    cx.settle().await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    let id = queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    stream.publish_tx(&mut tx, &1, PublishOpts::new()).await.unwrap();
    tx.notify_tx("bell", &1).await.unwrap();
    let mails = cx.store.outbox("mails").unwrap();
    mails.enqueue_tx(&mut tx, &1, alkstore_core::OutboxOpts::new()).await.unwrap();
    cx.settle().await;
    assert!(!waiting.is_done() && !reading.is_done(), "woken before the commit");
    assert!(!hearing.is_done() && !delivering.is_done(), "woken before the commit");
    tx.commit().await.unwrap();

    assert_eq!(waiting.join().await, id);
    assert_eq!(reading.join().await, 1);
    assert_eq!(hearing.join().await.as_str(), "1");
    delivering.join().await.unwrap();
}

pub(crate) async fn x6_a_settlement_that_commits_wakes_who_waits_for_the_job(cx: Cx) {
    let second = cx.second().await;
    let mut job = claimed(&cx.store, "q").await;
    let (id, queue) = (job.id(), second.queue("q").unwrap());
    let waiting = cx.spawn(async move { queue.next("w").await.unwrap().id() });
    cx.settle().await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    job.retry_tx(&mut tx, "busy", Some(Duration::ZERO)).await.unwrap();
    cx.settle().await;
    assert!(!waiting.is_done(), "claimed before the commit");
    tx.commit().await.unwrap();
    assert_eq!(waiting.join().await, id);
}

pub(crate) async fn x7_a_rollback_wakes_nobody(cx: Cx) {
    let second = cx.second().await;
    let queue = second.queue("new").unwrap();
    let waiting = cx.spawn(async move { queue.next("w").await.unwrap().id() });
    let mut tail = second.stream("log").unwrap().consumer("c").unwrap().subscribe().await.unwrap();
    let mut bell = second.listen(Everything::CHANNEL).await.unwrap();
    let mut all = Everything::new(&cx.store).await;
    cx.within(tail.recv()).await.unwrap().unwrap();
    let log = Topic::Stream(alkstore_core::StreamName::new("log").unwrap());
    let mut watch = cx.store.watch(log).await.unwrap();
    cx.settle().await;

    for drop_it in [false, true] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        all.stage(&cx.store, &mut tx).await;
        if drop_it {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        let woken = cx.briefly(&mut watch.changed(Wait::default())).await;
        assert!(woken.is_none(), "the stream's watch was woken; dropped: {drop_it}");
        let heard = cx.briefly(&mut Box::pin(bell.recv())).await;
        assert!(heard.is_none(), "heard {heard:?}; dropped: {drop_it}");
        let read = cx.briefly(&mut Box::pin(tail.recv())).await;
        assert!(read.is_none(), "read {read:?}; dropped: {drop_it}");
        assert!(!waiting.is_done(), "a job was claimed; dropped: {drop_it}");
    }
    // The waiter still waits, and is woken by what commits.
    let id = cx.store.queue("new").unwrap().enqueue(&1).await.unwrap();
    assert_eq!(waiting.join().await, id);
}

pub(crate) async fn x8_every_instant_is_that_of_the_staging_call(cx: Cx) {
    let minute = Duration::from_secs(60);
    let queue = cx.store.queue("q").unwrap();
    let mut retried = claimed(&cx.store, "again").await;
    let mut failed = claimed(&cx.store, "failed").await;

    let mut tx = cx.store.begin_tx().await.unwrap();
    cx.advance(minute).await;
    let staged_at = cx.now().await;
    let opts = EnqueueOpts::new().delay(3 * minute).expires(5 * minute);
    let id = queue.enqueue_tx(&mut tx, &1, opts).await.unwrap();
    let stream = cx.store.stream("log").unwrap();
    stream.publish_tx(&mut tx, &1, PublishOpts::new()).await.unwrap();
    let again = retried.retry_tx(&mut tx, "busy", Some(minute)).await.unwrap();
    failed.fail_tx(&mut tx, "broken").await.unwrap();
    cx.advance(2 * minute).await;
    tx.commit().await.unwrap();

    let job = queue.get_job(id).await.unwrap().expect("the job that committed");
    assert_eq!(job.enqueued_at, staged_at.into());
    assert_eq!(job.ready_at, staged_at.plus(3 * minute).into());
    assert_eq!(job.expires_at, Some(staged_at.plus(5 * minute).into()));
    let event = &stream.read(alkstore_core::Offset::START, 1).await.unwrap()[0];
    assert_eq!(event.published_at, staged_at.into());
    assert_eq!(again, Retried::Again { at: staged_at.plus(minute).into() });
    let queue = cx.store.queue("again").unwrap();
    assert!(queue.claim("w").await.unwrap().is_some(), "the retry's minute has passed");
    let dead = cx.store.queue("failed").unwrap().get_job(failed.id()).await.unwrap().unwrap();
    assert_eq!(dead.died_at, Some(staged_at.into()));
}

pub(crate) async fn x9_a_type_that_is_not_the_engines_transaction_is_none(cx: Cx) {
    struct NobodysTransaction;
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert!(tx.engine::<NobodysTransaction>().is_none());
    let queue = cx.store.queue("q").unwrap();
    queue.enqueue_tx(&mut tx, &1, EnqueueOpts::new()).await.unwrap();
    assert!(tx.engine::<NobodysTransaction>().is_none());
    tx.commit().await.unwrap();
    assert_eq!(jobs(&cx.store, "q").await, 1);
}

//! What an enqueue stores: payload, ids, stamps, instants.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use alkstore_core::{
    EnqueueOpts, Error, Headers, JobId, JobState, MAX_LEASE, NewJob, OutboxOpts, Payload,
    QueueOpts, Retried, StoreExt, Timestamp,
};

use super::super::tools::before_1970;
use super::{
    add, add_dead, add_many, assert_invalid, assert_none, brief, count, ids, millis, now, queue,
    record, secs, take, take_id,
};
use crate::cx::Cx;
use crate::factory::OpenOptions;

pub(crate) async fn q1_a_job_is_handed_out_as_it_was_enqueued(cx: Cx) {
    let queue = queue(&cx);
    let text = "{ \"to\" :\"ada\\u0000\",\"n\": 1.50,\t\"n\":2 }";
    let headers = Headers::new([("traceparent", "00-4bf9"), ("empty", "")]).unwrap();
    let opts = EnqueueOpts::new().headers(headers.clone());
    let enqueued_at = now(&cx).await;
    let id = queue.enqueue_with(Payload::from_json_text(text).unwrap(), opts).await.unwrap();
    cx.advance(secs(1)).await;

    let job = take(&cx.second().await.queue("q").unwrap()).await;
    assert_eq!(job.id(), id);
    assert_eq!(job.queue(), "q");
    assert_eq!(job.attempt(), 1);
    assert_eq!(job.payload().as_str(), text);
    assert_eq!(job.headers(), &headers);
    assert_eq!(job.enqueued_at(), enqueued_at);
    let record = record(&queue, id).await;
    assert_eq!(record.queue, "q");
    assert_eq!(record.payload.as_str(), text);
    assert_eq!(record.headers, headers);
    assert_eq!(record.enqueued_at, enqueued_at);
}

pub(crate) async fn q1_headers_and_payload_travel_through_every_state(cx: Cx) {
    let queue = queue(&cx);
    let headers = Headers::new([("traceparent", "00-4bf9")]).unwrap();
    let id = add(&queue, EnqueueOpts::new().headers(headers.clone())).await;
    take(&queue).await.retry("once", Some(Duration::ZERO)).await.unwrap();
    take(&queue).await.fail("twice").await.unwrap();
    let dead = record(&queue, id).await;
    assert_eq!((dead.headers, dead.payload.as_str()), (headers.clone(), "\"work\""));
    queue.requeue_dead(id).await.unwrap();
    let job = take(&queue).await;
    assert_eq!((job.headers(), job.payload().as_str()), (&headers, "\"work\""));
}

pub(crate) async fn q2_an_id_is_never_used_again(cx: Cx) {
    let (one, other) = (queue(&cx), cx.second().await.queue("other").unwrap());
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        for queue in [&one, &other] {
            let acked = add(queue, EnqueueOpts::new()).await;
            take(queue).await.ack().await.unwrap();
            let cancelled = add(queue, EnqueueOpts::new()).await;
            assert!(queue.cancel(cancelled).await.unwrap());
            let purged = add_dead(queue, EnqueueOpts::new()).await;
            assert_eq!(queue.purge_dead(purged).await.unwrap(), 1);
            for id in [acked, cancelled, purged] {
                assert!(id.get() >= 1);
                assert!(seen.insert(id), "{id} was used before");
            }
        }
    }
}

pub(crate) async fn q2_ids_of_one_call_ascend(cx: Cx) {
    let added = add_many(&queue(&cx), 50, EnqueueOpts::new()).await;
    assert!(added.is_sorted_by(|a, b| a < b), "{added:?}");
}

pub(crate) async fn q2_concurrent_writers_get_ids_of_their_own(cx: Cx) {
    let (one, other) = (queue(&cx), cx.second().await.queue("other").unwrap());
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        let many = |queue: alkstore_core::Queue| -> alkstore_core::BoxFuture<'static, Vec<JobId>> {
            Box::pin(async move { add_many(&queue, 5, EnqueueOpts::new()).await })
        };
        for added in cx.together([many(one.clone()), many(other.clone())]).await {
            assert!(added.is_sorted_by(|a, b| a < b), "{added:?}");
            for id in added {
                assert!(seen.insert(id), "{id} was given out twice");
            }
        }
    }
}

pub(crate) async fn q3_a_job_keeps_the_stamps_of_its_enqueue(cx: Cx) {
    let first = QueueOpts::new()
        .visibility_timeout(secs(10))
        .max_attempts(7)
        .retry_base(secs(1_000))
        .dead_retention(secs(60));
    let later = QueueOpts::new().visibility_timeout(secs(20)).max_attempts(9);
    let one = cx.store.queue_with("q", first).unwrap();
    let other = cx.second().await.queue_with("q", later).unwrap();
    let old = add(&one, EnqueueOpts::new()).await;
    let new = add(&other, EnqueueOpts::new()).await;

    let mut job = take(&other).await;
    assert_eq!(job.id(), old);
    assert_eq!((job.visibility_timeout(), job.max_attempts()), (secs(10), 7));
    let claimed_at = now(&cx).await;
    assert_eq!(job.deadline(), claimed_at + secs(10));
    let stamped = record(&other, old).await;
    assert_eq!((stamped.visibility_timeout, stamped.max_attempts), (secs(10), 7));
    assert_eq!((stamped.retry_base, stamped.dead_retention), (secs(1_000), Some(secs(60))));
    let Retried::Again { at } = job.retry("again", None).await.unwrap() else {
        panic!("six attempts are left")
    };
    assert!(at >= claimed_at + secs(500), "the backoff isn't that of the stamp: {at:?}");

    let job = take(&one).await;
    assert_eq!(job.id(), new);
    assert_eq!((job.visibility_timeout(), job.max_attempts()), (secs(20), 9));
    assert_eq!(record(&one, new).await.dead_retention, None);
}

pub(crate) async fn q4_a_handle_alone_leaves_no_trace(cx: Cx) {
    let queue = cx.store.queue_with("q", brief()).unwrap();
    assert_eq!(queue.name(), "q");
    assert_none(&queue).await;
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.name.as_str(), stats.ready, stats.paused), ("q", 0, false));
    assert!(cx.store.queues().await.unwrap().is_empty());
}

pub(crate) async fn q5_a_queue_has_defaults(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let record = record(&queue, id).await;
    assert_eq!(record.visibility_timeout, secs(300));
    assert_eq!(record.max_attempts, 3);
    assert_eq!(record.retry_base, secs(5));
    assert_eq!(record.dead_retention, None);
    assert_eq!((record.priority, record.attempt), (0, 0));
    assert_eq!((record.expires_at, record.unique_key), (None, None));
    assert!(record.headers.is_empty());
}

pub(crate) async fn q5_the_queue_of_an_outbox_has_its_own_defaults(cx: Cx) {
    let outbox = cx.store.outbox("o").unwrap();
    let id = outbox.enqueue(&1, OutboxOpts::default()).await.unwrap();
    let record = outbox.get_job(id).await.unwrap().expect("the job exists");
    assert_eq!(record.visibility_timeout, secs(60));
    assert_eq!(record.max_attempts, 5);
    assert_eq!(record.retry_base, secs(5));
    assert_eq!(record.dead_retention, None);
}

pub(crate) async fn q6_options_out_of_bounds_are_refused(cx: Cx) {
    let beyond = MAX_LEASE + Duration::from_nanos(1);
    for timeout in [Duration::ZERO, Duration::from_micros(999), beyond, Duration::MAX] {
        let opts = QueueOpts::new().visibility_timeout(timeout);
        assert_invalid(cx.store.queue_with("q", opts));
    }
    assert_invalid(cx.store.queue_with("q", QueueOpts::new().max_attempts(0)));
    let none = EnqueueOpts::new().max_attempts(0);
    let queue = queue(&cx);
    assert_invalid(queue.enqueue_with(&1, none.clone()).await);
    let mut tx = cx.store.begin_tx().await.unwrap();
    assert_invalid(queue.enqueue_tx(&mut tx, &1, none).await);
    tx.commit().await.unwrap();
    assert!(cx.store.queues().await.unwrap().is_empty(), "something was written");
}

pub(crate) async fn q6_a_visibility_timeout_may_be_at_its_bounds(cx: Cx) {
    let cases =
        [(millis(1), millis(1)), (Duration::from_micros(1_001), millis(2)), (MAX_LEASE, MAX_LEASE)];
    for (n, (given, stamped)) in cases.into_iter().enumerate() {
        let opts = QueueOpts::new().visibility_timeout(given);
        let queue = cx.store.queue_with(&format!("q{n}"), opts).unwrap();
        add(&queue, EnqueueOpts::new()).await;
        let job = take(&queue).await;
        assert_eq!(job.visibility_timeout(), stamped);
        assert_eq!(job.deadline(), now(&cx).await + stamped);
    }
}

pub(crate) async fn q7_a_delay_is_neither_early_nor_late(cx: Cx) {
    let queue = queue(&cx);
    let start = now(&cx).await;
    let id = add(&queue, EnqueueOpts::new().delay(millis(100))).await;
    assert_eq!(record(&queue, id).await.ready_at, start + millis(100));
    cx.advance(millis(99)).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    assert_eq!(take_id(&queue).await, id);
}

pub(crate) async fn q7_a_delay_rounds_up_to_the_millisecond(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new().delay(Duration::from_micros(1_001))).await;
    cx.advance(millis(1)).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    assert_eq!(take_id(&queue).await, id);
}

pub(crate) async fn q8_a_job_runs_from_its_instant_on(cx: Cx) {
    let queue = queue(&cx);
    let start = now(&cx).await;
    let at = start + secs(60) + Duration::from_nanos(1);
    let id = add(&queue, EnqueueOpts::new().run_at(at)).await;
    let due = start + secs(60) + millis(1);
    assert_eq!(record(&queue, id).await.ready_at, due, "rounded up to the millisecond");
    cx.advance(secs(60)).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    assert_eq!(take_id(&queue).await, id);
}

pub(crate) async fn q8_a_past_instant_is_ready_now(cx: Cx) {
    let queue = queue(&cx);
    let past = [now(&cx).await - secs(3_600), before_1970(secs(3_600))];
    for at in past {
        let id = add(&queue, EnqueueOpts::new().run_at(at)).await;
        assert_eq!(queue.stats().await.unwrap().ready, 1);
        let mut job = take(&queue).await;
        assert_eq!(job.id(), id);
        job.ack().await.unwrap();
    }
}

pub(crate) async fn q9_a_delay_wins_over_an_instant(cx: Cx) {
    let queue = queue(&cx);
    let start = now(&cx).await;
    let delay = EnqueueOpts::new().delay(secs(60));
    let late = add(&queue, delay.clone().run_at(start + secs(3_600))).await;
    let past = add(&queue, delay.run_at(start - secs(3_600))).await;
    let none = EnqueueOpts::new().delay(Duration::ZERO).run_at(start + secs(3_600));
    let at_once = add(&queue, none).await;
    assert_eq!(record(&queue, late).await.ready_at, start + secs(60));
    assert_eq!(record(&queue, past).await.ready_at, start + secs(60));
    assert_eq!(take_id(&queue).await, at_once);
    assert_none(&queue).await;
}

pub(crate) async fn q10_the_longest_delay_is_far_away(cx: Cx) {
    let queue = queue(&cx);
    let far_away = SystemTime::from(Timestamp::FAR_AWAY);
    let year_11000 = SystemTime::UNIX_EPOCH + secs(285_000_000_000);
    for opts in [EnqueueOpts::new().delay(Duration::MAX), EnqueueOpts::new().run_at(year_11000)] {
        let id = add(&queue, opts).await;
        assert_eq!(record(&queue, id).await.ready_at, far_away);
        assert_eq!(queue.stats().await.unwrap().delayed, 1);
        assert!(queue.cancel(id).await.unwrap());
    }
    let id = add(&queue, EnqueueOpts::new().expires(Duration::MAX)).await;
    assert_eq!(record(&queue, id).await.expires_at, Some(far_away));
    let again = take(&queue).await.retry("later", Some(Duration::MAX)).await.unwrap();
    assert_eq!(again, Retried::Again { at: far_away });
    add(&queue, EnqueueOpts::new()).await;
    take(&queue).await.release(Duration::MAX).await.unwrap();
    assert_eq!(queue.stats().await.unwrap().delayed, 2);
}

pub(crate) async fn q10_the_longest_stamps_are_legal(cx: Cx) {
    let opts = QueueOpts::new().retry_base(Duration::MAX).dead_retention(Duration::MAX);
    let queue = cx.store.queue_with("q", opts.max_attempts(u32::MAX)).unwrap();
    let id = add(&queue, EnqueueOpts::new().expires(secs(3_600 * 24))).await;
    let start = now(&cx).await;
    let Retried::Again { at } = take(&queue).await.retry("again", None).await.unwrap() else {
        panic!("attempts are left")
    };
    assert!(at >= start + secs(1_800) && at <= start + secs(3_600), "{at:?}");
    cx.advance(secs(3_600)).await;
    let mut job = take(&queue).await;
    assert_eq!(job.max_attempts(), u32::MAX);
    job.fail("no").await.unwrap();
    cx.advance(MAX_LEASE).await;
    cx.store.maintain().await.unwrap();
    assert_eq!(record(&queue, id).await.state, JobState::Dead);
}

pub(crate) async fn q11_a_priority_is_any_number_and_higher_comes_first(cx: Cx) {
    let queue = queue(&cx);
    let mut by_priority = Vec::new();
    for priority in [0, i32::MIN, 7, i32::MAX, -1] {
        let id = add(&queue, EnqueueOpts::new().priority(priority)).await;
        assert_eq!(record(&queue, id).await.priority, priority);
        by_priority.push((std::cmp::Reverse(priority), id));
    }
    by_priority.sort();
    let expected: Vec<_> = by_priority.into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids(&queue.claim_batch("w", 10).await.unwrap()), expected);
}

pub(crate) async fn q12_many_jobs_are_added_in_order(cx: Cx) {
    let queue = queue(&cx);
    let added = add_many(&queue, 5, EnqueueOpts::new()).await;
    assert_eq!(added.len(), 5);
    let jobs = queue.claim_batch("w", 10).await.unwrap();
    assert_eq!(ids(&jobs), added);
    let payloads: Vec<usize> = jobs.iter().map(|job| job.decode().unwrap()).collect();
    assert_eq!(payloads, [0, 1, 2, 3, 4]);
    assert!(queue.enqueue_many(Vec::new()).await.unwrap().is_empty());
}

pub(crate) async fn q12_many_jobs_are_added_all_or_none(cx: Cx) {
    let limit = OpenOptions { payload_limit: Some(100), ..OpenOptions::default() };
    let queue = cx.open(limit).await.queue("q").unwrap();
    let good = || NewJob::new(&1).unwrap();
    let long = NewJob::new(&"x".repeat(200)).unwrap();
    let too_large = queue.enqueue_many(vec![good(), long, good()]).await;
    assert!(matches!(too_large, Err(Error::PayloadTooLarge { size: 202, limit: 100 })));
    let no_attempts = good().opts(EnqueueOpts::new().max_attempts(0));
    assert_invalid(queue.enqueue_many(vec![good(), no_attempts]).await);
    let bad_key = good().opts(EnqueueOpts::new().unique_key("\n"));
    let bad_name = queue.enqueue_many(vec![good(), bad_key]).await;
    assert!(matches!(bad_name, Err(Error::InvalidName { .. })));
    assert_eq!(count(&queue).await, 0);
}

pub(crate) async fn q12_nobody_sees_a_part_of_many(cx: Cx) {
    let queue = queue(&cx);
    let reader = cx.second().await.queue("q").unwrap();
    for round in 1..=20 {
        let adding = queue.clone();
        let writer = cx.spawn(async move { add_many(&adding, 10, EnqueueOpts::new()).await });
        cx.until(async || {
            let done = writer.is_done();
            let seen = count(&reader).await;
            assert_eq!(seen % 10, 0, "a part of a batch is visible");
            assert!(!done || seen == 10 * round, "a batch that was added isn't visible");
            done
        })
        .await;
    }
}

pub(crate) async fn q13_a_job_may_have_its_own_number_of_attempts(cx: Cx) {
    let queue = queue(&cx);
    add(&queue, EnqueueOpts::new().max_attempts(1)).await;
    let mut job = take(&queue).await;
    assert_eq!(job.max_attempts(), 1);
    assert_eq!(job.retry("no", None).await.unwrap(), Retried::Dead);
    add(&queue, EnqueueOpts::new().max_attempts(u32::MAX)).await;
    assert_eq!(take(&queue).await.max_attempts(), u32::MAX);
}

pub(crate) async fn q14_an_expiry_counts_from_the_enqueue(cx: Cx) {
    let queue = queue(&cx);
    let start = now(&cx).await;
    let opts = EnqueueOpts::new().delay(secs(10)).expires(secs(5));
    let never = add(&queue, opts).await;
    let at_once = add(&queue, EnqueueOpts::new().expires(Duration::ZERO)).await;
    let rounded = add(&queue, EnqueueOpts::new().expires(Duration::from_micros(1_001))).await;
    assert_eq!(record(&queue, never).await.expires_at, Some(start + secs(5)));
    assert_eq!(record(&queue, at_once).await.state, JobState::Dead);
    assert_eq!(record(&queue, rounded).await.expires_at, Some(start + millis(2)));
    assert_eq!(take_id(&queue).await, rounded);
    cx.advance(secs(10)).await;
    assert_none(&queue).await;
    assert_eq!(record(&queue, never).await.died_at, Some(start + secs(5)));
}

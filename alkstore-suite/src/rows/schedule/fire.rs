//! The jobs that a schedule fires.

use std::time::Duration;

use alkstore_core::{
    Headers, JobState, MAX_LEASE, QueueOpts, Retried, ScheduleOpts, StoreExt, Timestamp,
};

use super::{QUEUE, boundary, every, fired, secs, tick};
use crate::cx::Cx;

pub(crate) async fn h17_a_fired_job_has_the_defaults_of_its_queue(cx: Cx) {
    // What another handle on the queue stamps its own jobs with doesn't matter.
    let opts = QueueOpts::new().max_attempts(9).visibility_timeout(secs(1)).retry_base(secs(1));
    let queue = cx.store.queue_with(QUEUE, opts.dead_retention(secs(1))).unwrap();
    queue.enqueue(&0).await.unwrap();
    every(&cx.store, "s", "@every 5s").await;
    cx.advance(secs(5)).await;
    tick(&cx.store).await;
    let job = &fired(&cx.store).await[1];
    assert_eq!(job.visibility_timeout, secs(300));
    assert_eq!((job.max_attempts, job.retry_base), (3, secs(5)));
    assert_eq!((job.dead_retention, job.expires_at), (None, None));
    assert_eq!((job.priority, job.unique_key.as_deref()), (0, None));
}

pub(crate) async fn h17_each_option_stamps_the_fired_job(cx: Cx) {
    let opts = ScheduleOpts::new()
        .priority(i32::MIN)
        .max_attempts(7)
        .expires(secs(40))
        .visibility_timeout(secs(50))
        .retry_base(secs(6))
        .dead_retention(secs(70));
    cx.store.schedule("s", "@every 5s", QUEUE, &1, opts).await.unwrap();
    cx.advance(secs(5)).await;
    tick(&cx.store).await;
    let job = &fired(&cx.store).await[0];
    assert_eq!((job.priority, job.max_attempts), (i32::MIN, 7));
    assert_eq!((job.visibility_timeout, job.retry_base), (secs(50), secs(6)));
    assert_eq!(job.dead_retention, Some(secs(70)));
    assert_eq!(job.expires_at.map(Timestamp::from), Some(cx.now().await.plus(secs(40))));
}

pub(crate) async fn h17_options_saturate_and_round_up(cx: Cx) {
    let opts = ScheduleOpts::new()
        .expires(Duration::MAX)
        .retry_base(Duration::MAX)
        .dead_retention(Duration::MAX)
        .visibility_timeout(Duration::from_micros(1_001));
    cx.store.schedule("far", "@every 5s", QUEUE, &1, opts).await.unwrap();
    cx.advance(secs(5)).await;
    assert_eq!(tick(&cx.store).await, 1);
    let queue = cx.store.queue(QUEUE).unwrap();
    let job = &fired(&cx.store).await[0];
    assert_eq!(job.expires_at.map(Timestamp::from), Some(Timestamp::FAR_AWAY));
    assert_eq!(job.visibility_timeout, Duration::from_millis(2));
    let mut claimed = queue.claim("w").await.unwrap().expect("it fired");
    claimed.fail("no").await.unwrap();
    cx.advance(MAX_LEASE).await;
    assert_eq!(queue.stats().await.unwrap().dead, 1, "it is kept");
}

pub(crate) async fn h17_options_are_resolved_anew_at_each_fire(cx: Cx) {
    for (opts, attempts, visibility) in [
        (ScheduleOpts::new(), 3, 300),
        (ScheduleOpts::new().max_attempts(8), 8, 300),
        (ScheduleOpts::new().visibility_timeout(secs(9)), 3, 9),
        (ScheduleOpts::new(), 3, 300),
    ] {
        cx.store.schedule("s", "@every 5s", QUEUE, &1, opts.clone()).await.unwrap();
        cx.advance(secs(5)).await;
        tick(&cx.store).await;
        let jobs = fired(&cx.store).await;
        let job = jobs.last().expect("it fired");
        assert_eq!(job.max_attempts, attempts, "{opts:?}");
        assert_eq!(job.visibility_timeout, secs(visibility), "{opts:?}");
    }
    let earlier: Vec<_> = fired(&cx.store).await.iter().map(|job| job.max_attempts).collect();
    assert_eq!(earlier, [3, 8, 3, 3], "what was fired keeps its stamps");
}

pub(crate) async fn h18_a_fired_job_is_ready_at_the_instant_of_the_fire(cx: Cx) {
    let anchor = cx.now().await;
    let opts = ScheduleOpts::new().expires(secs(10));
    cx.store.schedule("s", "@every 60s", QUEUE, &1, opts).await.unwrap();
    cx.advance(secs(75)).await;
    let now = cx.now().await;
    tick(&cx.store).await;
    let queue = cx.store.queue(QUEUE).unwrap();
    let job = &fired(&cx.store).await[0];
    assert_eq!(boundary(job), anchor.plus(secs(60)));
    assert_eq!((job.state, job.attempt), (JobState::Pending, 0));
    assert_eq!(Timestamp::from(job.enqueued_at), now, "not the boundary");
    assert_eq!(Timestamp::from(job.ready_at), now);
    assert_eq!(job.expires_at.map(Timestamp::from), Some(now.plus(secs(10))));
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.ready, stats.oldest_ready_at.map(Timestamp::from)), (1, Some(now)));
}

pub(crate) async fn h18_a_fired_job_is_claimed_and_settled_as_any_other(cx: Cx) {
    let opts = ScheduleOpts::new().max_attempts(2);
    cx.store.schedule("s", "@every 60s", QUEUE, &"report", opts).await.unwrap();
    cx.advance(secs(60)).await;
    tick(&cx.store).await;
    let queue = cx.second().await.queue(QUEUE).unwrap();
    let mut job = queue.claim("w").await.unwrap().expect("it is ready");
    assert_eq!(job.decode::<String>().unwrap(), "report");
    assert_eq!((job.attempt(), job.max_attempts()), (1, 2));
    assert_eq!(Timestamp::from(job.deadline()), cx.now().await.plus(secs(300)));
    let again = job.retry("not yet", Some(secs(0))).await.unwrap();
    assert!(matches!(again, Retried::Again { .. }), "{again:?}");
    let mut job = queue.claim("w").await.unwrap().expect("it is ready again");
    assert_eq!(job.retry("no", None).await.unwrap(), Retried::Dead);
    assert_eq!(queue.stats().await.unwrap().dead, 1);
}

pub(crate) async fn h18_a_fire_wakes_who_waits_for_work(cx: Cx) {
    every(&cx.store, "s", "@every 60s").await;
    cx.advance(secs(60)).await;
    let queue = cx.second().await.queue(QUEUE).unwrap();
    let waiting = cx.spawn(async move { queue.next("w").await });
    cx.settle().await;
    assert!(!waiting.is_done());
    assert_eq!(tick(&cx.store).await, 1);
    let mut job = waiting.join().await.unwrap();
    job.ack().await.unwrap();
}

pub(crate) async fn h18_a_paused_queue_takes_what_is_fired(cx: Cx) {
    let queue = cx.store.queue(QUEUE).unwrap();
    queue.pause().await.unwrap();
    every(&cx.store, "s", "@every 60s").await;
    cx.advance(secs(120)).await;
    assert_eq!(tick(&cx.store).await, 2);
    assert!(queue.claim("w").await.unwrap().is_none());
    queue.resume().await.unwrap();
    assert_eq!(queue.claim_batch("w", 9).await.unwrap().len(), 2);
}

pub(crate) async fn h19_a_fired_job_names_its_schedule_and_boundary(cx: Cx) {
    let anchor = cx.now().await;
    let name = "nightly \"r\u{e9}port\"";
    let headers = Headers::new([("traceparent", "00-1"), ("z", "last")]).unwrap();
    let opts = ScheduleOpts::new().headers(headers);
    cx.store.schedule(name, "@every 60s", QUEUE, &1, opts).await.unwrap();
    cx.advance(secs(130)).await;
    tick(&cx.store).await;
    let queue = cx.store.queue(QUEUE).unwrap();
    for (k, job) in (1..).zip(queue.claim_batch("w", 9).await.unwrap()) {
        let at = anchor.plus(secs(60) * k).as_millis().to_string();
        let headers: Vec<_> = job.headers().iter().collect();
        assert_eq!(
            headers,
            [
                ("alkstore-boundary", at.as_str()),
                ("alkstore-schedule", name),
                ("traceparent", "00-1"),
                ("z", "last"),
            ]
        );
    }
}

pub(crate) async fn h19_the_two_headers_do_not_count_to_the_limits(cx: Cx) {
    let value = "v".repeat(8 * 1024 / 64 - 2);
    let headers = Headers::new((10..74).map(|key| (key.to_string(), value.clone()))).unwrap();
    let opts = ScheduleOpts::new().headers(headers.clone());
    cx.store.schedule(&"n".repeat(255), "@every 60s", QUEUE, &1, opts).await.unwrap();
    cx.advance(secs(60)).await;
    assert_eq!(tick(&cx.store).await, 1);
    let job = cx.store.queue(QUEUE).unwrap().claim("w").await.unwrap().expect("it fired");
    assert_eq!(job.headers().len(), headers.len() + 2);
    for (key, value) in headers.iter() {
        assert_eq!(job.headers().get(key), Some(value));
    }
}

pub(crate) async fn h20_nothing_fires_unless_someone_runs_it(cx: Cx) {
    every(&cx.store, "s", "@every 1s").await;
    let queue = cx.store.queue(QUEUE).unwrap();
    let waiter = queue.clone();
    let waiting = cx.spawn(async move { waiter.next("w").await.map(drop) });
    for _ in 0..5 {
        cx.advance(secs(10)).await;
        cx.store.maintain().await.unwrap();
        cx.store.schedules().await.unwrap();
        every(&cx.second().await, "s", "@every 1s").await;
        assert!(queue.claim("w").await.unwrap().is_none());
    }
    cx.settle().await;
    assert!(!waiting.is_done());
    assert_eq!(fired(&cx.store).await, []);
    waiting.cancel().await;
    assert_eq!(tick(&cx.store).await, 50, "it was all the schedule's turn");
}

//! Retries: delays, the backoff, error texts.

use std::fmt;
use std::time::Duration;

use alkstore_core::{
    EXPIRED_ERROR, EnqueueOpts, JobId, JobState, MAX_ERROR_BYTES, Queue, QueueOpts, Retried,
    StoreExt,
};

use super::{
    add, add_many, assert_none, brief_queue, millis, now, queue, record, secs, take, take_id,
};
use crate::cx::Cx;

const HOUR: Duration = secs(3_600);

/// A queue whose jobs never run out of attempts.
fn queue_with_base(cx: &Cx, name: &str, base: Duration) -> Queue {
    let opts = QueueOpts::new().retry_base(base).max_attempts(u32::MAX);
    cx.store.queue_with(name, opts).unwrap()
}

/// Retries the one job that is claimable and gives the delay that the backoff chose.
async fn backoff(cx: &Cx, queue: &Queue) -> Duration {
    let mut job = take(queue).await;
    match job.retry("again", None).await.unwrap() {
        Retried::Again { at } => {
            assert_eq!(record(queue, job.id()).await.ready_at, at);
            at.duration_since(now(cx).await).unwrap()
        }
        Retried::Dead => panic!("attempts are left"),
    }
}

pub(crate) async fn q35_a_retry_takes_the_delay_it_is_given(cx: Cx) {
    let queue = queue(&cx);
    let id = add(&queue, EnqueueOpts::new()).await;
    let at = now(&cx).await + secs(7_200);
    let delay = secs(7_200) - Duration::from_nanos(1);
    let again = take(&queue).await.retry("busy", Some(delay)).await.unwrap();
    assert_eq!(again, Retried::Again { at }, "rounded up to the millisecond");
    let waiting = record(&queue, id).await;
    assert_eq!((waiting.state, waiting.attempt), (JobState::Pending, 1));
    assert_eq!(waiting.ready_at, at);
    assert_eq!(waiting.last_error.as_deref(), Some("busy"));
    assert_eq!((waiting.worker_id, waiting.deadline, waiting.died_at), (None, None, None));
    cx.advance(secs(7_200) - millis(1)).await;
    assert_none(&queue).await;
    cx.advance(millis(1)).await;
    assert_eq!(take_id(&queue).await, id);
}

pub(crate) async fn q36_a_backoff_doubles_within_half_and_all_of_a_step(cx: Cx) {
    let queue = queue_with_base(&cx, "q", secs(8));
    add(&queue, EnqueueOpts::new()).await;
    for exponent in 0..8 {
        let step = secs(8) * 2_u32.pow(exponent);
        let delay = backoff(&cx, &queue).await;
        assert!(delay >= step / 2 && delay <= step, "{delay:?} for a step of {step:?}");
        cx.advance(delay).await;
    }
}

pub(crate) async fn q36_a_backoff_is_spread_over_its_range(cx: Cx) {
    let queue = queue_with_base(&cx, "q", secs(1_000));
    add_many(&queue, 100, EnqueueOpts::new()).await;
    let (mut low, mut high) = (0, 0);
    for _ in 0..100 {
        let delay = backoff(&cx, &queue).await;
        assert!(delay >= secs(500) && delay <= secs(1_000), "{delay:?}");
        low += u32::from(delay < secs(625));
        high += u32::from(delay > secs(875));
    }
    // A quarter each is expected; the chance of fewer than three is below one in ten million.
    assert!(low >= 3 && high >= 3, "not uniform: {low} low and {high} high of 100");
}

pub(crate) async fn q36_a_backoff_is_at_most_an_hour(cx: Cx) {
    for (n, base) in [secs(3_601), secs(36_000), Duration::MAX].into_iter().enumerate() {
        let queue = queue_with_base(&cx, &format!("q{n}"), base);
        add_many(&queue, 20, EnqueueOpts::new()).await;
        for _ in 0..20 {
            let delay = backoff(&cx, &queue).await;
            assert!(delay >= HOUR / 2 && delay <= HOUR, "{delay:?} with the base {base:?}");
        }
    }
}

pub(crate) async fn q36_a_backoff_stays_in_its_range_at_any_attempt(cx: Cx) {
    let queue = queue_with_base(&cx, "q", secs(5));
    add(&queue, EnqueueOpts::new()).await;
    // Past every width of integer that a shift could overflow.
    for attempt in 1..=330 {
        let mut job = take(&queue).await;
        assert_eq!(job.attempt(), attempt);
        if [11, 32, 33, 52, 64, 65, 128, 129, 311, 330].contains(&attempt) {
            let start = now(&cx).await;
            let Retried::Again { at } = job.retry("again", None).await.unwrap() else {
                panic!("attempts are left")
            };
            let delay = at.duration_since(start).unwrap();
            assert!(delay >= HOUR / 2 && delay <= HOUR, "{delay:?} at attempt {attempt}");
            cx.advance(delay).await;
        } else {
            job.retry("again", Some(Duration::ZERO)).await.unwrap();
        }
    }
}

pub(crate) async fn q36_a_backoff_counts_attempts_and_no_releases(cx: Cx) {
    let queue = queue_with_base(&cx, "q", secs(100));
    add(&queue, EnqueueOpts::new()).await;
    for _ in 0..6 {
        take(&queue).await.release(Duration::ZERO).await.unwrap();
    }
    let delay = backoff(&cx, &queue).await;
    assert!(delay >= secs(50) && delay <= secs(100), "{delay:?} on the first attempt");
}

pub(crate) async fn q36_a_backoff_may_have_no_length(cx: Cx) {
    let queue = queue_with_base(&cx, "q", Duration::ZERO);
    add(&queue, EnqueueOpts::new()).await;
    for _ in 0..3 {
        assert_eq!(backoff(&cx, &queue).await, Duration::ZERO);
    }
}

pub(crate) async fn q37_a_retry_on_the_last_attempt_is_death(cx: Cx) {
    let queue = cx.store.queue_with("q", QueueOpts::new().max_attempts(2)).unwrap();
    for delay in [None, Some(secs(1))] {
        let id = add(&queue, EnqueueOpts::new()).await;
        let again = take(&queue).await.retry("first", Some(Duration::ZERO)).await.unwrap();
        assert!(matches!(again, Retried::Again { .. }));
        assert_eq!(take(&queue).await.retry("second", delay).await.unwrap(), Retried::Dead);
        let dead = record(&queue, id).await;
        assert_eq!((dead.state, dead.attempt), (JobState::Dead, 2));
        assert_eq!(dead.last_error.as_deref(), Some("second"));
        assert_eq!(dead.died_at, Some(now(&cx).await));
        assert_none(&queue).await;
    }
}

pub(crate) async fn q37_a_retry_doesn_t_look_at_the_expiry(cx: Cx) {
    let queue = brief_queue(&cx);
    let start = now(&cx).await;
    let id = add(&queue, EnqueueOpts::new().expires(secs(5))).await;
    let mut job = take(&queue).await;
    cx.advance(secs(6)).await;
    let again = job.retry("late", Some(secs(1))).await.unwrap();
    assert_eq!(again, Retried::Again { at: start + secs(7) });
    let dead = record(&queue, id).await;
    assert_eq!((dead.state, dead.died_at), (JobState::Dead, Some(start + secs(5))));
    assert_eq!(dead.last_error.as_deref(), Some(EXPIRED_ERROR));
    assert_none(&queue).await;
}

/// The error that a job keeps, after a retry and after a failure.
async fn kept(queue: &Queue, error: impl fmt::Display + Copy) -> String {
    let id: JobId = add(queue, EnqueueOpts::new()).await;
    take(queue).await.retry(error, Some(Duration::ZERO)).await.unwrap();
    let retried = record(queue, id).await.last_error.expect("it was retried with an error");
    take(queue).await.fail(error).await.unwrap();
    let failed = record(queue, id).await.last_error.expect("it failed with an error");
    assert_eq!(retried, failed);
    failed
}

pub(crate) async fn q38_no_error_text_makes_a_settlement_fail(cx: Cx) {
    struct Broken;
    impl fmt::Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half")?;
            Err(fmt::Error)
        }
    }
    let queue = queue(&cx);
    assert_eq!(kept(&queue, "a\0b\0").await, "a\u{fffd}b\u{fffd}");
    assert_eq!(kept(&queue, "").await, "");
    assert_eq!(
        kept(&queue, "'; \\ \" \u{1f980} \r\n\u{7f}").await,
        "'; \\ \" \u{1f980} \r\n\u{7f}"
    );
    assert_eq!(kept(&queue, &Broken).await, "half");
}

pub(crate) async fn q38_an_error_text_is_cut_at_a_character(cx: Cx) {
    let queue = queue(&cx);
    assert_eq!(MAX_ERROR_BYTES, 16 * 1024);
    let fits = "x".repeat(MAX_ERROR_BYTES);
    assert_eq!(kept(&queue, fits.as_str()).await, fits);
    let long = "\u{20ac}".repeat(MAX_ERROR_BYTES);
    let text = kept(&queue, long.as_str()).await;
    assert_eq!(text.len(), MAX_ERROR_BYTES - 1, "the last whole character ends one byte before");
    assert!(long.starts_with(&text));
    // A replaced NUL counts with its three bytes.
    let nul = kept(&queue, "\0".repeat(MAX_ERROR_BYTES).as_str()).await;
    assert_eq!(nul, "\u{fffd}".repeat(MAX_ERROR_BYTES / 3));
}

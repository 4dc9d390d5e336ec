//! What a schedule's arguments may be, and in which order that is decided.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    Error, Headers, MAX_LEASE, Payload, Result, Schedule, ScheduleOpts, Store, StoreExt, Timestamp,
};

use super::{QUEUE, every, find, fired, secs, tick};
use crate::cx::Cx;
use crate::factory::OpenOptions;

const BAD_NAMES: [&str; 8] =
    ["", " s", "s ", "\u{2003}s", "s\n", "a\u{0}b", "a\u{85}b", "__alkstore_outbox:mails"];

fn refuses<T>(result: &Result<T>, name: &str) -> bool {
    match result {
        Err(Error::InvalidName { name: given, .. }) => {
            given == name && !name.starts_with("__alkstore_")
        }
        Err(Error::ReservedName { name: given, .. }) => {
            given == name && name.starts_with("__alkstore_")
        }
        _ => false,
    }
}

async fn register(store: &Arc<dyn Store>, name: &str, queue: &str) -> Result<Schedule> {
    store.schedule(name, "@every 5s", queue, &1, ScheduleOpts::new()).await
}

pub(crate) async fn h4_name_and_queue_are_shared_names(cx: Cx) {
    let long = "n".repeat(256);
    for name in BAD_NAMES.into_iter().chain([long.as_str(), "__alkstore_"]) {
        let result = register(&cx.store, name, QUEUE).await;
        assert!(refuses(&result, name), "name {name:?}: {result:?}");
        let result = register(&cx.store, "s", name).await;
        assert!(refuses(&result, name), "queue {name:?}: {result:?}");
    }
    assert_eq!(cx.store.schedules().await.unwrap(), [], "nothing was stored");
    let longest = "n".repeat(255);
    let schedule = register(&cx.store, &longest, &longest).await.unwrap();
    assert_eq!((schedule.name, schedule.queue), (longest.clone(), longest));
}

pub(crate) async fn h4_a_name_is_checked_wherever_it_is_used(cx: Cx) {
    for name in BAD_NAMES {
        assert!(refuses(&cx.store.unschedule(name).await, name), "{name:?}");
        assert!(refuses(&cx.store.pause_schedule(name).await, name), "{name:?}");
        assert!(refuses(&cx.store.resume_schedule(name).await, name), "{name:?}");
    }
}

pub(crate) async fn h4_names_are_decided_before_everything_else(cx: Cx) {
    let small = cx.open(OpenOptions { payload_limit: Some(10), ..OpenOptions::default() }).await;
    let large = "x".repeat(100);
    let opts = ScheduleOpts::new().max_attempts(0);
    for name in ["", "__alkstore_x"] {
        let result = small.schedule(name, "@hourly", QUEUE, &large, opts.clone()).await;
        assert!(refuses(&result, name), "name {name:?}: {result:?}");
        let result = small.schedule("s", "@hourly", name, &large, opts.clone()).await;
        assert!(refuses(&result, name), "queue {name:?}: {result:?}");
    }
}

pub(crate) async fn h4_names_are_decided_before_any_io(cx: Cx) {
    let closed = cx.second().await;
    closed.close().await.unwrap();
    for name in ["", "__alkstore_x"] {
        let result = register(&closed, name, QUEUE).await;
        assert!(refuses(&result, name), "name {name:?}: {result:?}");
        let result = register(&closed, "s", name).await;
        assert!(refuses(&result, name), "queue {name:?}: {result:?}");
    }
    let result = register(&closed, "s", QUEUE).await;
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
}

pub(crate) async fn h5_a_payload_is_checked_before_it_is_stored(cx: Cx) {
    let small = cx.open(OpenOptions { payload_limit: Some(10), ..OpenOptions::default() }).await;
    let result = small.schedule("s", "@every 5s", QUEUE, &"123456789", ScheduleOpts::new()).await;
    assert!(matches!(result, Err(Error::PayloadTooLarge { size: 11, limit: 10 })), "{result:?}");
    let no_json = BTreeMap::from([(vec![1], 1)]);
    let result = small.schedule("s", "@every 5s", QUEUE, &no_json, ScheduleOpts::new()).await;
    assert!(matches!(result, Err(Error::Codec { .. })), "{result:?}");
    assert_eq!(small.schedules().await.unwrap(), [], "nothing was stored");
    small.schedule("s", "@every 5s", QUEUE, &"12345678", ScheduleOpts::new()).await.unwrap();
}

pub(crate) async fn h5_a_payload_is_kept_byte_for_byte(cx: Cx) {
    let text = "{ \"b\" : 1.50,\"a\":\"\\u0000\", \"b\":2 }";
    let payload = Payload::from_json_text(text).unwrap();
    cx.store.schedule("s", "@every 5s", QUEUE, payload, ScheduleOpts::new()).await.unwrap();
    assert_eq!(find(&cx.store, "s").await.payload.as_str(), text);
    cx.advance(secs(5)).await;
    tick(&cx.store).await;
    assert_eq!(fired(&cx.store).await[0].payload.as_str(), text);
}

pub(crate) async fn h5_options_are_checked_before_they_are_stored(cx: Cx) {
    let opts = ScheduleOpts::new;
    for (argument, opts) in [
        ("max_attempts", opts().max_attempts(0)),
        ("visibility_timeout", opts().visibility_timeout(secs(0))),
        ("visibility_timeout", opts().visibility_timeout(MAX_LEASE + secs(1))),
    ] {
        let result = cx.store.schedule("s", "@every 5s", QUEUE, &1, opts).await;
        assert!(
            matches!(&result, Err(Error::InvalidArgument { argument: name, .. }) if *name == argument),
            "{argument}: {result:?}"
        );
    }
    assert_eq!(cx.store.schedules().await.unwrap(), [], "nothing was stored");
}

pub(crate) async fn h6_a_name_stands_for_one_schedule(cx: Cx) {
    every(&cx.store, "s", "@every 5s").await;
    let opts = ScheduleOpts::new().priority(7).headers(Headers::new([("k", "v")]).unwrap());
    let other = cx.second().await;
    let replaced = other.schedule("s", "@every 7s", "other", &"new", opts.clone()).await.unwrap();
    assert_eq!((replaced.spec.as_str(), replaced.queue.as_str()), ("@every 7s", "other"));
    assert_eq!((replaced.payload.as_str(), &replaced.opts), ("\"new\"", &opts));
    assert_eq!(cx.store.schedules().await.unwrap(), [replaced]);
}

pub(crate) async fn h6_names_are_compared_byte_for_byte(cx: Cx) {
    let names = ["Report", "report", "r\u{e9}port", "re\u{301}port", "report\u{200b}"];
    for name in names {
        every(&cx.store, name, "@every 5s").await;
    }
    assert_eq!(cx.store.schedules().await.unwrap().len(), names.len());
    assert!(cx.store.pause_schedule("report").await.unwrap());
    assert!(!find(&cx.store, "Report").await.paused);
}

pub(crate) async fn h33_an_unscheduled_name_fires_no_more(cx: Cx) {
    every(&cx.store, "s", "@every 5s").await;
    cx.advance(secs(5)).await;
    assert_eq!(tick(&cx.store).await, 1);
    cx.advance(secs(5)).await;
    assert!(cx.second().await.unschedule("s").await.unwrap());
    assert_eq!(cx.store.schedules().await.unwrap(), []);
    assert_eq!(tick(&cx.store).await, 0, "a boundary that was due is gone as well");
    assert_eq!(fired(&cx.store).await.len(), 1, "what it had fired stays");
}

pub(crate) async fn h33_unscheduling_says_whether_there_was_one(cx: Cx) {
    assert!(!cx.store.unschedule("s").await.unwrap());
    every(&cx.store, "s", "@every 5s").await;
    assert!(!cx.store.unschedule("S").await.unwrap());
    assert!(cx.store.unschedule("s").await.unwrap());
    assert!(!cx.store.unschedule("s").await.unwrap());
}

pub(crate) async fn h33_a_name_registered_anew_begins_anew(cx: Cx) {
    every(&cx.store, "s", "@every 60s").await;
    cx.store.pause_schedule("s").await.unwrap();
    cx.advance(secs(45)).await;
    cx.store.unschedule("s").await.unwrap();
    let again = every(&cx.store, "s", "@every 60s").await;
    let now = cx.now().await;
    assert_eq!(Timestamp::from(again.anchor), now);
    assert_eq!(Timestamp::from(again.next_at), now.plus(secs(60)));
    assert!(!again.paused);
}

pub(crate) async fn h34_options_are_shown_in_whole_milliseconds(cx: Cx) {
    let between = Duration::from_nanos(1_000_001);
    let opts = ScheduleOpts::new()
        .expires(between)
        .visibility_timeout(between)
        .retry_base(between)
        .dead_retention(Duration::MAX);
    let registered = cx.store.schedule("s", "@every 5s", QUEUE, &1, opts).await.unwrap();
    let whole = Some(Duration::from_millis(2));
    assert_eq!((registered.opts.expires, registered.opts.retry_base), (whole, whole));
    assert_eq!(registered.opts.visibility_timeout, whole);
    assert!(registered.opts.dead_retention > Some(MAX_LEASE));
    assert_eq!(cx.second().await.schedules().await.unwrap(), [registered]);
}

pub(crate) async fn h6_a_schedule_outlives_its_store(cx: Cx) {
    every(&cx.store, "paused", "@every 7s").await;
    cx.store.pause_schedule("paused").await.unwrap();
    every(&cx.store, "s", "@every 5s").await;
    cx.advance(secs(12)).await;
    assert_eq!(tick(&cx.store).await, 2);
    let before = cx.store.schedules().await.unwrap();
    cx.store.close().await.unwrap();
    let opened = cx.second().await;
    assert_eq!(opened.schedules().await.unwrap(), before);
    every(&opened, "s", "@every 5s").await;
    assert_eq!(opened.schedules().await.unwrap(), before);
    cx.advance(secs(3)).await;
    assert_eq!(tick(&opened).await, 1);
}

pub(crate) async fn h34_schedules_are_listed_by_name_bytewise(cx: Cx) {
    let names = ["b", "a", "é", "Z", "aa", "_", "\u{10000}", "\u{ffff}", "10", "9", "a b"];
    for name in names {
        every(&cx.store, name, "@every 5s").await;
    }
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    let listed = cx.second().await.schedules().await.unwrap();
    assert_eq!(listed.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), sorted);
}

pub(crate) async fn h34_a_listed_schedule_shows_what_was_registered(cx: Cx) {
    let opts = ScheduleOpts::new()
        .priority(-3)
        .max_attempts(9)
        .expires(secs(40))
        .visibility_timeout(secs(50))
        .retry_base(secs(6))
        .dead_retention(secs(70))
        .headers(Headers::new([("traceparent", "00-1"), ("empty", "")]).unwrap());
    let registered =
        cx.store.schedule("nightly", "@every 2m", QUEUE, &"p", opts.clone()).await.unwrap();
    let now = cx.now().await;
    assert_eq!((registered.name.as_str(), registered.spec.as_str()), ("nightly", "@every 2m"));
    assert_eq!((registered.queue.as_str(), registered.payload.as_str()), (QUEUE, "\"p\""));
    assert_eq!((registered.period, &registered.opts), (secs(120), &opts));
    assert_eq!(Timestamp::from(registered.anchor), now);
    assert_eq!(Timestamp::from(registered.next_at), now.plus(secs(120)));
    assert!(!registered.paused);
    let bare = every(&cx.store, "plain", "@every 1d").await;
    assert_eq!(bare.opts, ScheduleOpts::new());
    assert_eq!(cx.second().await.schedules().await.unwrap(), [registered, bare]);
}

//! Schedules that rest.

use std::time::Duration;

use alkstore_core::{ScheduleOpts, StoreExt, Timestamp};

use super::{QUEUE, boundaries, every, find, fired, grid, next_of, secs, tick};
use crate::cx::Cx;

pub(crate) async fn h11_pausing_and_resuming_say_whether_they_changed_something(cx: Cx) {
    assert!(!cx.store.pause_schedule("s").await.unwrap(), "there is none");
    assert!(!cx.store.resume_schedule("s").await.unwrap(), "there is none");
    assert_eq!(cx.store.schedules().await.unwrap(), []);
    every(&cx.store, "s", "@every 5s").await;
    let other = cx.second().await;
    assert!(!other.resume_schedule("s").await.unwrap());
    assert!(other.pause_schedule("s").await.unwrap());
    assert!(!cx.store.pause_schedule("s").await.unwrap());
    assert!(find(&cx.store, "s").await.paused);
    assert!(cx.store.resume_schedule("s").await.unwrap());
    assert!(!other.resume_schedule("s").await.unwrap());
    assert!(!find(&other, "s").await.paused);
}

pub(crate) async fn h11_a_paused_schedule_does_not_fire(cx: Cx) {
    every(&cx.store, "s", "@every 10s").await;
    cx.store.pause_schedule("s").await.unwrap();
    for _ in 0..5 {
        cx.advance(secs(10)).await;
        let ticked = cx.store.tick_schedules().await.unwrap();
        assert_eq!((ticked.fired, ticked.next), (0, None), "nothing to wait for");
    }
    assert_eq!(fired(&cx.store).await, []);
}

pub(crate) async fn h11_what_was_missed_in_a_pause_is_skipped(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    cx.store.pause_schedule("s").await.unwrap();
    cx.advance(secs(47)).await;
    tick(&cx.store).await;
    assert!(cx.store.resume_schedule("s").await.unwrap());
    assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(50)), "the grid is kept");
    assert_eq!(tick(&cx.store).await, 0);
    cx.advance(secs(3)).await;
    assert_eq!(tick(&cx.store).await, 1);
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(10), [5]));
}

pub(crate) async fn h11_a_boundary_at_the_instant_of_the_resume_is_skipped(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    cx.store.pause_schedule("s").await.unwrap();
    cx.advance(secs(30)).await;
    cx.store.resume_schedule("s").await.unwrap();
    assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(40)));
    assert_eq!(tick(&cx.store).await, 0);
}

pub(crate) async fn h11_a_pause_that_missed_nothing_changes_nothing(cx: Cx) {
    let registered = every(&cx.store, "s", "@every 10s").await;
    cx.advance(secs(4)).await;
    cx.store.pause_schedule("s").await.unwrap();
    cx.advance(Duration::from_millis(5_999)).await;
    cx.store.resume_schedule("s").await.unwrap();
    assert_eq!(find(&cx.store, "s").await, registered);
    cx.advance(Duration::from_millis(1)).await;
    assert_eq!(tick(&cx.store).await, 1);
}

pub(crate) async fn h11_resuming_what_is_not_paused_skips_nothing(cx: Cx) {
    every(&cx.store, "s", "@every 10s").await;
    cx.advance(secs(35)).await;
    assert!(!cx.store.resume_schedule("s").await.unwrap());
    assert_eq!(tick(&cx.store).await, 3);
}

pub(crate) async fn h11_a_pause_touches_no_other_schedule(cx: Cx) {
    every(&cx.store, "a", "@every 10s").await;
    every(&cx.store, "b", "@every 10s").await;
    cx.store.pause_schedule("a").await.unwrap();
    cx.advance(secs(10)).await;
    assert_eq!(tick(&cx.store).await, 1);
    assert_eq!(fired(&cx.store).await[0].payload.as_str(), "\"b\"");
}

pub(crate) async fn h12_a_schedule_registered_again_stays_paused(cx: Cx) {
    every(&cx.store, "s", "@every 10s").await;
    cx.store.pause_schedule("s").await.unwrap();
    for spec in ["@every 10s", "@every 20s"] {
        let opts = ScheduleOpts::new().priority(1);
        let again = cx.store.schedule("s", spec, QUEUE, &2, opts).await.unwrap();
        assert!(again.paused && find(&cx.store, "s").await.paused, "{spec}");
        cx.advance(secs(60)).await;
        assert_eq!(tick(&cx.store).await, 0, "{spec}");
    }
}

pub(crate) async fn h12_registering_in_a_pause_keeps_the_grid_for_later(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    cx.store.pause_schedule("s").await.unwrap();
    cx.advance(secs(33)).await;
    let again = every(&cx.store, "s", "@every 10s").await;
    assert_eq!(Timestamp::from(again.anchor), anchor);
    cx.store.resume_schedule("s").await.unwrap();
    assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(40)));
    assert_eq!(tick(&cx.store).await, 0);
}

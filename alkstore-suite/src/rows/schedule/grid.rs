//! The grid of a schedule's boundaries, and what registering it again does to it.

use std::time::Duration;

use alkstore_core::{ScheduleOpts, StoreExt, Timestamp};

use super::{QUEUE, boundaries, every, find, fired, grid, next_of, secs, tick};
use crate::cx::Cx;

pub(crate) async fn h7_the_first_boundary_is_a_period_after_the_registration(cx: Cx) {
    let schedule = every(&cx.store, "s", "@every 60s").await;
    let now = cx.now().await;
    assert_eq!(Timestamp::from(schedule.anchor), now);
    assert_eq!(Timestamp::from(schedule.next_at), now.plus(secs(60)));
    assert_eq!(tick(&cx.store).await, 0, "nothing fires at the registration");
    assert_eq!(fired(&cx.store).await, []);
}

pub(crate) async fn h7_a_boundary_is_due_at_its_very_instant(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 60s").await;
    cx.advance(Duration::from_millis(59_999)).await;
    assert_eq!(tick(&cx.store).await, 0, "a millisecond early");
    cx.advance(Duration::from_millis(1)).await;
    assert_eq!(tick(&cx.store).await, 1);
    assert_eq!(tick(&cx.store).await, 0, "it fires once");
    assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(120)));
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(60), [1]));
}

pub(crate) async fn h8_late_ticks_do_not_move_the_grid(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 60s").await;
    // Each tick comes some seconds and milliseconds late, by ever more.
    for k in 1..=20_u32 {
        let late = Duration::from_millis(u64::from(k) * 2_900 + 1);
        let now = cx.now().await;
        cx.advance(anchor.plus(secs(60) * k + late).since(now)).await;
        assert_eq!(tick(&cx.store).await, 1, "boundary {k}");
        assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(60) * (k + 1)), "after {k}");
    }
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(60), 1..=20));
    assert_eq!(Timestamp::from(find(&cx.store, "s").await.anchor), anchor);
}

pub(crate) async fn h8_schedules_keep_grids_of_their_own(cx: Cx) {
    let first = cx.now().await;
    every(&cx.store, "a", "@every 10s").await;
    cx.advance(secs(3)).await;
    let second = cx.now().await;
    every(&cx.store, "b", "@every 10s").await;
    cx.advance(secs(8)).await;
    let ticked = cx.store.tick_schedules().await.unwrap();
    assert_eq!((ticked.fired, ticked.next), (1, Some(second.plus(secs(10)))));
    cx.advance(secs(2)).await;
    let ticked = cx.store.tick_schedules().await.unwrap();
    assert_eq!((ticked.fired, ticked.next), (1, Some(first.plus(secs(20)))));
    assert_eq!(boundaries(&cx.store).await, [first.plus(secs(10)), second.plus(secs(10))]);
}

pub(crate) async fn h9_the_same_period_keeps_grid_and_next_boundary(cx: Cx) {
    for (before, after) in [
        ("@every 60s", "@every 60s"),
        ("@every 60s", "@every 1m"),
        ("@every 120m", "@every 2h"),
        ("@every 1d", "@every 24h"),
        ("@every 1d", "@every 86400s"),
    ] {
        let registered = every(&cx.store, before, before).await;
        cx.advance(secs(17)).await;
        let again = every(&cx.store, before, after).await;
        assert_eq!(again.spec, after, "the newer text is kept");
        assert_eq!(
            (again.period, again.anchor, again.next_at),
            (registered.period, registered.anchor, registered.next_at),
            "{before} and {after}"
        );
        assert_eq!(find(&cx.store, before).await, again);
    }
}

pub(crate) async fn h9_a_schedule_registered_at_every_start_still_fires(cx: Cx) {
    let anchor = cx.now().await;
    // A week, with a restart of the application every twelve hours.
    for start in 0..=14 {
        every(&cx.second().await, "weekly", "@every 7d").await;
        assert_eq!(tick(&cx.store).await, u64::from(start == 14), "start {start}");
        cx.advance(secs(12 * 3_600)).await;
    }
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(7 * 86_400), [1]));
}

pub(crate) async fn h9_the_grid_is_kept_whatever_else_changes(cx: Cx) {
    let registered = every(&cx.store, "s", "@every 1m").await;
    cx.advance(secs(59)).await;
    let opts = ScheduleOpts::new().priority(1).max_attempts(2).expires(secs(9));
    let again =
        cx.store.schedule("s", "@every 60s", "other", &"other", opts.clone()).await.unwrap();
    assert_eq!((again.anchor, again.next_at), (registered.anchor, registered.next_at));
    cx.advance(secs(1)).await;
    assert_eq!(tick(&cx.store).await, 1);
    assert_eq!(fired(&cx.store).await, [], "it fires as it was registered last");
    let mut job = cx.store.queue("other").unwrap().claim("w").await.unwrap().expect("it fired");
    assert_eq!(job.payload().as_str(), "\"other\"");
    job.ack().await.unwrap();
}

pub(crate) async fn h9_a_boundary_that_is_due_stays_due(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 60s").await;
    cx.advance(secs(150)).await;
    let again = every(&cx.store, "s", "@every 1m").await;
    assert_eq!(Timestamp::from(again.next_at), anchor.plus(secs(60)));
    assert_eq!(tick(&cx.store).await, 2);
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(60), [1, 2]));
}

pub(crate) async fn h10_a_new_period_begins_at_now(cx: Cx) {
    every(&cx.store, "s", "@every 60s").await;
    for (spec, period) in [("@every 61s", 61), ("@every 1h", 3_600), ("@every 60s", 60)] {
        cx.advance(secs(25)).await;
        let again = every(&cx.store, "s", spec).await;
        let now = cx.now().await;
        assert_eq!(again.period, secs(period), "{spec}");
        assert_eq!(Timestamp::from(again.anchor), now, "{spec}");
        assert_eq!(Timestamp::from(again.next_at), now.plus(secs(period)), "{spec}");
    }
    let anchor = cx.now().await;
    cx.advance(secs(120)).await;
    assert_eq!(tick(&cx.store).await, 2);
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(60), [1, 2]));
}

pub(crate) async fn h10_a_new_period_drops_what_was_due_on_the_old_grid(cx: Cx) {
    every(&cx.store, "s", "@every 10s").await;
    cx.advance(secs(35)).await;
    let now = cx.now().await;
    cx.store.schedule("s", "@every 20s", QUEUE, &1, ScheduleOpts::new()).await.unwrap();
    let ticked = cx.store.tick_schedules().await.unwrap();
    assert_eq!((ticked.fired, ticked.next), (0, Some(now.plus(secs(20)))));
}

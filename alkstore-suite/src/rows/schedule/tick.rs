//! What one tick fires, and that nothing fires twice.

use std::time::Duration;

use alkstore_core::{JobFilter, MAX_FIRES, MAX_LEASE, ScheduleOpts, StoreExt, Timestamp};
use futures_util::FutureExt;

use super::{QUEUE, boundaries, boundary, every, find, fired, grid, next_of, secs, tick};
use crate::cx::{Cx, drop_at_every_await};

const ROUNDS: u32 = 100;

pub(crate) async fn h13_a_tick_fires_the_first_64_and_skips_the_rest(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 2s").await;
    // The first boundary lies 600 s back.
    cx.advance(secs(602)).await;
    let ticked = cx.store.tick_schedules().await.unwrap();
    assert_eq!((ticked.fired, ticked.next), (64, Some(anchor.plus(secs(604)))));
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(2), 1..=64));
    assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(604)));
    assert_eq!(tick(&cx.store).await, 0, "the rest doesn't come with the next tick");
    cx.advance(secs(2)).await;
    assert_eq!(tick(&cx.store).await, 1);
}

pub(crate) async fn h13_what_fires_is_what_is_due_up_to_64(cx: Cx) {
    let period = secs(10);
    for due in [1, 2, 63, 64, 65, 66, 127, 128, 129, 1_000_u32] {
        for into in [0, 1, 9_999] {
            let what = format!("{due} due, {into} ms ago");
            let anchor = cx.now().await;
            cx.store.schedule("s", "@every 10s", &what, &1, ScheduleOpts::new()).await.unwrap();
            cx.advance(period * due + Duration::from_millis(into)).await;
            let fires = due.min(MAX_FIRES);
            assert_eq!(tick(&cx.store).await, u64::from(fires), "{what}");
            let jobs = cx.store.queue(&what).unwrap().jobs(JobFilter::new()).await.unwrap();
            let boundaries: Vec<_> = jobs.iter().map(boundary).collect();
            assert_eq!(boundaries, grid(anchor, period, 1..=fires), "{what}");
            assert_eq!(next_of(&cx.store, "s").await, anchor.plus(period * (due + 1)), "{what}");
            cx.store.unschedule("s").await.unwrap();
        }
    }
}

pub(crate) async fn h13_the_bound_is_for_each_schedule(cx: Cx) {
    for name in ["a", "b", "c"] {
        every(&cx.store, name, "@every 1s").await;
    }
    cx.advance(secs(500)).await;
    assert_eq!(tick(&cx.store).await, 3 * 64);
    for name in ["a", "b", "c"] {
        let payload = format!("{name:?}");
        let jobs = fired(&cx.store).await;
        assert_eq!(jobs.iter().filter(|job| job.payload.as_str() == payload).count(), 64, "{name}");
    }
}

pub(crate) async fn h14_a_schedule_far_behind_is_brought_up_to_date_at_once(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 1s").await;
    // Some three hundred million boundaries.
    cx.advance(MAX_LEASE).await;
    let ticked = cx.store.tick_schedules().await.unwrap();
    assert_eq!((ticked.fired, ticked.next), (64, Some(anchor.plus(MAX_LEASE + secs(1)))));
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(1), 1..=64));
}

pub(crate) async fn h14_the_longest_period_has_its_boundaries_too(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 3650d").await;
    cx.advance(MAX_LEASE * 3 - secs(1)).await;
    assert_eq!(tick(&cx.store).await, 2);
    assert_eq!(boundaries(&cx.store).await, grid(anchor, MAX_LEASE, [1, 2]));
    assert_eq!(next_of(&cx.store, "s").await, anchor.plus(MAX_LEASE * 3));
}

pub(crate) async fn h15_a_dropped_tick_has_fired_all_or_nothing(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    cx.advance(secs(35)).await;
    let (store, cx) = (&cx.store, &cx);
    let whole = || async {
        let next = next_of(store, "s").await;
        let fires = boundaries(store).await;
        (next == anchor.plus(secs(10)) && fires.is_empty())
            || (next == anchor.plus(secs(40)) && fires == grid(anchor, secs(10), [1, 2, 3]))
    };
    // A tick that goes on behind the drop may become visible between the two looks.
    drop_at_every_await(|| store.tick_schedules(), || cx.until(whole)).await.unwrap();
    assert_eq!(boundaries(store).await, grid(anchor, secs(10), [1, 2, 3]));
    assert_eq!(next_of(store, "s").await, anchor.plus(secs(40)));
}

pub(crate) async fn h16_two_ticks_at_once_fire_each_boundary_once(cx: Cx) {
    let other = cx.second().await;
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    for round in 1..=ROUNDS {
        cx.advance(secs(10)).await;
        let ticks = [&cx.store, &other].map(|store| {
            let store = store.clone();
            async move { tick(&store).await }.boxed()
        });
        let fires: u64 = cx.together(ticks).await.into_iter().sum();
        assert_eq!(fires, 1, "round {round}");
    }
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(10), 1..=ROUNDS));
    assert_eq!(next_of(&other, "s").await, anchor.plus(secs(10) * (ROUNDS + 1)));
}

/// Runs two futures at once, one or the other first by turns.
async fn beside(
    cx: &Cx,
    round: u32,
    one: impl Future<Output = u64> + Send + 'static,
    other: impl Future<Output = u64> + Send + 'static,
) -> (u64, u64) {
    let mut both = [one.boxed(), other.boxed()];
    let turned = round.is_multiple_of(2);
    if turned {
        both.reverse();
    }
    let results = cx.together(both).await;
    if turned { (results[1], results[0]) } else { (results[0], results[1]) }
}

pub(crate) async fn h16_a_tick_beside_a_registration_fires_each_boundary_once(cx: Cx) {
    let other = cx.second().await;
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    for round in 1..=ROUNDS {
        cx.advance(secs(10)).await;
        let (ticking, registering) = (cx.store.clone(), other.clone());
        let ticking = async move { tick(&ticking).await };
        let registering = async move {
            every(&registering, "s", "@every 10s").await;
            0
        };
        beside(&cx, round, ticking, registering).await;
        tick(&cx.store).await;
        let next = anchor.plus(secs(10) * (round + 1));
        assert_eq!(next_of(&cx.store, "s").await, next, "round {round}");
    }
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(10), 1..=ROUNDS));
}

pub(crate) async fn h16_a_tick_beside_a_pause_fires_at_most_once(cx: Cx) {
    let other = cx.second().await;
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 10s").await;
    for round in 1..=ROUNDS {
        cx.advance(secs(10)).await;
        let (ticking, pausing) = (cx.store.clone(), other.clone());
        let ticking = async move { tick(&ticking).await };
        let pausing = async move { u64::from(pausing.pause_schedule("s").await.unwrap()) };
        let (_, paused) = beside(&cx, round, ticking, pausing).await;
        assert_eq!(paused, 1, "round {round}");
        assert!(find(&cx.store, "s").await.paused, "round {round}: the pause took effect");
        assert_eq!(tick(&cx.store).await, 0, "round {round}: it rests");
        assert!(other.resume_schedule("s").await.unwrap());
        assert_eq!(next_of(&cx.store, "s").await, anchor.plus(secs(10) * (round + 1)));
    }
    let mut fires = boundaries(&cx.store).await;
    fires.dedup();
    assert_eq!(fires.len(), fired(&cx.store).await.len(), "no boundary fires twice");
    assert!(fires.is_sorted());
}

pub(crate) async fn h16_a_tick_beside_the_end_of_a_schedule_leaves_nothing_half_done(cx: Cx) {
    let other = cx.second().await;
    for round in 1..=ROUNDS {
        every(&cx.store, "s", "@every 10s").await;
        cx.advance(secs(10)).await;
        let (ticking, ending) = (cx.store.clone(), other.clone());
        let ticking = async move { tick(&ticking).await };
        let ending = async move { u64::from(ending.unschedule("s").await.unwrap()) };
        let (fires, ended) = beside(&cx, round, ticking, ending).await;
        assert_eq!(ended, 1, "round {round}: it was there to be removed");
        assert_eq!(cx.store.schedules().await.unwrap(), [], "round {round}: it is gone");
        let jobs = fired(&cx.store).await;
        assert_eq!(jobs.len() as u64, fires, "round {round}: what the tick says it fired");
        for job in jobs {
            assert!(other.queue(QUEUE).unwrap().cancel(job.id).await.unwrap());
        }
    }
}

pub(crate) async fn h13_jobs_are_fired_in_the_order_of_their_boundaries(cx: Cx) {
    cx.store.schedule("s", "@every 1s", QUEUE, &1, ScheduleOpts::new()).await.unwrap();
    cx.advance(secs(64)).await;
    assert_eq!(tick(&cx.store).await, 64);
    let queue = cx.store.queue(QUEUE).unwrap();
    let mut before = Timestamp::EPOCH;
    for job in queue.claim_batch("w", 64).await.unwrap() {
        let record = queue.get_job(job.id()).await.unwrap().expect("a live job");
        assert!(before < boundary(&record), "{record:?}");
        before = boundary(&record);
    }
}

//! The one runner that leads.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    Error, LocalName, LockName, LockRef, SCHEDULER_RENEWAL, SCHEDULER_TTL, ScheduleOpts, StopToken,
    Store, StoreExt, Timestamp,
};

use futures_util::FutureExt;

use super::{
    LEASE, QUEUE, Runner, Script, boundaries, every, fired, grid, hold_lease, is_leadership_lost,
    lease, secs, tick, unavailable,
};
use crate::cx::{Cx, drop_at_every_await};

const ROUNDS: u32 = 100;

/// Registers a schedule and makes one boundary of it due.
async fn make_due(cx: &Cx) {
    every(&cx.store, "s", "@every 5s").await;
    cx.advance(secs(5)).await;
}

async fn until_fired(cx: &Cx, store: &Arc<dyn Store>, jobs: usize) {
    cx.until(|| async { fired(store).await.len() >= jobs }).await;
    assert_eq!(fired(store).await.len(), jobs);
}

/// Whether a fresh runner fires what is due without waiting for anything.
async fn the_next_runner_starts_at_once(cx: &Cx) {
    make_due(cx).await;
    let before = fired(&cx.store).await.len();
    let runner = Runner::start(cx, &cx.second().await);
    until_fired(cx, &cx.store, before + 1).await;
    runner.stop().await.unwrap();
}

pub(crate) async fn h21_a_runner_fires_each_boundary_as_it_falls_due(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 5s").await;
    let runner = Runner::start(&cx, &cx.store);
    for k in 1..=6 {
        cx.advance(secs(5)).await;
        until_fired(&cx, &cx.store, k).await;
    }
    runner.stop().await.unwrap();
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(5), 1..=6));
    cx.advance(secs(5)).await;
    cx.settle().await;
    assert_eq!(fired(&cx.store).await.len(), 6, "nobody runs it any more");
}

pub(crate) async fn h21_a_runner_fires_at_once_what_fell_due_before(cx: Cx) {
    make_due(&cx).await;
    let runner = Runner::start(&cx, &cx.store);
    until_fired(&cx, &cx.store, 1).await;
    runner.stop().await.unwrap();
}

pub(crate) async fn h21_leadership_is_a_lock_that_everyone_sees(cx: Cx) {
    let runner = Runner::start(&cx, &cx.store);
    let other = cx.second().await;
    cx.until(|| async { lease(&other).await.is_some() }).await;
    let locks = other.locks().await.unwrap();
    assert_eq!(locks.len(), 1, "{locks:?}");
    assert_eq!(Timestamp::from(locks[0].expires_at), cx.now().await.plus(secs(30)));
    assert!(LocalName::new(&locks[0].owner).is_ok(), "{locks:?}");
    runner.stop().await.unwrap();
    assert_eq!(other.locks().await.unwrap(), []);
}

pub(crate) async fn h21_the_lock_is_reserved(cx: Cx) {
    let locked = cx.store.try_lock(LEASE, "me", secs(1)).await.map(drop);
    assert!(matches!(locked, Err(Error::ReservedName { .. })), "{locked:?}");
    let runner = Runner::start(&cx, &cx.store);
    cx.until(|| async { lease(&cx.store).await.is_some() }).await;
    let lock = cx.store.try_lock("__alkstore", "me", secs(1)).await.unwrap();
    lock.expect("another lock is free").release().await.unwrap();
    runner.stop().await.unwrap();
}

pub(crate) async fn h21_each_leadership_has_a_larger_fencing_token(cx: Cx) {
    let mut before = 0;
    for round in 0..3 {
        let runner = Runner::start(&cx, &cx.store);
        cx.until(|| async { lease(&cx.store).await.is_some() }).await;
        let token = lease(&cx.store).await.expect("it is held").token;
        assert!(token > before, "round {round}: {token} after {before}");
        before = token;
        runner.stop().await.unwrap();
    }
}

pub(crate) async fn h22_the_lease_is_renewed_every_ten_seconds(cx: Cx) {
    let runner = Runner::start(&cx, &cx.store);
    cx.until(|| async { lease(&cx.store).await.is_some() }).await;
    for _ in 0..7 {
        cx.advance(SCHEDULER_RENEWAL).await;
        let until = cx.now().await.plus(SCHEDULER_TTL);
        cx.until(|| async {
            let lease = lease(&cx.store).await;
            lease.is_some_and(|lease| Timestamp::from(lease.expires_at) == until)
        })
        .await;
    }
    assert!(!runner.task.is_done());
    runner.stop().await.unwrap();
}

pub(crate) async fn h22_the_lease_is_renewed_before_each_tick(cx: Cx) {
    every(&cx.store, "s", "@every 3s").await;
    let runner = Runner::start(&cx, &cx.store);
    for k in 1..=5 {
        cx.advance(secs(3)).await;
        until_fired(&cx, &cx.store, k).await;
        let held = lease(&cx.store).await.expect("it is held");
        assert_eq!(Timestamp::from(held.expires_at), cx.now().await.plus(SCHEDULER_TTL));
    }
    runner.stop().await.unwrap();
}

pub(crate) async fn h22_the_leader_looks_again_at_the_next_boundary_or_renewal(cx: Cx) {
    let (script, store) = Script::default().over(&cx.store);
    let longest = |now: Timestamp| {
        let wait = script.last_wait()?;
        let until = wait.until.map(|until| until.since(now));
        Some(until.into_iter().chain(wait.within).min().expect("a wait that ends"))
    };
    let runner = Runner::start(&cx, &store);
    cx.until(|| async { longest(cx.now().await) == Some(SCHEDULER_RENEWAL) }).await;
    every(&cx.store, "slow", "@every 1d").await;
    cx.settle().await;
    cx.until(|| async { longest(cx.now().await) == Some(SCHEDULER_RENEWAL) }).await;
    every(&cx.store, "quick", "@every 3s").await;
    cx.until(|| async { longest(cx.now().await) == Some(secs(3)) }).await;
    cx.advance(secs(1)).await;
    cx.until(|| async { longest(cx.now().await) == Some(secs(2)) }).await;
    runner.stop().await.unwrap();
}

pub(crate) async fn h23_a_second_runner_is_refused_before_it_fires(cx: Cx) {
    let held = hold_lease(&cx.store).await;
    make_due(&cx).await;
    for store in [&cx.store, &cx.second().await] {
        let result = cx.within(store.run_schedules(StopToken::new())).await;
        assert!(is_leadership_lost(&result), "{result:?}");
    }
    assert_eq!(fired(&cx.store).await, [], "nothing was fired");
    let lease = lease(&cx.store).await.expect("it is held still");
    assert_eq!((lease.token, lease.owner.as_str()), (held.token, "another runner"));
}

pub(crate) async fn h23_one_of_two_runners_leads(cx: Cx) {
    let leader = Runner::leading(&cx, &cx.store).await;
    let result = cx.within(cx.second().await.run_schedules(StopToken::new())).await;
    assert!(is_leadership_lost(&result), "{result:?}");
    assert!(!leader.task.is_done(), "the leader goes on");
    leader.stop().await.unwrap();
}

pub(crate) async fn h23_of_two_that_start_at_once_one_leads(cx: Cx) {
    let other = cx.second().await;
    for round in 0..ROUNDS {
        let stop = StopToken::new();
        // The one that is refused stops the other.
        let runs = [&cx.store, &other].map(|store| {
            let (store, stop) = (store.clone(), stop.clone());
            async move {
                let result = store.run_schedules(stop.clone()).await;
                stop.stop();
                result
            }
            .boxed()
        });
        let results = cx.together(runs).await;
        let led = results.iter().filter(|result| result.is_ok()).count();
        let refused = results.iter().filter(|result| is_leadership_lost(result)).count();
        assert_eq!((led, refused), (1, 1), "round {round}: {results:?}");
    }
}

pub(crate) async fn h23_a_lapsed_lease_is_free(cx: Cx) {
    every(&cx.store, "s", "@every 30s").await;
    let held = hold_lease(&cx.store).await;
    cx.advance(SCHEDULER_TTL - Duration::from_millis(1)).await;
    let result = cx.within(cx.store.run_schedules(StopToken::new())).await;
    assert!(is_leadership_lost(&result), "{result:?}");
    cx.advance(Duration::from_millis(1)).await;
    let runner = Runner::start(&cx, &cx.store);
    until_fired(&cx, &cx.store, 1).await;
    assert!(lease(&cx.store).await.expect("it is held").token > held.token);
    runner.stop().await.unwrap();
}

pub(crate) async fn h24_a_leader_whose_lease_lapsed_fires_nothing_more(cx: Cx) {
    every(&cx.store, "s", "@every 5s").await;
    let leader = Runner::leading(&cx, &cx.store).await;
    // All at once, as where the process or its machine stood still.
    cx.advance(SCHEDULER_TTL).await;
    let result = leader.task.join().await;
    assert!(is_leadership_lost(&result), "{result:?}");
    assert_eq!(fired(&cx.store).await, []);
    let next = Runner::start(&cx, &cx.second().await);
    until_fired(&cx, &cx.store, 6).await;
    next.stop().await.unwrap();
}

pub(crate) async fn h24_a_leader_that_was_replaced_leaves_the_new_one_alone(cx: Cx) {
    let (script, store) = Script::default().over(&cx.store);
    every(&store, "s", "@every 5s").await;
    let leader = Runner::leading(&cx, &store).await;
    // What it fired is seen before it hears of it itself.
    cx.until(async || script.ticks() > 0).await;
    let ticks = script.ticks();
    // The lease goes to another while the leader isn't looking.
    let name = LockName::scheduler();
    let token = lease(&cx.store).await.expect("it is held").token;
    cx.store.release_lock(&LockRef { name, token }).await.unwrap();
    let held = hold_lease(&cx.store).await;
    cx.advance(secs(5)).await;
    let result = leader.task.join().await;
    assert!(is_leadership_lost(&result), "{result:?}");
    assert_eq!(script.ticks(), ticks, "it didn't tick again");
    assert_eq!(fired(&cx.store).await, []);
    let lease = lease(&cx.store).await.expect("it is held still");
    assert_eq!(lease.token, held.token);
}

pub(crate) async fn h25_a_stopped_runner_ends_well(cx: Cx) {
    make_due(&cx).await;
    let runner = Runner::start(&cx, &cx.store);
    until_fired(&cx, &cx.store, 1).await;
    cx.settle().await;
    assert!(!runner.task.is_done(), "it runs until it is stopped");
    runner.stop().await.unwrap();
    let runner = Runner::start(&cx, &cx.store);
    cx.until(|| async { lease(&cx.store).await.is_some() }).await;
    runner.stop.abort();
    runner.task.join().await.unwrap();
}

pub(crate) async fn h25_a_runner_stopped_before_it_starts_fires_nothing(cx: Cx) {
    make_due(&cx).await;
    let stop = StopToken::new();
    stop.stop();
    cx.within(cx.store.run_schedules(stop.clone())).await.unwrap();
    cx.within(cx.store.run_schedules_standby(stop)).await.unwrap();
    assert_eq!(fired(&cx.store).await, []);
    assert_eq!(cx.store.locks().await.unwrap(), []);
}

pub(crate) async fn h25_a_runner_is_stopped_while_it_backs_off(cx: Cx) {
    make_due(&cx).await;
    let (script, store) = Script::default().over(&cx.store);
    script.tick_faults.lock().unwrap().extend(unavailable(1..=4).into_iter().map(Some));
    let runner = Runner::start(&cx, &store);
    cx.until(|| async { script.ticks() > 0 }).await;
    runner.stop().await.unwrap();
    assert_eq!(fired(&cx.store).await, []);
}

pub(crate) async fn h26_the_lease_is_released_after_a_stop(cx: Cx) {
    let leader = Runner::leading(&cx, &cx.store).await;
    leader.stop().await.unwrap();
    assert_eq!(cx.store.locks().await.unwrap(), []);
    the_next_runner_starts_at_once(&cx).await;
}

pub(crate) async fn h26_the_lease_is_released_after_an_error(cx: Cx) {
    let store = cx.data().with_failing_ticks(cx.store.clone(), vec![Error::engine("broken")]);
    let result = cx.within(store.run_schedules(StopToken::new())).await;
    assert!(matches!(result, Err(Error::Engine { .. })), "{result:?}");
    assert_eq!(cx.store.locks().await.unwrap(), []);
    the_next_runner_starts_at_once(&cx).await;
}

pub(crate) async fn h26_the_lease_is_released_by_a_dropped_runner(cx: Cx) {
    let leader = Runner::leading(&cx, &cx.store).await;
    leader.task.cancel().await;
    // A drop can't wait; no time passes all the same.
    cx.until(|| async { lease(&cx.store).await.is_none() }).await;
    the_next_runner_starts_at_once(&cx).await;
}

pub(crate) async fn h26_the_lease_is_released_wherever_a_runner_is_dropped(cx: Cx) {
    let (store, cx) = (&cx.store, &cx);
    let stop = StopToken::new();
    stop.stop();
    let free = || cx.until(|| async { lease(store).await.is_none() });
    drop_at_every_await(|| store.run_schedules(stop.clone()), free).await.unwrap();
    the_next_runner_starts_at_once(cx).await;
}

pub(crate) async fn h27_a_tick_is_tried_five_times(cx: Cx) {
    make_due(&cx).await;
    let store = cx.data().with_failing_ticks(cx.store.clone(), unavailable(1..=8));
    let running = store.run_schedules(StopToken::new());
    let result = cx.advancing(Duration::from_millis(50), running).await;
    match result {
        Err(Error::Unavailable { message, .. }) => assert_eq!(message, "fault 5"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fired(&cx.store).await, []);
}

pub(crate) async fn h27_the_fifth_try_may_succeed(cx: Cx) {
    make_due(&cx).await;
    let store = cx.data().with_failing_ticks(cx.store.clone(), unavailable(1..=4));
    let runner = Runner::start(&cx, &store);
    let fires = cx.until(|| async { !fired(&cx.store).await.is_empty() });
    cx.advancing(Duration::from_millis(50), fires).await;
    assert!(!runner.task.is_done(), "it goes on");
    runner.stop().await.unwrap();
}

pub(crate) async fn h27_between_two_tries_it_backs_off(cx: Cx) {
    let (script, store) = Script::default().over(&cx.store);
    script.tick_faults.lock().unwrap().extend(unavailable(1..=5).into_iter().map(Some));
    let runner = Runner::start(&cx, &store);
    for tries in 1..=4 {
        cx.until(|| async { script.ticks() == tries }).await;
        cx.settle().await;
        assert_eq!(script.ticks(), tries, "not before some time has passed");
        cx.advance(secs(5)).await;
    }
    let result = runner.task.join().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert_eq!(script.ticks(), 5);
}

pub(crate) async fn h27_a_tick_that_succeeds_begins_the_count_anew(cx: Cx) {
    let (script, store) = Script::default().over(&cx.store);
    for _ in 0..3 {
        let mut faults = script.tick_faults.lock().unwrap();
        faults.extend(unavailable(1..=4).into_iter().map(Some));
        faults.push_back(None);
    }
    let runner = Runner::start(&cx, &store);
    let all = cx.until(|| async { script.ticks() > 15 });
    cx.advancing(secs(1), all).await;
    assert!(!runner.task.is_done());
    runner.stop().await.unwrap();
}

pub(crate) async fn h27_a_renewal_counts_as_part_of_its_tick(cx: Cx) {
    make_due(&cx).await;
    let (script, store) = Script::default().over(&cx.store);
    script.renewal_faults.lock().unwrap().extend(unavailable(1..=4));
    let runner = Runner::start(&cx, &store);
    let fires = cx.until(|| async { !fired(&cx.store).await.is_empty() });
    cx.advancing(Duration::from_millis(50), fires).await;
    runner.stop().await.unwrap();
    script.renewal_faults.lock().unwrap().extend(unavailable(1..=5));
    let stop = StopToken::new();
    let running = store.run_schedules(stop.clone());
    let result = cx.advancing(Duration::from_millis(50), running).await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

pub(crate) async fn h28_an_error_that_is_not_retryable_ends_the_run_at_once(cx: Cx) {
    make_due(&cx).await;
    let broken = [Error::engine("broken"), Error::commit_unknown("cut off")];
    for error in broken {
        let text = error.to_string();
        let store = cx.data().with_failing_ticks(cx.store.clone(), vec![error]);
        let result = cx.within(store.run_schedules(StopToken::new())).await;
        assert_eq!(result.expect_err("the tick failed").to_string(), text);
    }
    assert_eq!(fired(&cx.store).await, [], "no tick was tried again");
    assert_eq!(tick(&cx.store).await, 1);
}

pub(crate) async fn h29_a_changed_schedule_wakes_the_runner(cx: Cx) {
    let (script, store) = Script::default().over(&cx.store);
    let runner = Runner::start(&cx, &store);
    let other = cx.second().await;
    let at_rest = || async {
        cx.until(|| async { script.ticks() > 0 }).await;
        // A wake may come more than once.
        let mut before = 0;
        while script.ticks() > before {
            before = script.ticks();
            cx.settle().await;
        }
        before
    };
    for change in ["added", "changed", "paused", "resumed", "removed"] {
        let before = at_rest().await;
        match change {
            "added" => drop(every(&other, "s", "@every 60s").await),
            "changed" => drop(every(&other, "s", "@every 5s").await),
            "paused" => assert!(other.pause_schedule("s").await.unwrap()),
            "resumed" => assert!(other.resume_schedule("s").await.unwrap()),
            _ => assert!(other.unschedule("s").await.unwrap()),
        }
        // No time passes.
        cx.until(|| async { script.ticks() > before }).await;
    }
    runner.stop().await.unwrap();
}

pub(crate) async fn h29_a_schedule_added_while_a_runner_waits_fires_in_time(cx: Cx) {
    every(&cx.store, "slow", "@every 9s").await;
    let runner = Runner::start(&cx, &cx.store);
    cx.until(|| async { lease(&cx.store).await.is_some() }).await;
    let opts = ScheduleOpts::new();
    cx.second().await.schedule("quick", "@every 1s", QUEUE, &1, opts).await.unwrap();
    for k in 1..=8 {
        cx.advance(secs(1)).await;
        until_fired(&cx, &cx.store, k).await;
    }
    runner.stop().await.unwrap();
}

pub(crate) async fn h35_closing_the_store_ends_its_runners(cx: Cx) {
    let (leading, waiting) = (cx.second().await, cx.second().await);
    let leader = Runner::leading(&cx, &leading).await;
    let standby = Runner::standby(&cx, &waiting);
    cx.settle().await;
    waiting.close().await.unwrap();
    let result = standby.task.join().await;
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    assert!(!leader.task.is_done(), "it belongs to another open");
    leading.close().await.unwrap();
    let result = leader.task.join().await;
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    for store in [leading, waiting] {
        let result = store.run_schedules(StopToken::new()).await;
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
        let result = store.run_schedules_standby(StopToken::new()).await;
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    }
}

pub(crate) async fn h35_a_leader_whose_store_closes_is_followed_at_once(cx: Cx) {
    let leading = cx.second().await;
    let leader = Runner::leading(&cx, &leading).await;
    let standby = Runner::standby(&cx, &cx.store);
    leading.close().await.unwrap();
    let result = leader.task.join().await;
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    every(&cx.store, "s", "@every 1s").await;
    cx.advance(secs(1)).await;
    until_fired(&cx, &cx.store, 1).await;
    standby.stop().await.unwrap();
}

//! Runners that stand by until they can lead.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    Error, SCHEDULER_RENEWAL, SCHEDULER_TTL, ScheduleOpts, StopToken, Store, StoreExt,
};

use super::{
    Runner, Script, boundaries, every, fired, grid, hold_lease, lease, secs, ticked, unavailable,
};
use crate::cx::Cx;

async fn make_due(cx: &Cx) {
    every(&cx.store, "s", "@every 5s").await;
    cx.advance(secs(5)).await;
}

async fn until_fired(cx: &Cx, store: &Arc<dyn Store>) {
    cx.until(|| async { !fired(store).await.is_empty() }).await;
}

pub(crate) async fn h30_a_standby_leads_where_nobody_does(cx: Cx) {
    make_due(&cx).await;
    let standby = Runner::standby(&cx, &cx.store);
    until_fired(&cx, &cx.store).await;
    standby.stop().await.unwrap();
    assert_eq!(cx.store.locks().await.unwrap(), [], "its lease is released too");
}

pub(crate) async fn h30_a_standby_fires_nothing_while_another_leads(cx: Cx) {
    make_due(&cx).await;
    let held = hold_lease(&cx.store).await;
    let standby = Runner::standby(&cx, &cx.second().await);
    cx.settle().await;
    cx.advance(SCHEDULER_TTL - secs(1)).await;
    cx.settle().await;
    assert!(!standby.task.is_done(), "it waits");
    assert_eq!(fired(&cx.store).await, []);
    assert_eq!(lease(&cx.store).await.expect("it is held").token, held.token);
    standby.stop().await.unwrap();
}

pub(crate) async fn h30_a_standby_takes_over_when_the_leader_stops(cx: Cx) {
    let leader = Runner::leading(&cx, &cx.store).await;
    let standby = Runner::standby(&cx, &cx.second().await);
    cx.settle().await;
    let token = lease(&cx.store).await.expect("it is held").token;
    leader.stop().await.unwrap();
    // No time passes.
    cx.until(|| async { lease(&cx.store).await.is_some_and(|lease| lease.token > token) }).await;
    make_due(&cx).await;
    until_fired(&cx, &cx.store).await;
    standby.stop().await.unwrap();
}

pub(crate) async fn h30_a_standby_takes_over_when_the_leader_is_dropped(cx: Cx) {
    let leader = Runner::leading(&cx, &cx.store).await;
    let standby = Runner::standby(&cx, &cx.second().await);
    cx.settle().await;
    let token = lease(&cx.store).await.expect("it is held").token;
    leader.task.cancel().await;
    cx.until(|| async { lease(&cx.store).await.is_some_and(|lease| lease.token > token) }).await;
    standby.stop().await.unwrap();
}

pub(crate) async fn h30_a_standby_takes_over_when_the_lease_of_a_dead_leader_lapses(cx: Cx) {
    make_due(&cx).await;
    hold_lease(&cx.store).await;
    let standby = Runner::standby(&cx, &cx.second().await);
    cx.settle().await;
    assert_eq!(fired(&cx.store).await, []);
    cx.advance(SCHEDULER_TTL).await;
    until_fired(&cx, &cx.store).await;
    standby.stop().await.unwrap();
}

pub(crate) async fn h30_of_several_standbys_one_leads(cx: Cx) {
    let anchor = cx.now().await;
    every(&cx.store, "s", "@every 5s").await;
    let mut standbys = Vec::new();
    for _ in 0..3 {
        standbys.push(Runner::standby(&cx, &cx.second().await));
    }
    for k in 1..=6 {
        cx.advance(secs(5)).await;
        cx.until(|| async { fired(&cx.store).await.len() >= k }).await;
        if k % 2 == 0 {
            standbys.pop().expect("one is left").stop().await.unwrap();
        }
    }
    assert_eq!(boundaries(&cx.store).await, grid(anchor, secs(5), 1..=6));
}

pub(crate) async fn h30_a_standby_is_stopped_while_it_waits_and_while_it_leads(cx: Cx) {
    let leader = Runner::standby(&cx, &cx.store);
    cx.until(|| async { lease(&cx.store).await.is_some() }).await;
    let waiter = Runner::standby(&cx, &cx.second().await);
    cx.settle().await;
    waiter.stop().await.unwrap();
    assert!(!leader.task.is_done());
    leader.stop().await.unwrap();
}

pub(crate) async fn h31_a_standby_that_lost_the_lease_stands_by_again(cx: Cx) {
    every(&cx.store, "s", "@every 5s").await;
    cx.store.schedule("tick", "@every 1s", "ticks", &1, ScheduleOpts::new()).await.unwrap();
    cx.advance(secs(1)).await;
    let standby = Runner::standby(&cx, &cx.store);
    ticked(&cx, &cx.store).await;
    let token = lease(&cx.store).await.expect("it is held").token;
    // Its lease lapses all at once.
    cx.advance(SCHEDULER_TTL).await;
    cx.advancing(Duration::from_millis(500), until_fired(&cx, &cx.store)).await;
    assert!(lease(&cx.store).await.expect("it is held again").token > token);
    assert!(!standby.task.is_done());
    standby.stop().await.unwrap();
}

pub(crate) async fn h31_a_standby_goes_on_after_passing_faults(cx: Cx) {
    make_due(&cx).await;
    let mut faults = unavailable(1..=11);
    faults.extend((0..7).map(|_| Error::commit_unknown("cut off")));
    let store = cx.data().with_failing_ticks(cx.store.clone(), faults);
    let standby = Runner::standby(&cx, &store);
    cx.advancing(secs(1), until_fired(&cx, &cx.store)).await;
    assert!(!standby.task.is_done());
    standby.stop().await.unwrap();
}

pub(crate) async fn h31_a_standby_goes_on_after_faults_of_the_lock(cx: Cx) {
    make_due(&cx).await;
    let (script, store) = Script::default().over(&cx.store);
    {
        let mut faults = script.acquisition_faults.lock().unwrap();
        faults.extend(unavailable(1..=3));
        faults.push_back(Error::commit_unknown("cut off"));
        script.renewal_faults.lock().unwrap().push_back(Error::commit_unknown("cut off"));
    }
    let standby = Runner::standby(&cx, &store);
    cx.advancing(secs(1), until_fired(&cx, &cx.store)).await;
    assert!(!standby.task.is_done());
    standby.stop().await.unwrap();
}

pub(crate) async fn h31_a_standby_backs_off_from_50_ms_to_5_s(cx: Cx) {
    let (script, store) = Script::default().over(&cx.store);
    script.acquisition_faults.lock().unwrap().extend(unavailable(1..=12));
    let standby = Runner::standby(&cx, &store);
    for tries in 1..=12 {
        cx.until(|| async { script.acquisitions() == tries }).await;
        // Its pause begins a little after its try has failed.
        cx.settle().await;
        cx.advance(Duration::from_millis(49)).await;
        cx.settle().await;
        assert_eq!(script.acquisitions(), tries, "it waits at least 50 ms");
        cx.advance(secs(5)).await;
    }
    cx.until(|| async { lease(&cx.store).await.is_some() }).await;
    standby.stop().await.unwrap();
}

pub(crate) async fn h31_a_standby_that_has_led_begins_its_pauses_anew(cx: Cx) {
    make_due(&cx).await;
    let (script, store) = Script::default().over(&cx.store);
    script.acquisition_faults.lock().unwrap().extend(unavailable(1..=9));
    let standby = Runner::standby(&cx, &store);
    cx.advancing(secs(5), until_fired(&cx, &cx.store)).await;
    let before = script.pauses();
    assert!(before.contains(&secs(5)), "the faults made its pauses grow");
    script.renewal_faults.lock().unwrap().push_back(Error::commit_unknown("cut off"));
    cx.advance(SCHEDULER_RENEWAL).await;
    cx.until(|| async { script.pauses().len() > before.len() }).await;
    // Where time ran away from it, it may have lost the lease in between, and paused for that.
    let pause = script.pauses()[before.len()];
    assert!(pause < secs(1), "it paused for {pause:?}, as after the other faults");
    standby.stop().await.unwrap();
}

pub(crate) async fn h32_a_standby_returns_other_errors(cx: Cx) {
    let store = cx.data().with_failing_ticks(cx.store.clone(), vec![Error::engine("broken")]);
    let result = cx.within(store.run_schedules_standby(StopToken::new())).await;
    assert!(matches!(result, Err(Error::Engine { .. })), "{result:?}");
    assert_eq!(cx.store.locks().await.unwrap(), [], "its lease is released");
    let (script, store) = Script::default().over(&cx.store);
    script.acquisition_faults.lock().unwrap().push_back(Error::engine("broken"));
    let result = cx.within(store.run_schedules_standby(StopToken::new())).await;
    assert!(matches!(result, Err(Error::Engine { .. })), "{result:?}");
}

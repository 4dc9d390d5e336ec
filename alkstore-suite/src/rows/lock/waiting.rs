//! Waiting for a lock, and giving up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use alkstore_core::{Error, Lock, Store, StoreExt};
use futures_util::FutureExt;

use super::super::tools::{Witness, give_way, refused};
use super::{MS, TTL, is_held, take, take_soon, until_free};
use crate::Task;
use crate::cx::{Cx, drop_at_every_await};

/// Waits for the lock `l` beside the row, and lets that come to rest.
async fn waiter(cx: &Cx, store: &Arc<dyn Store>) -> Task<alkstore_core::Result<Lock>> {
    let store = store.clone();
    let task = cx.spawn(async move { store.lock("l", "waiter", TTL).await });
    cx.settle().await;
    task
}

pub(crate) async fn l13_lock_takes_what_is_free_at_once(cx: Cx) {
    let lock = cx.within(cx.store.lock("l", "o", TTL)).await.unwrap();
    assert_eq!((lock.name(), lock.owner()), ("l", "o"));
    assert_eq!(lock.expires_at(), std::time::SystemTime::from(cx.now().await.plus(TTL)));
    assert!(cx.store.try_lock("l", "o", TTL).await.unwrap().is_none());
}

pub(crate) async fn l13_a_release_wakes_who_waits(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    for (holder, waits) in [(0, 0), (0, 1), (1, 0)] {
        for dropped in [false, true] {
            let lock = take(&stores[holder], "holder").await;
            let token = lock.token();
            let waiter = waiter(&cx, &stores[waits]).await;
            assert!(!waiter.is_done(), "it is held");
            if dropped {
                drop(lock);
            } else {
                lock.release().await.unwrap();
            }
            let lock = waiter.join().await.unwrap();
            assert!(lock.token() > token);
            lock.release().await.unwrap();
        }
    }
}

pub(crate) async fn l13_an_expiry_lets_in_who_waits(cx: Cx) {
    let mut held = take(&cx.store, "holder").await;
    let waiter = waiter(&cx, &cx.second().await).await;
    cx.advance(TTL - MS).await;
    held.renew(TTL).await.unwrap();
    cx.advance(MS).await;
    cx.settle().await;
    assert!(!waiter.is_done(), "it was renewed");
    cx.advance(TTL - MS).await;
    let lock = waiter.join().await.unwrap();
    assert_eq!(lock.expires_at(), std::time::SystemTime::from(cx.now().await.plus(TTL)));
    refused!(held.renew(TTL).await, Error::LockLost { .. });
}

pub(crate) async fn l13_all_who_wait_get_it_in_turn(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers = stores.iter().chain(&stores).map(|store| {
        let (store, inside, last) = (store.clone(), inside.clone(), last.clone());
        async move {
            for _ in 0..25 {
                let lock = store.lock("l", "worker", TTL).await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two hold it at once");
                let before = last.swap(lock.token(), Ordering::SeqCst);
                assert!(lock.token() > before, "{} after {before}", lock.token());
                give_way().await;
                inside.store(false, Ordering::SeqCst);
                lock.release().await.unwrap();
                give_way().await;
            }
        }
        .boxed()
    });
    cx.together(workers).await;
    assert!(!is_held(&cx.store).await);
}

pub(crate) async fn l14_who_waits_does_not_look_again_and_again(cx: Cx) {
    let lock = take(&cx.store, "holder").await;
    let second = cx.second().await;
    let witness = Arc::new(Witness::default());
    let mut waiting = Box::pin(witness.clone().watch(second.lock("l", "waiter", TTL)));
    let (mut before, mut quiet) = (usize::MAX, 0);
    for _ in 0..100 {
        assert!(cx.briefly(&mut waiting).await.is_none());
        let wakes = witness.wakes();
        quiet = if wakes == before { quiet + 1 } else { 0 };
        before = wakes;
        if quiet == 5 {
            break;
        }
    }
    for _ in 0..8 {
        assert!(cx.briefly(&mut waiting).await.is_none());
    }
    let wakes = witness.wakes() - before;
    assert!(wakes <= 1, "{wakes} wakes while nothing happened");
    lock.release().await.unwrap();
    cx.within(waiting).await.unwrap().release().await.unwrap();
}

pub(crate) async fn l15_a_dropped_try_lock_gives_back_what_it_took(cx: Cx) {
    let second = cx.second().await;
    let attempt = || cx.store.try_lock("l", "o", TTL);
    let taken = drop_at_every_await(attempt, || until_free(&cx, &second)).await.unwrap();
    taken.expect("nobody holds it").release().await.unwrap();
}

pub(crate) async fn l15_a_dropped_lock_call_gives_back_what_it_took(cx: Cx) {
    let second = cx.second().await;
    let attempt = || cx.store.lock("l", "o", TTL);
    let taken = drop_at_every_await(attempt, || until_free(&cx, &second)).await.unwrap();
    taken.release().await.unwrap();
}

pub(crate) async fn l15_a_waiter_that_is_gone_passes_its_wake_on(cx: Cx) {
    for stores in [[cx.store.clone(), cx.store.clone()], [cx.store.clone(), cx.second().await]] {
        let held = take(&stores[0], "holder").await;
        let mut gone = Box::pin(stores[1].lock("l", "gone", TTL));
        let mut stays = Box::pin(stores[1].lock("l", "stays", TTL));
        assert!(cx.briefly(&mut gone).await.is_none());
        assert!(cx.briefly(&mut stays).await.is_none());
        held.release().await.unwrap();
        cx.settle().await;
        drop(gone);
        let lock = cx.within(stays).await.unwrap();
        assert_eq!(lock.owner(), "stays");
        lock.release().await.unwrap();
    }
}

pub(crate) async fn l15_a_waiter_cancelled_as_it_is_let_in_holds_nothing(cx: Cx) {
    let second = cx.second().await;
    for round in 0..100 {
        // What was asked for when its caller left may be on its way from another store still.
        let held = take_soon(&cx, &cx.store, "holder").await;
        let store = second.clone();
        let waiter = cx.spawn(async move { store.lock("l", "waiter", TTL).await });
        for _ in 0..round % 5 {
            give_way().await;
        }
        let release = cx.spawn(async move { held.release().await.unwrap() });
        for _ in 0..round % 3 {
            give_way().await;
        }
        waiter.cancel().await;
        release.join().await;
        until_free(&cx, &cx.store).await;
    }
}

pub(crate) async fn l16_a_close_ends_the_wait(cx: Cx) {
    let second = cx.second().await;
    let held = take(&cx.store, "holder").await;
    let (here, there) = (waiter(&cx, &cx.store).await, waiter(&cx, &second).await);
    second.close().await.unwrap();
    refused!(there.join().await, Error::Closed);
    assert!(!here.is_done());
    held.release().await.unwrap();
    here.join().await.unwrap().release().await.unwrap();
}

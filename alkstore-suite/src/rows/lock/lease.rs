//! Taking, holding and losing a lock.

use std::time::{Duration, SystemTime};

use alkstore_core::{Error, MAX_LEASE, StopToken, StoreExt};
use futures_util::FutureExt;

use super::super::tools::{bad_names, names_alike, refused};
use super::{MS, TTL, is_held, take, until_free};
use crate::cx::Cx;

pub(crate) async fn l1_a_lock_tells_what_was_taken(cx: Cx) {
    let mut lock = cx.store.try_lock("l", "host a", TTL).await.unwrap().unwrap();
    assert_eq!((lock.name(), lock.owner()), ("l", "host a"));
    assert_eq!(lock.expires_at(), SystemTime::from(cx.now().await.plus(TTL)));
    assert!(lock.remaining() <= TTL, "{:?}", lock.remaining());
    assert!(lock.remaining() > TTL - Duration::from_secs(60), "{:?}", lock.remaining());
    assert!(lock.token() > 0);
    lock.renew(2 * TTL).await.unwrap();
    assert!(lock.remaining() > TTL && lock.remaining() <= 2 * TTL, "{:?}", lock.remaining());
    lock.release().await.unwrap();
}

pub(crate) async fn l2_nobody_takes_a_lock_that_is_held(cx: Cx) {
    let second = cx.second().await;
    let lock = take(&cx.store, "a").await;
    for store in [&cx.store, &second] {
        for owner in ["a", "b"] {
            assert!(store.try_lock("l", owner, TTL).await.unwrap().is_none(), "{owner}");
        }
    }
    assert!(second.try_lock("another", "a", TTL).await.unwrap().is_some());
    lock.release().await.unwrap();
    take(&second, "b").await.release().await.unwrap();
}

pub(crate) async fn l2_of_those_who_try_at_once_one_gets_it(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    let mut last = 0;
    for round in 0..100 {
        let tries = stores.iter().chain(&stores).map(|store| {
            let store = store.clone();
            async move { store.try_lock("l", "o", TTL).await.unwrap() }.boxed()
        });
        let mut taken: Vec<_> = cx.together(tries).await.into_iter().flatten().collect();
        assert_eq!(taken.len(), 1, "round {round}");
        let lock = taken.remove(0);
        assert!(lock.token() > last, "round {round}: {} after {last}", lock.token());
        last = lock.token();
        // Now and then it lapses instead.
        if round % 4 == 3 {
            cx.advance(TTL).await;
            refused!(lock.release().await, Error::LockLost { .. });
        } else {
            lock.release().await.unwrap();
        }
    }
}

pub(crate) async fn l3_tokens_only_grow(cx: Cx) {
    let stores = [cx.store.clone(), cx.second().await];
    let mut last = 0;
    for round in 0..12 {
        let lock = take(&stores[round % 2], "o").await;
        assert!(lock.token() > last, "round {round}: {} after {last}", lock.token());
        last = lock.token();
        match round % 3 {
            0 => lock.release().await.unwrap(),
            1 => cx.advance(TTL).await,
            _ => {
                drop(lock);
                cx.until(async || !is_held(&stores[0]).await).await;
            }
        }
    }
}

pub(crate) async fn l3_tokens_grow_across_a_restart(cx: Cx) {
    let mut last = 0;
    for held in [false, true] {
        let store = cx.second().await;
        let lock = take(&store, "o").await;
        assert!(lock.token() > last, "{} after {last}", lock.token());
        last = lock.token();
        if !held {
            lock.release().await.unwrap();
        }
        store.close().await.unwrap();
        cx.advance(TTL).await;
    }
    cx.store.close().await.unwrap();
    let lock = take(&cx.second().await, "o").await;
    assert!(lock.token() > last, "{} after {last}", lock.token());
}

pub(crate) async fn l4_a_lock_is_held_until_its_very_expiry(cx: Cx) {
    let second = cx.second().await;
    let mut lock = take(&cx.store, "a").await;
    cx.advance(TTL - MS).await;
    assert!(second.try_lock("l", "b", TTL).await.unwrap().is_none());
    lock.renew(TTL).await.unwrap();
    cx.advance(TTL).await;
    assert!(!is_held(&second).await);
    refused!(lock.renew(TTL).await, Error::LockLost { .. });
    let other = take(&second, "b").await;
    assert_eq!(other.expires_at(), SystemTime::from(cx.now().await.plus(TTL)));
}

pub(crate) async fn l5_an_expired_lock_is_not_revived(cx: Cx) {
    let second = cx.second().await;
    let mut lock = take(&cx.store, "a").await;
    cx.advance(TTL).await;
    match lock.renew(TTL).await {
        Err(Error::LockLost { name }) => assert_eq!(name, "l"),
        other => panic!("it had expired, yet {other:?}"),
    }
    assert!(!is_held(&second).await);
    refused!(lock.release().await, Error::LockLost { .. });
    take(&second, "a").await.release().await.unwrap();
}

pub(crate) async fn l5_a_stale_handle_leaves_the_next_holder_alone(cx: Cx) {
    let second = cx.second().await;
    let (mut renewed, released, dropped) = {
        let mut stale = Vec::new();
        for _ in 0..3 {
            stale.push(take(&cx.store, "same").await);
            cx.advance(TTL).await;
        }
        let mut stale = stale.into_iter();
        (stale.next().unwrap(), stale.next().unwrap(), stale.next().unwrap())
    };
    let mut holder = take(&second, "same").await;
    let before = second.locks().await.unwrap();
    refused!(renewed.renew(TTL * 2).await, Error::LockLost { .. });
    refused!(released.release().await, Error::LockLost { .. });
    drop((renewed, dropped));
    cx.settle().await;
    assert_eq!(second.locks().await.unwrap(), before);
    assert!(cx.store.try_lock("l", "same", TTL).await.unwrap().is_none());
    holder.renew(TTL).await.unwrap();
    holder.release().await.unwrap();
}

pub(crate) async fn l5_at_its_expiry_a_lock_is_its_next_takers_alone(cx: Cx) {
    let second = cx.second().await;
    for round in 0..100 {
        let mut old = take(&cx.store, "old").await;
        cx.advance(TTL).await;
        let renewal = async move {
            let lost = matches!(old.renew(TTL).await, Err(Error::LockLost { .. }));
            lost && matches!(old.release().await, Err(Error::LockLost { .. }))
        };
        let taker = second.clone();
        let taking = async move {
            let new = taker.try_lock("l", "new", TTL).await.unwrap().expect("it has expired");
            new.release().await.is_ok()
        };
        let ok = cx.together([renewal.boxed(), taking.boxed()]).await;
        assert_eq!(ok, [true, true], "round {round}");
    }
}

pub(crate) async fn l6_a_renewal_is_a_full_new_window(cx: Cx) {
    let second = cx.second().await;
    let mut lock = take(&cx.store, "a").await;
    for ttl in [TTL, 3 * TTL, TTL / 2] {
        cx.advance(TTL / 3).await;
        lock.renew(ttl).await.unwrap();
        let expiry = SystemTime::from(cx.now().await.plus(ttl));
        assert_eq!(lock.expires_at(), expiry);
        let locks = second.locks().await.unwrap();
        assert_eq!((locks[0].expires_at, locks[0].token), (expiry, lock.token()));
    }
    cx.advance(TTL / 2 - MS).await;
    assert!(second.try_lock("l", "b", TTL).await.unwrap().is_none());
    cx.advance(MS).await;
    assert!(second.try_lock("l", "b", TTL).await.unwrap().is_some());
}

pub(crate) async fn l7_a_dropped_lock_is_released(cx: Cx) {
    let second = cx.second().await;
    for _ in 0..3 {
        drop(take(&cx.store, "a").await);
        until_free(&cx, &second).await;
    }
    // Also while it is being renewed or released.
    for polls in [0, 1] {
        let mut lock = take(&cx.store, "a").await;
        if polls > 0 {
            let _ = lock.renew(TTL).now_or_never();
        }
        drop(lock);
        until_free(&cx, &second).await;
        let lock = take(&cx.store, "a").await;
        let release = lock.release();
        if polls > 0 {
            let _ = release.now_or_never();
        } else {
            drop(release);
        }
        until_free(&cx, &second).await;
    }
}

pub(crate) async fn l8_a_ttl_is_1_ms_to_10_years(cx: Cx) {
    let too_long = Duration::from_secs(3_650 * 24 * 60 * 60) + Duration::from_nanos(1);
    for ttl in [Duration::ZERO, Duration::from_micros(999), too_long, Duration::MAX] {
        refused!(cx.store.try_lock("l", "o", ttl).await, Error::InvalidArgument { .. });
        refused!(cx.store.lock("l", "o", ttl).await, Error::InvalidArgument { .. });
    }
    assert_eq!(cx.store.locks().await.unwrap(), []);
    let mut lock = take(&cx.store, "o").await;
    let before = cx.store.locks().await.unwrap();
    for ttl in [Duration::ZERO, Duration::from_micros(999), too_long, Duration::MAX] {
        refused!(lock.renew(ttl).await, Error::InvalidArgument { .. });
    }
    assert_eq!(cx.store.locks().await.unwrap(), before);
    for (ttl, length) in [
        (MAX_LEASE, MAX_LEASE),
        (Duration::from_micros(1_001), 2 * MS),
        (Duration::from_nanos(1_999_999), 2 * MS),
        (MS, MS),
    ] {
        lock.renew(ttl).await.unwrap();
        assert_eq!(lock.expires_at(), SystemTime::from(cx.now().await.plus(length)), "{ttl:?}");
        let name = format!("{ttl:?}");
        let other = cx.store.try_lock(&name, "o", ttl).await.unwrap().unwrap();
        assert_eq!(other.expires_at(), SystemTime::from(cx.now().await.plus(length)), "{ttl:?}");
        other.release().await.unwrap();
    }
    cx.advance(MS).await;
    refused!(lock.release().await, Error::LockLost { .. });
}

pub(crate) async fn l9_names_of_locks_are_shared_and_owners_local(cx: Cx) {
    for name in bad_names() {
        refused!(cx.store.try_lock(&name, "o", TTL).await, Error::InvalidName { .. });
        refused!(cx.store.lock(&name, "o", TTL).await, Error::InvalidName { .. });
        refused!(cx.store.try_lock("l", &name, TTL).await, Error::InvalidName { .. });
        refused!(cx.store.lock("l", &name, TTL).await, Error::InvalidName { .. });
    }
    let reserved = "__alkstore_scheduler";
    refused!(cx.store.try_lock(reserved, "o", TTL).await, Error::ReservedName { .. });
    refused!(cx.store.lock(reserved, "o", TTL).await, Error::ReservedName { .. });
    assert_eq!(cx.store.locks().await.unwrap(), []);
    let mut held = Vec::new();
    for name in names_alike() {
        let lock = cx.store.try_lock(&name, "__alkstore_o", TTL).await.unwrap();
        let lock = lock.unwrap_or_else(|| panic!("{name:?} was taken for another"));
        assert_eq!((lock.name(), lock.owner()), (&*name, "__alkstore_o"));
        held.push(lock);
    }
}

pub(crate) async fn l10_the_list_has_what_is_held(cx: Cx) {
    let second = cx.second().await;
    let mut held = Vec::new();
    for (name, ttl) in [("b", TTL), ("a", 2 * TTL), ("Z", TTL), ("\u{e9}", 3 * TTL)] {
        let owner = format!("owner of {name}");
        held.push(second.try_lock(name, &owner, ttl).await.unwrap().unwrap());
    }
    second.try_lock("released", "o", TTL).await.unwrap().unwrap().release().await.unwrap();
    let names = async || {
        let locks = cx.store.locks().await.unwrap();
        locks.into_iter().map(|lock| lock.name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["Z", "a", "b", "\u{e9}"]);
    let first = &cx.store.locks().await.unwrap()[1];
    assert_eq!((&*first.owner, first.token), ("owner of a", held[1].token()));
    assert_eq!(first.expires_at, held[1].expires_at());
    cx.advance(TTL).await;
    assert_eq!(names().await, ["a", "\u{e9}"]);
}

pub(crate) async fn l10_the_list_has_the_schedulers_lock(cx: Cx) {
    let (store, stop) = (cx.store.clone(), StopToken::new());
    let runner = cx.spawn({
        let stop = stop.clone();
        async move { store.run_schedules(stop).await }
    });
    let second = cx.second().await;
    let listed = async || {
        let locks = second.locks().await.unwrap();
        locks.iter().any(|lock| lock.name == "__alkstore_scheduler")
    };
    cx.until(&listed).await;
    stop.stop();
    runner.join().await.unwrap();
    cx.until(async || !listed().await).await;
}

pub(crate) async fn l11_a_closed_store_refuses_locks(cx: Cx) {
    let second = cx.second().await;
    let (mut renewed, released) =
        (take(&cx.store, "o").await, cx.store.try_lock("m", "o", TTL).await.unwrap().unwrap());
    cx.store.clone().close().await.unwrap();
    refused!(renewed.renew(TTL).await, Error::Closed);
    refused!(released.release().await, Error::Closed);
    refused!(cx.store.try_lock("n", "o", TTL).await, Error::Closed);
    refused!(cx.store.lock("n", "o", TTL).await, Error::Closed);
    refused!(cx.store.locks().await, Error::Closed);
    drop(renewed);
    cx.advance(TTL).await;
    take(&second, "o").await.release().await.unwrap();
}

pub(crate) async fn l12_a_lock_keeps_its_store_open(cx: Cx) {
    let second = cx.second().await;
    let mut lock = take(&second, "o").await;
    let mut listener = second.listen("c").await.unwrap();
    drop(second);
    cx.store.notify("c", &1).await.unwrap();
    assert!(cx.within(listener.recv()).await.is_some_and(|item| item.is_ok()));
    lock.renew(TTL).await.unwrap();
    lock.release().await.unwrap();
    assert!(cx.within(listener.recv()).await.is_none());
}

//! Rows of docs/architecture/notify.md.

use std::sync::Arc;

use alkstore_core::{
    DEFAULT_LISTENER_MESSAGES, DEFAULT_PAYLOAD_LIMIT, Error, Listener, ListenerLimits, Message,
    Payload, Store, StoreExt,
};
use futures_util::lock::Mutex;
use futures_util::{FutureExt, StreamExt};

use super::tools::{Witness, bad_names, give_way, names_alike, payload_of, refused};
use crate::cx::{Cx, drop_at_every_await};
use crate::factory::OpenOptions;

/// The next message, which has to come.
async fn next(cx: &Cx, listener: &mut Listener) -> Message {
    cx.within(listener.recv()).await.expect("the listener goes on").unwrap()
}

/// The number in the next message.
async fn number(cx: &Cx, listener: &mut Listener) -> u32 {
    next(cx, listener).await.payload.decode().unwrap()
}

/// How many messages the next item says are missing; 0 where the engine can't know.
async fn lagged(cx: &Cx, listener: &mut Listener) -> u64 {
    match cx.within(listener.recv()).await {
        Some(Err(Error::Lagged { missed })) => missed,
        other => panic!("messages are missing here, not {other:?}"),
    }
}

/// Sees that a listener has nothing to yield.
async fn assert_quiet(cx: &Cx, listener: &mut Listener) {
    let item = cx.briefly(&mut Box::pin(listener.recv())).await;
    assert!(item.is_none(), "{item:?}");
}

/// Opens a store whose listeners hold so much.
async fn with_buffer(cx: &Cx, messages: usize, bytes: usize) -> Arc<dyn Store> {
    let listener = Some(ListenerLimits { messages, bytes });
    cx.open(OpenOptions { listener, ..OpenOptions::default() }).await
}

/// Sends so many numbers, counted from 1, and waits until they have arrived in the store's
/// listeners.
async fn send_numbers(cx: &Cx, store: &Arc<dyn Store>, count: usize) {
    let mut probe = store.listen("c").await.unwrap();
    for n in 1..=count {
        store.notify("c", &n).await.unwrap();
    }
    cx.within(async {
        while let Some(item) = probe.recv().await {
            if item.is_ok_and(|message| message.payload.decode::<usize>().unwrap() == count) {
                break;
            }
        }
    })
    .await;
    cx.settle().await;
}

pub(crate) async fn n1_a_message_reaches_every_listener_of_its_channel(cx: Cx) {
    let second = cx.second().await;
    let mut listeners = [
        cx.store.listen("c").await.unwrap(),
        cx.store.listen("c").await.unwrap(),
        second.listen("c").await.unwrap(),
    ];
    let mut other = cx.store.listen("other").await.unwrap();
    for (n, store) in [&cx.store, &second].into_iter().enumerate() {
        store.notify("c", &n).await.unwrap();
        for listener in &mut listeners {
            assert_eq!(listener.channel(), "c");
            let message = next(&cx, listener).await;
            assert_eq!(message.channel.as_str(), "c");
            assert_eq!(message.payload.decode::<usize>().unwrap(), n);
        }
    }
    assert_quiet(&cx, &mut other).await;
    for listener in &mut listeners {
        assert_quiet(&cx, listener).await;
    }
}

pub(crate) async fn n2_nothing_is_replayed(cx: Cx) {
    let second = cx.second().await;
    // Where somebody listens already, messages may still be on their way when another begins.
    let _before = [cx.store.listen("c").await.unwrap(), second.listen("c").await.unwrap()];
    cx.store.notify("c", &1).await.unwrap();
    second.notify("c", &2).await.unwrap();
    let mut listeners = [cx.store.listen("c").await.unwrap(), second.listen("c").await.unwrap()];
    cx.store.notify("c", &3).await.unwrap();
    for listener in &mut listeners {
        assert_eq!(number(&cx, listener).await, 3);
    }
}

pub(crate) async fn n3_a_message_is_delivered_at_commit(cx: Cx) {
    let second = cx.second().await;
    let mut early = [cx.store.listen("c").await.unwrap(), second.listen("c").await.unwrap()];
    let mut tx = cx.store.begin_tx().await.unwrap();
    tx.notify_tx("c", &1).await.unwrap();
    let mut late = second.listen("c").await.unwrap();
    for listener in early.iter_mut().chain([&mut late]) {
        assert_quiet(&cx, listener).await;
    }
    tx.commit().await.unwrap();
    for listener in early.iter_mut().chain([&mut late]) {
        assert_eq!(number(&cx, listener).await, 1);
    }
}

pub(crate) async fn n3_a_rolled_back_message_is_never_delivered(cx: Cx) {
    let second = cx.second().await;
    let mut listener = second.listen("c").await.unwrap();
    for drop_it in [false, true] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        tx.notify_tx("c", &1).await.unwrap();
        if drop_it {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        assert_quiet(&cx, &mut listener).await;
    }
    cx.store.notify("c", &2).await.unwrap();
    assert_eq!(number(&cx, &mut listener).await, 2);
}

pub(crate) async fn n4_equal_messages_are_never_folded(cx: Cx) {
    let second = cx.second().await;
    let mut listeners = [cx.store.listen("c").await.unwrap(), second.listen("c").await.unwrap()];
    for _ in 0..3 {
        cx.store.notify("c", &"same").await.unwrap();
    }
    let mut tx = cx.store.begin_tx().await.unwrap();
    for text in ["same", "same", "other", "same", "same"] {
        tx.notify_tx("c", text).await.unwrap();
    }
    tx.commit().await.unwrap();
    cx.store.notify("c", &"end").await.unwrap();
    let expected = ["same", "same", "same", "same", "same", "other", "same", "same", "end"];
    for listener in &mut listeners {
        for (n, text) in expected.into_iter().enumerate() {
            let message = next(&cx, listener).await;
            assert_eq!(message.payload.decode::<String>().unwrap(), text, "message {n}");
        }
    }
}

pub(crate) async fn n5_messages_come_in_their_notifiers_order(cx: Cx) {
    const EACH: u32 = 100;
    let stores = [cx.store.clone(), cx.second().await];
    let mut listeners =
        [stores[0].listen("c").await.unwrap(), stores[1].listen("c").await.unwrap()];
    let notifiers = stores.iter().zip(0_u32..).map(|(store, who)| {
        let store = store.clone();
        async move {
            for n in (0..EACH).step_by(2) {
                store.notify("c", &(who, n)).await.unwrap();
                give_way().await;
                let mut tx = store.begin_tx().await.unwrap();
                tx.notify_tx("c", &(who, n + 1)).await.unwrap();
                tx.commit().await.unwrap();
            }
        }
        .boxed()
    });
    cx.together(notifiers).await;
    for listener in &mut listeners {
        let mut seen = [0; 2];
        for _ in 0..2 * EACH {
            let (who, n) = next(&cx, listener).await.payload.decode::<(u32, u32)>().unwrap();
            let expected = &mut seen[who as usize];
            assert_eq!(n, *expected, "notifier {who}");
            *expected += 1;
        }
        assert_quiet(&cx, listener).await;
    }
}

pub(crate) async fn n6_a_payload_arrives_byte_for_byte_at_any_size(cx: Cx) {
    let second = cx.second().await;
    let mut listeners = [cx.store.listen("c").await.unwrap(), second.listen("c").await.unwrap()];
    let exact = "{ \"b\":1.0,  \"a\" : [1e2, \"\\u0000 \u{e9}\\/'\"] ,\"a\":null}\n";
    let mut payloads = vec![Payload::from_json_text(exact).unwrap()];
    let sizes = [2, 7_900, 7_999, 8_000, 8_001, 100_000, 3, DEFAULT_PAYLOAD_LIMIT, 4];
    payloads.extend(sizes.map(payload_of));
    for payload in &payloads {
        cx.store.notify("c", payload.clone()).await.unwrap();
    }
    let mut tx = cx.store.begin_tx().await.unwrap();
    for payload in &payloads {
        tx.notify_tx("c", payload.clone()).await.unwrap();
    }
    tx.commit().await.unwrap();
    for listener in &mut listeners {
        for payload in payloads.iter().chain(&payloads) {
            let got = next(&cx, listener).await.payload;
            assert!(got == *payload, "{} bytes instead of {}", got.size(), payload.size());
        }
    }
}

pub(crate) async fn n7_the_payload_limit_holds_for_messages(cx: Cx) {
    let second = cx.second().await;
    const RAISED: usize = 2 * 1024 * 1024;
    let raised = OpenOptions { payload_limit: Some(RAISED), ..OpenOptions::default() };
    let mut listener = second.listen("c").await.unwrap();
    for (store, most) in
        [(cx.store.clone(), DEFAULT_PAYLOAD_LIMIT), (cx.open(raised).await, RAISED)]
    {
        let more = payload_of(most + 1);
        match store.notify("c", more.clone()).await {
            Err(Error::PayloadTooLarge { size, limit }) => {
                assert_eq!((size, limit), (most + 1, most));
            }
            other => panic!("too large, yet {other:?}"),
        }
        let mut tx = store.begin_tx().await.unwrap();
        refused!(tx.notify_tx("c", more).await, Error::PayloadTooLarge { .. });
        tx.notify_tx("c", payload_of(most)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(next(&cx, &mut listener).await.payload.size(), most);
    }
}

pub(crate) async fn n7_a_message_nested_too_deep_is_refused(cx: Cx) {
    let nested = |depth: usize| {
        (1..depth).fold(serde_json::json!([]), |inner, _| serde_json::Value::Array(vec![inner]))
    };
    let mut listener = cx.store.listen("c").await.unwrap();
    refused!(cx.store.notify("c", &nested(128)).await, Error::Codec { .. });
    let mut tx = cx.store.begin_tx().await.unwrap();
    refused!(tx.notify_tx("c", &nested(128)).await, Error::Codec { .. });
    tx.notify_tx("c", &nested(127)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(next(&cx, &mut listener).await.payload.size(), 2 * 127);
}

pub(crate) async fn n8_a_full_buffer_drops_the_oldest(cx: Cx) {
    let store = with_buffer(&cx, 4, 1024).await;
    let mut listener = store.listen("c").await.unwrap();
    send_numbers(&cx, &store, 10).await;
    let missed = lagged(&cx, &mut listener).await;
    assert!([0, 6].contains(&missed), "{missed} instead of 6");
    for n in 7..=10 {
        assert_eq!(number(&cx, &mut listener).await, n);
    }
    assert_quiet(&cx, &mut listener).await;
    send_numbers(&cx, &store, 4).await;
    for n in 1..=4 {
        assert_eq!(number(&cx, &mut listener).await, n);
    }
    send_numbers(&cx, &store, 5).await;
    assert!([0, 1].contains(&lagged(&cx, &mut listener).await));
    for n in 2..=5 {
        assert_eq!(number(&cx, &mut listener).await, n);
    }
}

pub(crate) async fn n8_a_buffer_holds_1024_messages_unless_told(cx: Cx) {
    const EXTRA: usize = 3;
    let mut listener = cx.store.listen("c").await.unwrap();
    send_numbers(&cx, &cx.store, DEFAULT_LISTENER_MESSAGES + EXTRA).await;
    assert_eq!(DEFAULT_LISTENER_MESSAGES, 1024);
    let missed = lagged(&cx, &mut listener).await;
    assert!([0, 3].contains(&missed), "{missed} instead of {EXTRA}");
    for n in 1..=1024 {
        assert_eq!(number(&cx, &mut listener).await, n + 3);
    }
    assert_quiet(&cx, &mut listener).await;
}

/// Sends messages of these sizes and waits until they have arrived in the store's listeners.
async fn send_sizes(cx: &Cx, store: &Arc<dyn Store>, sizes: &[usize]) {
    let mut probe = store.listen("end").await.unwrap();
    for size in sizes {
        store.notify("c", payload_of(*size)).await.unwrap();
    }
    store.notify("end", &()).await.unwrap();
    next(cx, &mut probe).await;
    cx.settle().await;
}

pub(crate) async fn n9_a_buffer_holds_16_mib_unless_told(cx: Cx) {
    const MIB: usize = 1024 * 1024;
    let mut listener = cx.store.listen("c").await.unwrap();
    let sizes: Vec<_> = [4, 3].into_iter().chain([MIB; 16]).collect();
    send_sizes(&cx, &cx.store, &sizes).await;
    let missed = lagged(&cx, &mut listener).await;
    assert!([0, 2].contains(&missed), "{missed} instead of 2");
    for n in 0..16 {
        assert_eq!(next(&cx, &mut listener).await.payload.size(), MIB, "message {n}");
    }
    assert_quiet(&cx, &mut listener).await;
}

pub(crate) async fn n9_a_message_larger_than_the_buffer_is_kept_alone(cx: Cx) {
    let store = with_buffer(&cx, 10, 100).await;
    let mut listener = store.listen("c").await.unwrap();
    send_sizes(&cx, &store, &[10, 20, 500]).await;
    assert!([0, 2].contains(&lagged(&cx, &mut listener).await));
    assert_eq!(next(&cx, &mut listener).await.payload.size(), 500);
    send_sizes(&cx, &store, &[500, 40, 60]).await;
    assert!([0, 1].contains(&lagged(&cx, &mut listener).await));
    for size in [40, 60] {
        assert_eq!(next(&cx, &mut listener).await.payload.size(), size);
    }
    assert_quiet(&cx, &mut listener).await;
}

pub(crate) async fn n10_a_slow_listener_slows_nobody(cx: Cx) {
    let store = with_buffer(&cx, 2, 100).await;
    let slow = store.listen("c").await.unwrap();
    let mut fast = store.listen("c").await.unwrap();
    let mut elsewhere = cx.store.listen("c").await.unwrap();
    for n in 0..500 {
        cx.within(store.notify("c", &n)).await.unwrap();
        assert_eq!(number(&cx, &mut fast).await, n);
    }
    for n in 0..500 {
        assert_eq!(number(&cx, &mut elsewhere).await, n);
    }
    drop(slow);
}

pub(crate) async fn n11_a_message_between_listen_and_the_first_wait_is_received(cx: Cx) {
    let second = cx.second().await;
    let mut listener = cx.store.listen("c").await.unwrap();
    second.notify("c", &1).await.unwrap();
    cx.settle().await;
    assert_eq!(number(&cx, &mut listener).await, 1);
}

pub(crate) async fn n12_a_dropped_recv_loses_nothing(cx: Cx) {
    let second = cx.second().await;
    let listener = Arc::new(Mutex::new(cx.store.listen("c").await.unwrap()));
    for n in 1..=5 {
        {
            let mut listener = listener.lock().await;
            let mut waiting = Box::pin(listener.recv());
            assert!(cx.briefly(&mut waiting).await.is_none());
            second.notify("c", &n).await.unwrap();
            // Woken by now, but dropped before it looks.
            cx.settle().await;
        }
        let recv = || {
            let listener = listener.clone();
            async move { listener.lock().await.recv().await }
        };
        let item = cx.within(drop_at_every_await(recv, async || {})).await;
        assert_eq!(item.expect("the store is open").unwrap().payload.decode::<u32>().unwrap(), n);
    }
}

pub(crate) async fn n13_a_listener_is_a_stream_of_futures(cx: Cx) {
    let store = with_buffer(&cx, 2, 100).await;
    let mut listener = store.listen("c").await.unwrap();
    send_numbers(&cx, &store, 3).await;
    let first = cx.within(listener.next()).await;
    assert!(matches!(first, Some(Err(Error::Lagged { .. }))), "{first:?}");
    for n in 2..=3 {
        let message = cx.within(listener.next()).await.unwrap().unwrap();
        assert_eq!(message.payload.decode::<u32>().unwrap(), n);
    }
    let waiting = cx.spawn(async move { (listener.next().await, listener) });
    cx.settle().await;
    store.notify("c", &4).await.unwrap();
    let (message, mut listener) = waiting.join().await;
    assert_eq!(message.unwrap().unwrap().payload.decode::<u32>().unwrap(), 4);
    store.close().await.unwrap();
    assert!(cx.within(listener.next()).await.is_none());
}

pub(crate) async fn n14_a_listener_ends_when_its_store_is_closed(cx: Cx) {
    let second = cx.second().await;
    let mut idle = second.listen("c").await.unwrap();
    let mut waiting = second.listen("c").await.unwrap();
    let mut unaffected = cx.store.listen("c").await.unwrap();
    let waiting = cx.spawn(async move { (waiting.recv().await, waiting.recv().await) });
    cx.settle().await;
    second.clone().close().await.unwrap();
    assert!(matches!(waiting.join().await, (None, None)));
    assert!(cx.within(idle.recv()).await.is_none());
    cx.store.notify("c", &1).await.unwrap();
    assert_eq!(number(&cx, &mut unaffected).await, 1);
    assert!(cx.within(idle.recv()).await.is_none(), "it came back to life");
}

pub(crate) async fn n14_a_listener_ends_with_the_last_handle(cx: Cx) {
    let second = cx.second().await;
    let handle = second.queue("q").unwrap();
    let mut idle = second.listen("c").await.unwrap();
    let mut waiting = second.listen("c").await.unwrap();
    drop(second);
    cx.store.notify("c", &1).await.unwrap();
    assert_eq!(number(&cx, &mut waiting).await, 1);
    let waiting = cx.spawn(async move { waiting.recv().await });
    cx.settle().await;
    assert!(!waiting.is_done(), "a handle is left");
    drop(handle);
    assert!(waiting.join().await.is_none());
    cx.within(async { while idle.recv().await.is_some() {} }).await;
}

pub(crate) async fn n15_a_closed_store_neither_notifies_nor_listens(cx: Cx) {
    let second = cx.second().await;
    let mut listener = second.listen("c").await.unwrap();
    cx.store.close().await.unwrap();
    refused!(cx.store.notify("c", &1).await, Error::Closed);
    refused!(cx.store.listen("c").await, Error::Closed);
    assert_quiet(&cx, &mut listener).await;
}

pub(crate) async fn n16_names_of_channels_are_shared_names(cx: Cx) {
    let mut tx = cx.store.begin_tx().await.unwrap();
    for name in bad_names() {
        refused!(cx.store.notify(&name, &1).await, Error::InvalidName { .. });
        refused!(tx.notify_tx(&name, &1).await, Error::InvalidName { .. });
        refused!(cx.store.listen(&name).await, Error::InvalidName { .. });
    }
    refused!(cx.store.notify("__alkstore_c", &1).await, Error::ReservedName { .. });
    refused!(tx.notify_tx("__alkstore_c", &1).await, Error::ReservedName { .. });
    refused!(cx.store.listen("__alkstore_c").await, Error::ReservedName { .. });
    tx.commit().await.unwrap();
    let names = names_alike();
    let mut listeners = Vec::new();
    for name in &names {
        listeners.push(cx.store.listen(name).await.unwrap());
    }
    for name in &names {
        cx.store.notify(name, name).await.unwrap();
    }
    for (name, listener) in names.iter().zip(&mut listeners) {
        let message = next(&cx, listener).await;
        assert_eq!(message.channel.as_str(), name);
        assert_eq!(message.payload.decode::<String>().unwrap(), *name);
    }
    for listener in &mut listeners {
        assert_eq!(listener.recv().now_or_never().map(|item| item.is_some()), None);
    }
}

pub(crate) async fn n17_ten_thousand_listeners_leave_nothing(cx: Cx) {
    let witness = Arc::new(Witness::default());
    let kept = cx.store.listen("kept").await.unwrap();
    for round in 0..10_000 {
        let channel = if round < 9_000 { "kept" } else { "alone" };
        let mut listener = cx.store.listen(channel).await.unwrap();
        if round % 100 == 0 {
            let waiting = witness.clone().watch(listener.recv());
            assert!(waiting.now_or_never().is_none());
        }
    }
    cx.until(async || witness.is_alone()).await;
    let mut listeners = [kept, cx.store.listen("alone").await.unwrap()];
    for listener in &mut listeners {
        cx.store.notify(listener.channel(), &1).await.unwrap();
        assert_eq!(number(&cx, listener).await, 1);
        assert_quiet(&cx, listener).await;
    }
}

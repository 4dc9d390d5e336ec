//! Names of every kind.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    EnqueueOpts, Error, Headers, NewEvent, NewJob, PublishOpts, Result, ScheduleOpts, Store,
    StoreExt,
};

use crate::cx::Cx;

const MINUTE: Duration = Duration::from_secs(60);

/// Uses a name wherever a shared name is taken, and says what each use answered.
async fn as_shared(store: &Arc<dyn Store>, name: &str) -> Vec<(&'static str, Result<()>)> {
    let id = alkstore_core::JobId::try_from(1).unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    let staged = vec![
        ("notify_tx", tx.notify_tx(name, &1).await),
        ("get_job_tx", tx.get_job_tx(name, id).await.map(drop)),
        ("get_offset_tx", tx.get_offset_tx(name, "c").await.map(drop)),
    ];
    tx.rollback().await.unwrap();
    let mut uses = vec![
        ("queue", store.queue(name).map(drop)),
        ("queue_with", store.queue_with(name, Default::default()).map(drop)),
        ("stream", store.stream(name).map(drop)),
        ("outbox", store.outbox(name).map(drop)),
        ("notify", store.notify(name, &1).await),
        ("listen", store.listen(name).await.map(drop)),
        ("try_lock", store.try_lock(name, "me", MINUTE).await.map(drop)),
        ("lock", store.lock(name, "me", MINUTE).await.map(drop)),
        (
            "schedule",
            store.schedule(name, "@every 1h", "q", &1, ScheduleOpts::new()).await.map(drop),
        ),
        (
            "queue of a schedule",
            store.schedule("s", "@every 1h", name, &1, ScheduleOpts::new()).await.map(drop),
        ),
        ("unschedule", store.unschedule(name).await.map(drop)),
        ("pause_schedule", store.pause_schedule(name).await.map(drop)),
        ("resume_schedule", store.resume_schedule(name).await.map(drop)),
    ];
    uses.extend(staged);
    uses
}

/// Uses a name wherever a local name is taken.
async fn as_local(store: &Arc<dyn Store>, name: &str) -> Vec<(&'static str, Result<()>)> {
    let (queue, stream) = (store.queue("q").unwrap(), store.stream("log").unwrap());
    let outbox = store.outbox("mails").unwrap();
    let keyed = || EnqueueOpts::new().unique_key(name);
    let event = || NewEvent::new(&1).unwrap().opts(PublishOpts::new().key(name));
    let job = || NewJob::new(&1).unwrap().opts(keyed());
    let mut tx = store.begin_tx().await.unwrap();
    let staged = vec![
        ("unique key, enqueue_tx", queue.enqueue_tx(&mut tx, &1, keyed()).await.map(drop)),
        (
            "unique key, enqueue_many_tx",
            queue.enqueue_many_tx(&mut tx, vec![job()]).await.map(drop),
        ),
        (
            "event key, publish_tx",
            stream.publish_tx(&mut tx, &1, PublishOpts::new().key(name)).await,
        ),
        ("event key, publish_many_tx", stream.publish_many_tx(&mut tx, vec![event()]).await),
        ("consumer, get_offset_tx", tx.get_offset_tx("log", name).await.map(drop)),
    ];
    tx.rollback().await.unwrap();
    let mut uses = vec![
        ("unique key, enqueue_with", queue.enqueue_with(&1, keyed()).await.map(drop)),
        ("unique key, enqueue_many", queue.enqueue_many(vec![job()]).await.map(drop)),
        (
            "event key, publish_with",
            stream.publish_with(&1, PublishOpts::new().key(name)).await.map(drop),
        ),
        ("event key, publish_many", stream.publish_many(vec![event()]).await.map(drop)),
        ("worker, claim", queue.claim(name).await.map(drop)),
        ("worker, claim_batch", queue.claim_batch(name, 1).await.map(drop)),
        ("worker, run_once", {
            outbox.run_once(name, async |_| Ok::<_, String>(())).await.map(drop)
        }),
        ("owner, try_lock", store.try_lock("a", name, MINUTE).await.map(drop)),
        ("owner, lock", store.lock("b", name, MINUTE).await.map(drop)),
        ("consumer", stream.consumer(name).map(drop)),
        ("consumer, forget_consumer", stream.forget_consumer(name).await.map(drop)),
        ("header key", Headers::new([(name, "value")]).map(drop)),
    ];
    uses.extend(staged);
    uses
}

fn longest() -> [String; 3] {
    ["x".repeat(255), format!("{}x", "ä".repeat(127)), format!("{}x", "é\u{301}𝄞".repeat(31))]
}

fn invalid() -> Vec<String> {
    let mut names: Vec<_> = [
        "",
        " ",
        " a",
        "a ",
        "\u{a0}a",
        "a\u{2003}",
        "\u{3000}",
        "a\nb",
        "a\0b",
        "\0",
        "a\u{7f}",
        "a\u{85}b",
        "\ta",
        "a\r",
        "\u{1b}[31m",
    ]
    .map(str::to_owned)
    .into();
    // By bytes, not by characters.
    names.extend(["x".repeat(256), "ä".repeat(128), "x".repeat(100_000)]);
    names
}

pub(crate) async fn c1_shared_names_have_1_to_255_bytes_and_no_bad_character(cx: Cx) {
    let fine = ["a", "a b", "Ünïcode", "a/b:c%_'\"\\;--", "日本", "\u{301}", "alkstore_"];
    for name in fine.map(str::to_owned).iter().chain(&longest()) {
        for (place, result) in as_shared(&cx.store, name).await {
            result.unwrap_or_else(|error| panic!("{place} refuses {name:?}: {error}"));
        }
    }
    for name in invalid() {
        for (place, result) in as_shared(&cx.store, &name).await {
            let refused = matches!(result, Err(Error::InvalidName { .. }));
            assert!(refused, "{place} of {name:?}: {result:?}");
        }
    }
}

pub(crate) async fn c2_names_of_the_store_itself_are_reserved(cx: Cx) {
    for name in ["__alkstore_", "__alkstore_x", "__alkstore_scheduler", "__alkstore_outbox:mails"] {
        for (place, result) in as_shared(&cx.store, name).await {
            let refused = matches!(result, Err(Error::ReservedName { .. }));
            assert!(refused, "{place} of {name:?}: {result:?}");
        }
    }
    for name in ["__Alkstore_x", "_alkstore_x", "x__alkstore_x", "__alkstore"] {
        for (place, result) in as_shared(&cx.store, name).await {
            result.unwrap_or_else(|error| panic!("{place} refuses {name:?}: {error}"));
        }
    }
}

pub(crate) async fn c3_an_invalid_name_is_decided_before_anything_else(cx: Cx) {
    let long = format!("__alkstore_{}", "x".repeat(255));
    for name in ["__alkstore_x\n", "__alkstore_x ", long.as_str()] {
        for (place, result) in as_shared(&cx.store, name).await {
            let invalid = matches!(result, Err(Error::InvalidName { .. }));
            assert!(invalid, "{place} of {name:?}: {result:?}");
        }
    }
    let huge = "x".repeat(2 * 1024 * 1024);
    let opts = || ScheduleOpts::new().max_attempts(0);
    let none = Duration::ZERO;
    let results = [
        cx.store.notify("", &huge).await.err(),
        cx.store.try_lock("", "me", none).await.err(),
        cx.store.try_lock("lock", "", none).await.err(),
        cx.store.lock("\n", "me", Duration::MAX).await.err(),
        cx.store.queue_with(" ", alkstore_core::QueueOpts::new().max_attempts(0)).err(),
        cx.store.schedule("", "never", "q", &huge, opts()).await.err(),
        cx.store.schedule("s", "never", "", &huge, opts()).await.err(),
    ];
    for (call, error) in results.into_iter().enumerate() {
        assert!(matches!(error, Some(Error::InvalidName { .. })), "call {call}: {error:?}");
    }
}

pub(crate) async fn c4_local_names_follow_the_rule_but_for_the_prefix(cx: Cx) {
    for name in longest().iter().map(String::as_str).chain(["a b", "__alkstore_x", "日本%_'"]) {
        for (place, result) in as_local(&cx.store, name).await {
            result.unwrap_or_else(|error| panic!("{place} refuses {name:?}: {error}"));
        }
    }
    for name in invalid() {
        for (place, result) in as_local(&cx.store, &name).await {
            let refused = matches!(result, Err(Error::InvalidName { .. }));
            assert!(refused, "{place} of {name:?}: {result:?}");
        }
    }
}

/// Names that some comparison takes for equal or for a pattern of each other.
const LOOKALIKES: [&str; 12] = [
    "straße",
    "strasse",
    "STRASSE",
    "caf\u{e9}",
    "cafe\u{301}",
    "cafe",
    "a_b",
    "a%b",
    "axb",
    "Axb",
    "ａｘｂ",
    "a'b",
];

pub(crate) async fn c5_shared_names_are_compared_byte_for_byte(cx: Cx) {
    let store = &cx.store;
    let mut listeners = Vec::new();
    for name in LOOKALIKES {
        listeners.push(store.listen(name).await.unwrap());
        store.queue(name).unwrap().enqueue(&name).await.unwrap();
        store.outbox(name).unwrap().enqueue(&name, Default::default()).await.unwrap();
        assert_eq!(store.stream(name).unwrap().publish(&name).await.unwrap().get(), 1, "{name}");
        store.schedule(name, "@every 1h", "q", &name, ScheduleOpts::new()).await.unwrap();
        store.notify(name, &name).await.unwrap();
    }
    let mut held = Vec::new();
    for name in LOOKALIKES {
        let lock = store.try_lock(name, "me", MINUTE).await.unwrap();
        held.push(lock.unwrap_or_else(|| panic!("the lock {name} is taken for another")));
    }
    for (name, listener) in LOOKALIKES.into_iter().zip(&mut listeners) {
        let jobs = store.queue(name).unwrap().claim_batch("w", 100).await.unwrap();
        assert_eq!(jobs.len(), 1, "queue {name}");
        assert_eq!(jobs[0].decode::<String>().unwrap(), name);
        let stats = store.outbox(name).unwrap().stats().await.unwrap();
        assert_eq!(stats.ready, 1, "outbox {name}");
        let message = cx.within(listener.recv()).await.unwrap().unwrap();
        assert_eq!(message.payload.decode::<String>().unwrap(), name);
        let more = cx.briefly(&mut Box::pin(listener.recv())).await;
        assert!(more.is_none(), "channel {name}: {more:?}");
    }
    let mut sorted = LOOKALIKES;
    sorted.sort_unstable();
    let schedules: Vec<_> =
        store.schedules().await.unwrap().into_iter().map(|schedule| schedule.name).collect();
    assert_eq!(schedules, sorted, "sorted by bytes");
    let locks: Vec<_> = store.locks().await.unwrap().into_iter().map(|lock| lock.name).collect();
    assert_eq!(locks, sorted, "sorted by bytes");
    assert!(store.unschedule("a_b").await.unwrap() && !store.unschedule("a_b").await.unwrap());
    assert!(!store.pause_schedule("A_B").await.unwrap());
}

pub(crate) async fn c5_local_names_are_compared_byte_for_byte(cx: Cx) {
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    for name in LOOKALIKES {
        stream.publish_with(&name, PublishOpts::new().key(name)).await.unwrap();
        queue.enqueue_with(&name, EnqueueOpts::new().unique_key(name)).await.unwrap();
    }
    assert_eq!(queue.stats().await.unwrap().ready, 12, "a unique key was taken for another");
    for (place, name) in (1..).zip(LOOKALIKES) {
        let consumer = stream.consumer(name).unwrap();
        assert_eq!(consumer.offset().await.unwrap().get(), 0, "consumer {name}");
        consumer.save_offset(crate::rows::tx::offset(place)).await.unwrap();
    }
    let events = stream.read(alkstore_core::Offset::START, 100).await.unwrap();
    for (event, name) in events.iter().zip(LOOKALIKES) {
        assert_eq!(event.key.as_ref().map(|key| key.as_str()), Some(name));
        let saved = stream.consumer(name).unwrap().offset().await.unwrap();
        assert_eq!(saved, event.offset, "consumer {name}");
    }
    assert!(stream.forget_consumer("a_b").await.unwrap());
    assert_eq!(stream.info().await.unwrap().consumers.len(), 11);
}

pub(crate) async fn c6_arguments_are_checked_before_the_store_is_asked(cx: Cx) {
    let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
    let outbox = cx.store.outbox("mails").unwrap();
    let mut job = crate::rows::tx::claimed(&cx.store, "q").await;
    let mut lock = cx.store.try_lock("held", "me", MINUTE).await.unwrap().unwrap();
    cx.store.close().await.unwrap();
    // A closed store answers everything that reaches it with `Closed`.
    let name = [
        cx.store.notify("", &1).await.err(),
        cx.store.listen("\n").await.err(),
        cx.store.try_lock(" ", "me", MINUTE).await.err(),
        cx.store.lock("lock", "", MINUTE).await.err(),
        cx.store.schedule("", "@every 1h", "q", &1, ScheduleOpts::new()).await.err(),
        cx.store.schedule("s", "@every 1h", "", &1, ScheduleOpts::new()).await.err(),
        cx.store.unschedule("").await.err(),
        queue.claim("").await.err(),
        queue.next("").await.err(),
        queue.enqueue_with(&1, EnqueueOpts::new().unique_key("")).await.err(),
        stream.publish_with(&1, PublishOpts::new().key("")).await.err(),
        stream.forget_consumer("").await.err(),
        outbox.run_once("", async |_| Ok::<_, String>(())).await.err(),
    ];
    for (call, error) in name.into_iter().enumerate() {
        assert!(matches!(error, Some(Error::InvalidName { .. })), "name, call {call}: {error:?}");
    }
    let huge = "x".repeat(1024 * 1024);
    let size = [
        queue.enqueue(&huge).await.err(),
        stream.publish(&huge).await.err(),
        outbox.enqueue(&huge, Default::default()).await.err(),
        cx.store.notify("bell", &huge).await.err(),
        cx.store.schedule("s", "@every 1h", "q", &huge, ScheduleOpts::new()).await.err(),
    ];
    for (call, error) in size.into_iter().enumerate() {
        let too_large = matches!(error, Some(Error::PayloadTooLarge { .. }));
        assert!(too_large, "payload, call {call}: {error:?}");
    }
    let argument = [
        cx.store.try_lock("lock", "me", Duration::ZERO).await.err(),
        lock.renew(Duration::MAX).await.err(),
        job.heartbeat(Duration::ZERO).await.err(),
        queue.enqueue_with(&1, EnqueueOpts::new().max_attempts(0)).await.err(),
    ];
    for (call, error) in argument.into_iter().enumerate() {
        let refused = matches!(error, Some(Error::InvalidArgument { .. }));
        assert!(refused, "argument, call {call}: {error:?}");
    }
}

pub(crate) async fn c7_an_error_escapes_what_it_quotes(cx: Cx) {
    // Control sequences, line breaks, quotes, and marks that turn the direction of a text.
    let nasty = "\u{1b}[31m\r\n\0\"\u{202e}\u{2028}\u{200b}";
    let reserved = "__alkstore_\u{202e}\u{2028}\u{200b}";
    let lost = "q\u{202e}\u{2028}\u{200b}q";
    let mut job = crate::rows::tx::claimed(&cx.store, lost).await;
    job.ack().await.unwrap();
    let mut lock = cx.store.try_lock(lost, "me", MINUTE).await.unwrap().unwrap();
    cx.advance(MINUTE).await;
    let errors = [
        cx.store.queue(nasty).unwrap_err(),
        cx.store.notify(nasty, &1).await.unwrap_err(),
        cx.store.stream("log").unwrap().consumer(nasty).unwrap_err(),
        cx.store.queue(reserved).unwrap_err(),
        cx.store.schedule("s", nasty, "q", &1, ScheduleOpts::new()).await.unwrap_err(),
        Headers::new([(nasty, "value")]).unwrap_err(),
        job.ack().await.unwrap_err(),
        lock.renew(MINUTE).await.unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        let raw = |c: char| c.is_control() || "\u{202e}\u{2028}\u{200b}".contains(c);
        assert!(!text.contains(raw), "{text:?}");
        assert!(text.contains("\\u{202e}"), "it says what it refuses: {text}");
    }
}

pub(crate) async fn c7_an_error_cuts_what_it_quotes(cx: Cx) {
    let endless = "x".repeat(1_000_000);
    let errors = [
        cx.store.queue(&endless).unwrap_err(),
        cx.store.queue("q").unwrap().claim(&endless).await.unwrap_err(),
        cx.store.schedule("s", &endless, "q", &1, ScheduleOpts::new()).await.unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.len() < 2_000, "an error text of {} bytes", text.len());
    }
}

//! Headers.

use alkstore_core::{
    EnqueueOpts, Error, Headers, JobState, NewEvent, NewJob, Offset, OutboxOpts, PublishOpts,
    ScheduleOpts, StoreExt,
};

use super::paths::fire;
use crate::cx::Cx;

/// Sixty-four entries of 8 KiB in all, keys and values.
fn largest() -> Headers {
    let entries = (0..64).map(|n| (format!("key-{n:04}"), "v".repeat(120)));
    Headers::new(entries).unwrap()
}

/// Headers with everything that a store might change on the way.
fn odd() -> Headers {
    Headers::new([
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("__alkstore_x", ""),
        ("Key", "upper"),
        ("key", " padded \r\n\t"),
        ("ключ", "\0 \u{1b} \" \\ '"),
    ])
    .unwrap()
}

pub(crate) async fn c16_headers_travel_with_jobs_and_events(cx: Cx) {
    for headers in [odd(), largest(), Headers::default()] {
        let cx = cx.isolated().await;
        let (queue, stream) = (cx.store.queue("q").unwrap(), cx.store.stream("log").unwrap());
        let outbox = cx.store.outbox("mails").unwrap();
        let opts = || EnqueueOpts::new().headers(headers.clone());
        let published = || PublishOpts::new().headers(headers.clone());
        queue.enqueue_with(&1, opts()).await.unwrap();
        queue.enqueue_many(vec![NewJob::new(&2).unwrap().opts(opts())]).await.unwrap();
        stream.publish_with(&1, published()).await.unwrap();
        stream.publish_many(vec![NewEvent::new(&2).unwrap().opts(published())]).await.unwrap();
        let mut tx = cx.store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &3, opts()).await.unwrap();
        stream.publish_tx(&mut tx, &3, published()).await.unwrap();
        tx.commit().await.unwrap();
        outbox.enqueue(&1, OutboxOpts::new().headers(headers.clone())).await.unwrap();

        for _ in 0..3 {
            let mut job = queue.claim("w").await.unwrap().expect("one of three jobs");
            assert_eq!(job.headers(), &headers, "{job:?}");
            job.fail("broken").await.unwrap();
            let dead = queue.get_job(job.id()).await.unwrap().expect("a dead letter");
            assert_eq!((dead.state, &dead.headers), (JobState::Dead, &headers));
        }
        let events = stream.read(Offset::START, 10).await.unwrap();
        assert_eq!(events.len(), 3);
        assert!(events.iter().all(|event| event.headers == headers), "{events:?}");
        let mut tail = stream.subscribe(Offset::START).await.unwrap();
        assert_eq!(cx.within(tail.recv()).await.unwrap().unwrap().headers, headers);
        let mut delivered = None;
        let deliver = async |delivery: alkstore_core::Delivery| {
            delivered = Some(delivery.headers().clone());
            Ok::<_, String>(())
        };
        assert!(outbox.run_once("w", deliver).await.unwrap());
        assert_eq!(delivered, Some(headers));
    }
}

pub(crate) async fn c17_headers_have_64_entries_and_8_kib(_cx: Cx) {
    let refused = |what: &str, headers: Result<Headers, Error>| {
        let refused = matches!(headers, Err(Error::InvalidArgument { .. }));
        assert!(refused, "{what}: {headers:?}");
    };
    let headers = largest();
    let bytes: usize = headers.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert_eq!((headers.len(), bytes), (64, 8 * 1024), "the largest are taken");
    refused("65 entries", Headers::new((0..65).map(|n| (n.to_string(), ""))));
    refused("a value too large", Headers::new([("k", "v".repeat(8 * 1024))]));
    // By bytes, keys included.
    assert!(Headers::new([("k", "ä".repeat(4_095) + "x")]).is_ok());
    refused("characters of two bytes", Headers::new([("kk", "ä".repeat(4_095) + "x")]));
}

pub(crate) async fn c18_header_keys_are_local_names_with_a_prefix_of_their_own(_cx: Cx) {
    for key in ["", " a", "a\n", "\0"] {
        let refused = Headers::new([(key, "v")]);
        assert!(matches!(refused, Err(Error::InvalidName { .. })), "{key:?}: {refused:?}");
    }
    for key in ["alkstore-", "alkstore-schedule", "alkstore-boundary", "alkstore-x"] {
        let refused = Headers::new([(key, "v")]);
        assert!(matches!(refused, Err(Error::ReservedName { .. })), "{key:?}: {refused:?}");
    }
    let refused = Headers::new([("alkstore-x\n", "v")]);
    assert!(matches!(refused, Err(Error::InvalidName { .. })), "decided first: {refused:?}");
    for key in ["alkstore", "Alkstore-x", "x-alkstore-x", "__alkstore_x"] {
        assert!(Headers::new([(key, "v")]).is_ok(), "{key:?}");
    }
}

pub(crate) async fn c19_the_stores_own_headers_dont_count(cx: Cx) {
    let opts = ScheduleOpts::new().headers(largest());
    cx.store.schedule("s", "@every 1h", "q", &1, opts).await.unwrap();
    assert_eq!(cx.store.schedules().await.unwrap()[0].opts.headers, largest());
    let job = fire(&cx, &cx.store, "q").await;
    assert_eq!(job.headers().len(), 66);
    assert_eq!(job.headers().get("alkstore-schedule"), Some("s"));
    for (key, value) in largest().iter() {
        assert_eq!(job.headers().get(key), Some(value), "{key}");
    }
}

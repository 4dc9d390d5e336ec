//! Payloads, on every way into a store.

use std::collections::BTreeMap;

use alkstore_core::{Error, IntoPayload, Offset, Payload, StoreExt};
use serde::Serialize;

use super::paths::Paths;
use crate::cx::Cx;
use crate::factory::OpenOptions;

fn text(text: impl Into<String>) -> Payload {
    Payload::from_json_text(text.into()).unwrap()
}

/// A document of so many bytes.
fn of_size(bytes: usize) -> Payload {
    text(format!("\"{}\"", "x".repeat(bytes - 2)))
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

async fn comes_back(cx: &Cx, payload: &Payload) {
    let mut paths = Paths::new(&cx.store).await;
    for (way, answer) in paths.send(|| payload.clone()).await {
        answer.unwrap_or_else(|error| panic!("{way}: {error}"));
    }
    for (way, received) in paths.received(cx).await {
        // Compared without printing what may be a megabyte.
        let same = received.as_str() == payload.as_str();
        assert!(same, "{way} changed it: {} became {} bytes", payload.size(), received.size());
    }
}

pub(crate) async fn c8_a_document_comes_back_byte_for_byte(cx: Cx) {
    // Everything that a parser, a normalizer or a database's own type would change.
    let document = concat!(
        " {\t\"b\" : 1.50e+01 ,\r\n \"a\":-0.0, \"a\" : 12345678901234567890123456789 ,",
        "\"esc\":\"\\u0041\\/\\\"\\\\\\ud834\\udd1e\\u00e9 \u{e9} e\u{301} \u{2028}\u{feff} 𝄞\",",
        "\"\":[ ] , \"nested\": {\"z\":null,\"y\":[1,2 , 3]},\"sql\":\"'; DROP TABLE x; -- $1 ?1 %\"} \n",
    );
    comes_back(&cx, &text(document)).await;
}

pub(crate) async fn c8_the_smallest_documents_come_back(cx: Cx) {
    for document in ["null", "0", "\"\"", "[]", "{}", "true", " 1 "] {
        comes_back(&cx.isolated().await, &text(document)).await;
    }
}

pub(crate) async fn c9_a_value_comes_back_as_serde_json_writes_it(cx: Cx) {
    #[derive(Serialize)]
    struct Order {
        z: f64,
        a: Option<u64>,
        text: &'static str,
        map: BTreeMap<&'static str, i8>,
    }
    let order = Order { z: 1.0, a: None, text: "ä\n\u{7f}", map: [("k", -1)].into() };
    let expected = serde_json::to_string(&order).unwrap();
    let mut paths = Paths::new(&cx.store).await;
    for (way, answer) in paths.send(|| &order).await {
        answer.unwrap_or_else(|error| panic!("{way}: {error}"));
    }
    for (way, received) in paths.received(&cx).await {
        assert_eq!(received.as_str(), expected, "{way}");
    }
}

pub(crate) async fn c10_an_escaped_nul_is_data(cx: Cx) {
    let document = text(r#"{"a\u0000b":"\u0000","c":"x\u0000y"}"#);
    comes_back(&cx, &document).await;
    let value = "a\0b";
    let queue = cx.store.queue("q").unwrap();
    queue.enqueue(value).await.unwrap();
    let job = queue.claim("w").await.unwrap().expect("the job that was just enqueued");
    assert_eq!(job.decode::<String>().unwrap(), value);
}

pub(crate) async fn c11_a_payload_has_at_most_1_mib(cx: Cx) {
    const MIB: usize = 1024 * 1024;
    let mut paths = Paths::new(&cx.store).await;
    let larger = of_size(MIB + 1);
    for (way, answer) in paths.send(|| larger.clone()).await {
        let Err(Error::PayloadTooLarge { size, limit }) = answer else {
            panic!("{way} takes a payload that is too large: {answer:?}")
        };
        assert_eq!((size, limit), (MIB + 1, MIB), "{way}");
    }
    paths.assert_empty(&cx).await;
    comes_back(&cx, &of_size(MIB)).await;
}

pub(crate) async fn c12_an_option_sets_another_limit(cx: Cx) {
    for limit in [10, 3 * 1024 * 1024] {
        let cx = cx.isolated().await;
        let options = OpenOptions { payload_limit: Some(limit), ..OpenOptions::default() };
        let store = cx.open(options).await;
        let mut paths = Paths::new(&store).await;
        let larger = of_size(limit + 1);
        for (way, answer) in paths.send(|| larger.clone()).await {
            let Err(Error::PayloadTooLarge { size, limit: said }) = answer else {
                panic!("{way} takes more than {limit} bytes: {answer:?}")
            };
            assert_eq!((size, said), (limit + 1, limit), "{way}");
        }
        paths.assert_empty(&cx).await;
        let largest = of_size(limit);
        for (way, answer) in paths.send(|| largest.clone()).await {
            // What goes beside it in a batch has 7 bytes.
            answer.unwrap_or_else(|error| panic!("{way} refuses {limit} bytes: {error}"));
        }
        for (way, received) in paths.received(&cx).await {
            assert_eq!(received.size(), limit, "{way}");
        }
    }
}

pub(crate) async fn c12_the_limit_is_for_what_comes_in(cx: Cx) {
    let options = |limit| OpenOptions { payload_limit: Some(limit), ..OpenOptions::default() };
    let (large, small) = (cx.open(options(100)).await, cx.open(options(10)).await);
    let payload = of_size(100);
    let mut bell = small.listen("bell").await.unwrap();
    large.queue("q").unwrap().enqueue(payload.clone()).await.unwrap();
    large.stream("log").unwrap().publish(payload.clone()).await.unwrap();
    large.notify("bell", payload.clone()).await.unwrap();
    let mut job = small.queue("q").unwrap().claim("w").await.unwrap().expect("a job");
    assert_eq!(job.payload(), &payload);
    job.ack().await.unwrap();
    let events = small.stream("log").unwrap().read(Offset::START, 1).await.unwrap();
    assert_eq!(events[0].payload, payload);
    let message = cx.within(bell.recv()).await.unwrap().unwrap();
    assert_eq!(message.payload, payload);
}

pub(crate) async fn c13_nesting_ends_at_127_on_every_way(cx: Cx) {
    comes_back(&cx, &text(nested(127))).await;
    let refused = Payload::from_json_text(nested(128)).unwrap_err();
    assert!(matches!(refused, Error::Codec { .. }), "{refused:?}");

    let cx = cx.isolated().await;
    let mut value = serde_json::json!({});
    for _ in 0..126 {
        value = serde_json::json!([value]);
    }
    comes_back(&cx, &(&value).into_payload().unwrap()).await;
    let cx = cx.isolated().await;
    let deeper = serde_json::json!([value]);
    let mut paths = Paths::new(&cx.store).await;
    for (way, answer) in paths.send(|| &deeper).await {
        assert!(matches!(answer, Err(Error::Codec { .. })), "{way} nested 128 deep: {answer:?}");
    }
    // The batches have no job or event at all: one of theirs could not be made.
    paths.assert_empty(&cx).await;
}

pub(crate) async fn c13_brackets_inside_a_string_are_no_nesting(cx: Cx) {
    let brackets = format!(r#"["{}\"{}\\",["{}"]]"#, "[".repeat(200), "{".repeat(200), "]");
    comes_back(&cx, &text(brackets)).await;
}

pub(crate) async fn c14_what_is_no_json_is_refused(_cx: Cx) {
    let broken = [
        "",
        " ",
        "{",
        "1 2",
        "nul",
        "'a'",
        "[1,]",
        "{a:1}",
        "\"\0\"",
        "\u{feff}1",
        "NaN",
        "\"\n\"",
        "01",
    ];
    for document in broken {
        let refused = Payload::from_json_text(document);
        assert!(matches!(refused, Err(Error::Codec { .. })), "{document:?}: {refused:?}");
    }
}

pub(crate) async fn c14_a_value_that_does_not_serialize_is_refused_on_every_way(cx: Cx) {
    // JSON has text alone for keys.
    let keyed_by_pairs = BTreeMap::from([((1, 2), 3)]);
    let mut paths = Paths::new(&cx.store).await;
    for (way, answer) in paths.send(|| &keyed_by_pairs).await {
        assert!(matches!(answer, Err(Error::Codec { .. })), "{way}: {answer:?}");
    }
    paths.assert_empty(&cx).await;
}

pub(crate) async fn c15_a_document_is_parsed_only_by_decode(cx: Cx) {
    // No number type holds it, and no two keys are the same.
    let document = text(r#"{"n":1e999999,"n":1}"#);
    let queue = cx.store.queue("q").unwrap();
    queue.enqueue(document.clone()).await.unwrap();
    let mut job = queue.claim("w").await.unwrap().expect("the job that was just enqueued");
    assert_eq!(job.payload(), &document);
    let undecodable = job.decode::<String>();
    assert!(matches!(undecodable, Err(Error::Codec { .. })), "{undecodable:?}");
    job.ack().await.expect("what it carries is its own affair");
}

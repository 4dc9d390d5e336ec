//! The example `traces`: the trace that begins in one process goes on in the other.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::collections::BTreeMap;
use std::process::Command;

#[path = "../examples/traces/main.rs"]
#[allow(dead_code, reason = "the test is another main")]
mod traces;

/// What the test below starts twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_one_of_the_two_processes() {
    match (std::env::var("ALKSTORE_TEST_CHILD").as_deref(), std::env::var("ALKSTORE_URL")) {
        (Ok("enqueue"), Ok(url)) => traces::enqueue(&url, "ada").await.unwrap(),
        (Ok("work"), Ok(url)) => traces::work(&url).await.unwrap(),
        _ => {}
    }
}

#[derive(Debug)]
struct Printed {
    id: String,
    trace: String,
    parent: String,
    links: String,
}

/// The spans that a process printed, by name.
fn spans_of(process: &str, url: &str) -> BTreeMap<String, Printed> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_is_one_of_the_two_processes", "--nocapture"])
        .envs([("ALKSTORE_TEST_CHILD", process), ("ALKSTORE_URL", url)])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().filter_map(|line| Some(line.split_once("span ")?.1));
    let span = |line: &str| {
        let [name, id, trace, parent, links] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let value = |field: &str| field.split_once('=').unwrap().1.to_owned();
        let (trace, parent, links) = (value(trace), value(parent), value(links));
        (name.to_owned(), Printed { id: id.to_owned(), trace, parent, links })
    };
    lines.map(span).collect()
}

#[test]
fn a_trace_goes_from_the_enqueue_to_the_handler_in_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("app.db").display());
    let enqueued = spans_of("enqueue", &url);
    let worked = spans_of("work", &url);

    let (request, send, smtp) = (&enqueued["request"], &worked["send"], &worked["smtp"]);
    assert_eq!(request.trace.len(), 32, "{request:?}");
    assert!(request.trace.bytes().any(|digit| digit != b'0'), "{request:?}");
    assert_eq!((&send.trace, &send.parent), (&request.trace, &request.id));
    assert_eq!((&smtp.trace, &smtp.parent), (&request.trace, &send.id));
    // The worker's own span is in a trace of its own, which the handler's refers to.
    assert_eq!(send.links, "1");
    assert_ne!(worked["job"].trace, request.trace);
}

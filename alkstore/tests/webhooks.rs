//! The example `webhooks`, in short: its totals add up, it notices where they don't, it stops
//! cleanly, and it refuses what can't be.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test says by a panic what it met")]

use std::path::PathBuf;
use std::time::Duration;

use alkstore::{StopToken, StoreExt};
use clap::{CommandFactory, Parser};

#[path = "../examples/webhooks/main.rs"]
#[allow(dead_code, reason = "the test is another main")]
mod webhooks;

use webhooks::closing::{Closing, Fate};
use webhooks::screen::Screen;
use webhooks::{Cli, Failure, deliveries, run};

fn cli(args: &[&str]) -> Cli {
    let store: &[&str] = if args.contains(&"--store") { &[] } else { &["--store", "memory:"] };
    Cli::parse_from(["webhooks"].iter().chain(store).chain(args))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_totals_add_up_and_a_wrong_one_is_noticed() {
    let args = ["--limit=40", "--rate=0", "--fail=25", "--stall=10", "--reject=5", "--attempts=2"];
    let mut closing = run::run(&cli(&args), &StopToken::new(), &Screen::new()).await.unwrap();
    assert_eq!(closing.discrepancies(), Vec::<String>::new(), "{closing}");
    assert!(!closing.interrupted);

    let [first, later, dead] =
        [Fate::FirstAttempt, Fate::AfterRetry, Fate::Dead].map(|fate| closing.of(fate));
    assert!(first > 0 && later > 0 && dead > 0, "{closing}");
    assert_eq!((first + later + dead, closing.published()), (40, 40), "{closing}");
    assert!(closing.received() >= first + later && closing.duplicates() > 0, "{closing}");
    assert_eq!((closing.head.get(), closing.consumer_offset.get()), (40, 40));
    assert_eq!((closing.audit.stopped_after.get(), closing.audit.resumed_after.get()), (20, 20));
    assert!(closing.reports.printed > 0, "{closing}");

    each_error_is_noticed(&mut closing);
}

/// Makes one thing wrong at a time.
fn each_error_is_noticed(closing: &mut Closing) {
    let notices = |closing: &Closing, part: &str| {
        let found = closing.discrepancies();
        assert!(found.iter().any(|found| found.contains(part)), "{part}: {found:?}");
    };

    let event = closing.audit.handled.remove(7);
    notices(closing, "once each in order");
    notices(closing, "the audit saw 39 of them");
    closing.audit.handled.insert(8, event.clone());
    notices(closing, "once each in order");
    closing.audit.handled.remove(8);
    closing.audit.handled.insert(7, event);

    let letter = closing.dead_letters.pop().unwrap();
    notices(closing, "dead letters kept");
    closing.dead_letters.push(letter);

    closing.reports.printed += 1;
    notices(closing, "boundaries of the schedule");
    closing.reports.printed -= 1;

    closing.seen.failed += 1;
    notices(closing, "requests, of which");
    closing.seen.failed -= 1;

    let at = closing.outcomes.iter().position(|outcome| outcome.fate != Fate::Dead).unwrap();
    let fate = std::mem::replace(&mut closing.outcomes[at].fate, Fate::Waiting);
    notices(closing, "still wait");
    notices(closing, "is Waiting in the store");
    closing.outcomes[at].fate = fate;

    let key = closing.outcomes[at].id.to_string();
    let arrivals = closing.seen.by_key.remove(&key).unwrap();
    notices(closing, "the receiver hasn't it");
    let mut other_body = arrivals.clone();
    other_body.body = other_body.body.slice(1..);
    closing.seen.by_key.insert(key.clone(), other_body);
    notices(closing, "isn't as it came in");
    closing.seen.by_key.insert(key, arrivals);

    closing.audit.resumed_after = alkstore::Offset::START;
    notices(closing, "went on after 0");
    closing.audit.resumed_after = closing.audit.stopped_after;
    assert_eq!(closing.discrepancies(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_adds_up_and_the_next_goes_on_from_there() {
    goes_on_from_there("memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_in_a_file_that_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("app.db").display());
    goes_on_from_there(&url).await;

    // Nothing is left to do, and a run on what is there adds up like the first.
    let args = ["--store", &url, "--limit=5", "--rate=0", "--attempts=1", "--reject=100"];
    let closing = run::run(&cli(&args), &StopToken::new(), &Screen::new()).await.unwrap();
    assert_eq!(closing.discrepancies(), Vec::<String>::new(), "{closing}");
    assert_eq!((closing.earlier, closing.of(Fate::Dead)), (0, 5), "{closing}");
}

async fn goes_on_from_there(url: &str) {
    let store = alkstore::open(url).await.unwrap();
    let incoming = deliveries::read(None, None).unwrap();
    let (stop, screen) = (StopToken::new(), Screen::new());
    let interrupt = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while screen.0.position() < 5 {
            look.tick().await;
        }
        stop.stop();
    };
    let args = cli(&["--rate=50", "--fail=60", "--stall=0"]);
    let running = run::run_on(&store, &incoming, &args, &stop, &screen);
    let (first, ()) = tokio::join!(running, interrupt);
    let first = first.unwrap();
    assert!(first.interrupted);
    assert_eq!(first.discrepancies(), Vec::<String>::new(), "{first}");
    let waiting = first.of(Fate::Waiting);
    assert!(first.published() < 131 && waiting > 0, "{first}");
    assert!(first.published() - waiting >= 5, "{first}");
    assert!(first.to_string().contains(&format!("Interrupted: {waiting} deliveries")), "{first}");

    let store = if url == "memory:" {
        store
    } else {
        store.close().await.unwrap();
        alkstore::open(url).await.unwrap()
    };
    let args = cli(&["--rate=0", "--fail=0", "--stall=0", "--reject=0"]);
    let (stop, screen) = (StopToken::new(), Screen::new());
    let next = run::run_on(&store, &incoming[..3], &args, &stop, &screen).await.unwrap();
    assert_eq!(next.discrepancies(), Vec::<String>::new(), "{next}");
    assert!(!next.interrupted);
    assert_eq!((next.earlier, next.published()), (waiting, 3), "{next}");
    assert_eq!(next.received(), waiting + 3, "{next}");
    assert_eq!(next.audit.began_after, first.head);
    assert_eq!(next.head.get(), first.head.get() + 3);
    store.close().await.unwrap();
}

async fn usage_error(args: &[&str]) -> String {
    match run::run(&cli(args), &StopToken::new(), &Screen::new()).await {
        Err(Failure::Usage(message)) => message,
        other => panic!("{args:?}: {other:?}"),
    }
}

fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_one_clear_message() {
    let message = usage_error(&["--store", "redis://ada:s3cret@host"]).await;
    assert!(message.starts_with("can't open the store: invalid argument url: \"redis://ada:***@"));
    assert!(message.contains("has: \"memory:\""), "{message}");
    let missing = cli(&["--store", "sqlite:no/such/directory/app.db"]);
    match run::run(&missing, &StopToken::new(), &Screen::new()).await {
        Err(Failure::Fault(message)) => {
            assert!(message.starts_with("can't open the store: "), "{message}");
            assert!(message.contains("its directory has to exist"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let message = usage_error(&["--store", "memory:?payload_limit=2000"]).await;
    assert!(message.contains("and the store takes at most 2000"), "{message}");
}

#[tokio::test]
async fn a_bad_file_of_deliveries_is_one_clear_message() {
    let missing = usage_error(&["--deliveries", "no/such/file.jsonl"]).await;
    assert!(missing.starts_with("can't read the deliveries no/such/file.jsonl: "), "{missing}");

    let empty = file("empty.jsonl", "\n \n");
    let message = usage_error(&["--deliveries", &empty]).await;
    assert_eq!(message, format!("{empty}: there are no deliveries in it"));

    const GOOD: &str = r#"{"event":"ping","delivery":"ping/1","body":{"zen":"Keep it simple."}}"#;
    for (index, (line, part)) in [
        (r#"{"event":"ping","#.to_owned(), "EOF while parsing"),
        ("ping".to_owned(), "expected value (column 1)"),
        (r#"{"event":"ping","delivery":"1"}"#.to_owned(), "missing field `body`"),
        (r#"{"event":"ping","delivery":1,"body":{}}"#.to_owned(), "expected a string"),
        (format!("{} {GOOD}", GOOD), "trailing characters"),
        (GOOD.replace("zen", "zen\u{1}"), "control character"),
        (GOOD.replace("\"ping/1\"", "\"a\\nb\""), r#"its delivery "a\nb" can't be sent"#),
        (GOOD.replace("\"ping\"", "\"\""), r#"its event "" can't be sent"#),
        (GOOD.replace("\"body\"", "\"bodies\""), "unknown field `bodies`"),
        (
            GOOD.replace(
                "{\"zen\":\"Keep it simple.\"}",
                &["[".repeat(128), "]".repeat(128)].concat(),
            ),
            "nested deeper than 127",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let name = file(&format!("bad-{index}.jsonl"), format!("{GOOD}\n\n{line}\n{GOOD}\n"));
        let message = usage_error(&["--deliveries", &name]).await;
        assert!(message.starts_with(&format!("{name}:3: it is no delivery: ")), "{message}");
        assert!(message.contains(part), "{line}: {message}");
    }

    let name = file("bytes.jsonl", [GOOD.as_bytes(), b"\n\n", b"\xff\n"].concat());
    let message = usage_error(&["--deliveries", &name]).await;
    assert_eq!(message, format!("{name}:3: it isn't UTF-8"));
}

#[test]
fn the_command_line_refuses_what_is_out_of_range() {
    Cli::command().debug_assert();
    assert_eq!(Cli::parse_from(["webhooks"]).store, "sqlite:app.db");
    for args in [
        ["--workers", "0"],
        ["--workers", "257"],
        ["--fail", "101"],
        ["--stall", "-1"],
        ["--attempts", "0"],
        ["--limit", "0"],
        ["--seed", "x"],
        ["--frobnicate", "1"],
    ] {
        assert!(Cli::try_parse_from(["webhooks"].iter().chain(&args)).is_err(), "{args:?}");
    }
}

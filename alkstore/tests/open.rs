//! Every way to open a store wrongly says what was wrong and what there is.

#![allow(clippy::panic, reason = "a test says by a panic what it met")]

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use alkstore::{EnqueueOpts, Error, Payload, StoreConfig, StoreExt, Synchronous, open, open_with};

async fn refusal(config: StoreConfig) -> (&'static str, String, String, String) {
    match open_with(config.clone()).await {
        Err(Error::InvalidArgument { argument, value, expected }) => {
            let error = Error::invalid_argument(argument, &value, expected.clone());
            (argument, value, expected, error.to_string())
        }
        Err(other) => panic!("{config:?} is refused with {other:?}"),
        Ok(_) => panic!("{config:?} opens"),
    }
}

/// Argument, value and a part of what is expected.
async fn assert_refused(url: &str, argument: &str, value: &str, expected: &str) {
    let refused = refusal(StoreConfig::new(url)).await;
    assert_eq!((refused.0, refused.1.as_str()), (argument, value), "{url:?}");
    assert!(refused.2.contains(expected), "{url:?}: {}", refused.3);
}

#[tokio::test]
async fn a_memory_url_opens_with_and_without_parameters() {
    for url in [
        "memory:",
        "MEMORY:",
        "memory:?",
        "memory:?payload_limit=10",
        "memory:?lock_timeout=5s",
        "memory:?lock_timeout=1m%2030s",
        "memory:?payload_limit=2097152&lock_timeout=500ms",
        "memory:?lock_timeout=0s",
    ] {
        open(url).await.unwrap_or_else(|error| panic!("{url:?}: {error}"));
    }
}

#[tokio::test]
async fn each_open_is_a_store_of_its_own() {
    let (one, other) = (open("memory:").await.unwrap(), open("memory:").await.unwrap());
    one.queue("q").unwrap().enqueue(&1).await.unwrap();
    assert_eq!(other.queues().await.unwrap(), []);
}

#[tokio::test]
async fn parameters_reach_the_engine() {
    let store = open("memory:?payload_limit=10&lock_timeout=7ms").await.unwrap();
    assert_eq!(store.limits().payload, 10);
    let payload = Payload::from_json_text("\"012345678\"").unwrap();
    let refused = store.queue("q").unwrap().enqueue(payload).await.unwrap_err();
    assert!(matches!(refused, Error::PayloadTooLarge { size: 11, limit: 10 }), "{refused:?}");
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the clock stands still, the engine alone moves it")]
async fn the_lock_timeout_of_url_and_configuration_is_how_long_a_call_waits() {
    let timeout = Duration::from_millis(70);
    for config in [
        StoreConfig::new("memory:?lock_timeout=70ms"),
        StoreConfig::new("memory:").lock_timeout(timeout),
    ] {
        let store = open_with(config).await.unwrap();
        let queue = store.queue("q").unwrap();
        let unique = || EnqueueOpts::new().unique_key("k");
        let mut tx = store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &1, unique()).await.unwrap();

        let asked = tokio::time::Instant::now();
        let refused = queue.enqueue_with(&2, unique()).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused:?}");
        // The runtime's timers round up to a millisecond.
        let waited = asked.elapsed();
        assert!(waited >= timeout && waited <= timeout + Duration::from_millis(1), "{waited:?}");
    }
}

#[tokio::test]
async fn a_text_that_names_no_engine_says_which_there_are() {
    let engines = if cfg!(feature = "pg") {
        "that this build of alkstore has: \"memory:\", \"sqlite:app.db\" or \"postgres://host/db\""
    } else {
        "that this build of alkstore has: \"memory:\" or \"sqlite:app.db\""
    };
    for text in [
        "",
        "memory",
        ":",
        " memory:",
        "memory :",
        "redis:",
        "redis://host",
        "file:///a",
        "\u{1f980}:",
    ] {
        assert_refused(text, "url", text, engines).await;
    }
}

#[cfg(not(feature = "pg"))]
#[tokio::test]
async fn an_engine_that_the_build_lacks_is_named() {
    let no_postgres = "\"memory:\" or \"sqlite:app.db\"; the Postgres engine's feature is disabled";
    for url in ["postgres://db/app?schema=jobs", "postgresql://ada@db:5432/app", "postgres:"] {
        assert_refused(url, "url", url, no_postgres).await;
    }
}

#[tokio::test]
async fn what_follows_memory_and_is_not_understood_is_refused() {
    let parameters = "\"memory:\" alone or with parameters, \"payload_limit\" or \"lock_timeout\"";
    for url in [
        "memory://",
        "memory:name",
        "memory:/tmp/x",
        "memory::",
        "memory: ",
        "memory:#a",
        "memory:&payload_limit=1",
    ] {
        assert_refused(url, "url", url, parameters).await;
    }
}

#[tokio::test]
async fn an_unknown_parameter_says_which_there_are() {
    let known = "a parameter that \"memory:\" has, \"payload_limit\" or \"lock_timeout\"";
    for (query, name) in [
        ("payload_limt=1", "payload_limt"),
        ("Payload_Limit=1", "Payload_Limit"),
        ("schema=jobs", "schema"),
        ("payload_limit=1&", ""),
        ("&", ""),
        ("=1", ""),
        ("?payload_limit=1", "?payload_limit"),
        ("password=s3cret", "password"),
        ("max%5Fconnections=8", "max_connections"),
    ] {
        assert_refused(&format!("memory:?{query}"), "parameter", name, known).await;
    }
    assert_refused("memory:?a%FFb=1", "parameter", "a%FFb", "percent-encoded UTF-8").await;
}

#[tokio::test]
async fn a_parameter_given_twice_is_refused() {
    let url = "memory:?payload_limit=1&payload_limit=1";
    assert_refused(url, "parameter", "payload_limit", "once").await;
}

#[tokio::test]
async fn a_parameter_of_the_wrong_form_is_refused() {
    let bytes = "a whole number of bytes";
    for value in ["", "x", "-1", "+1", "1.5", "1MiB", " 1", "99999999999999999999"] {
        let url = format!("memory:?payload_limit={value}");
        assert_refused(&url, "payload_limit", value, bytes).await;
    }
    assert_refused("memory:?payload_limit", "payload_limit", "", bytes).await;
    assert_refused("memory:?payload_limit=0", "payload_limit", "0", "at least 1").await;
    assert_refused("memory:?payload_limit=%FF", "payload_limit", "%FF", "UTF-8").await;
    for value in ["", "5", "-5s", "5 parsecs", "s", "99999999999999999999s", "5s#"] {
        let url = format!("memory:?lock_timeout={value}");
        assert_refused(&url, "lock_timeout", value, "a duration, for instance \"500ms\"").await;
    }
}

#[tokio::test]
async fn an_option_outside_its_range_or_given_twice_is_refused() {
    let refused = refusal(StoreConfig::new("memory:").payload_limit(0)).await;
    assert_eq!((refused.0, refused.1.as_str()), ("payload_limit", "0"));
    let twice = StoreConfig::new("memory:?payload_limit=5").payload_limit(5);
    let refused = refusal(twice).await;
    assert_eq!((refused.0, refused.1.as_str()), ("payload_limit", "5"));
    assert!(refused.2.contains("not both"), "{}", refused.3);
    let durable = StoreConfig::new("memory:").payload_limit(9).synchronous(Synchronous::Full);
    let refused = refusal(durable).await;
    assert_eq!((refused.0, refused.1.as_str()), ("synchronous", "Full"));
    assert!(refused.2.contains("\"payload_limit\" or \"lock_timeout\""), "{}", refused.3);
}

#[tokio::test]
async fn the_error_escapes_what_it_quotes() {
    let refused = refusal(StoreConfig::new("re\ndis:\u{1b}[31m")).await;
    assert!(refused.3.contains(r#""re\ndis:\u{1b}[31m""#), "{}", refused.3);
    assert!(!refused.3.contains(['\n', '\u{1b}']));
}

#[tokio::test]
async fn passwords_are_masked_in_errors_and_debug() {
    for url in [
        "postgres://ada:s3cret@db/app",
        "postgres://ada:s3c@s3cret@db/app",
        "postgres://ada@db/app?password=s3cret",
        "redis://:s3cret@host",
        "ada:s3cret@db/app",
        "password=s3cret",
        "memory://ada:s3cret@x",
        "memory:x?password=s3cret",
        "memory:?password=s3cret",
        "sqlite://ada:s3cret@db",
        "sqlite:app.db?password=s3cret",
        "sqlite:?password=s3cret",
        "sqlite:?p%61ssword=s3cret",
    ] {
        let config = StoreConfig::new(url);
        assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
        let error = open_with(config).await.err().expect("it is refused");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{url}: {error:?}");
    }
}

#[test]
fn a_configuration_comes_from_json_and_toml() {
    let expected = StoreConfig::new("memory:")
        .payload_limit(2_097_152)
        .lock_timeout(Duration::from_millis(500));
    let json = r#"{"url": "memory:", "payload_limit": 2097152, "lock_timeout": "500ms"}"#;
    assert_eq!(serde_json::from_str::<StoreConfig>(json).unwrap(), expected);
    let toml = "url = 'memory:'\npayload_limit = 2097152\nlock_timeout = '500ms'";
    assert_eq!(toml::from_str::<StoreConfig>(toml).unwrap(), expected);
    let toml = "url = 'sqlite:app.db'\nsynchronous = 'normal'";
    let expected = StoreConfig::new("sqlite:app.db").synchronous(Synchronous::Normal);
    assert_eq!(toml::from_str::<StoreConfig>(toml).unwrap(), expected);
    let bare = toml::from_str::<StoreConfig>("url = 'memory:'").unwrap();
    assert_eq!(bare, StoreConfig::new("memory:"));
    let null = r#"{"url": "memory:", "lock_timeout": null}"#;
    assert_eq!(serde_json::from_str::<StoreConfig>(null).unwrap(), bare);
}

#[test]
fn a_wrong_configuration_says_what_is_wrong() {
    for (json, part) in [
        (
            r#"{"url": "memory:", "payload_limt": 1}"#,
            "unknown field `payload_limt`, expected one of `url`, `payload_limit`, `lock_timeout`, `synchronous`, `schema`, `max_connections`, `operation_timeout`, `pooled`, `listen_url`",
        ),
        (
            r#"{"url": "sqlite:app.db", "synchronous": "off"}"#,
            "unknown variant `off`, expected `full` or `normal`",
        ),
        (r#"{"lock_timeout": "5s"}"#, "missing field `url`"),
        (r#"{"url": 7}"#, "expected a string"),
        (r#"{"url": "memory:", "payload_limit": -1}"#, "invalid value: integer `-1`"),
        (r#"{"url": "memory:", "lock_timeout": 5}"#, "expected a string"),
        (r#"{"url": "memory:", "lock_timeout": "5\u0007"}"#, r#"invalid duration "5\u{7}""#),
        (r#"{"url": "memory:", "lock_timeout": "5"}"#, "write for instance \"500ms\""),
    ] {
        let error = serde_json::from_str::<StoreConfig>(json).unwrap_err().to_string();
        assert!(error.contains(part), "{json}: {error}");
    }
}

/// Says what the environment says, in the process that the test below starts.
#[test]
fn a_child_reads_its_environment() {
    if std::env::var_os("ALKSTORE_TEST_CHILD").is_some() {
        println!("child: {:?}", StoreConfig::from_env().map_err(|error| error.to_string()));
    }
}

#[test]
fn a_configuration_comes_from_the_environment() {
    let said = |value: Option<&OsStr>| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_child_reads_its_environment", "--nocapture"]);
        child.env("ALKSTORE_TEST_CHILD", "yes").env_remove("ALKSTORE_URL");
        let output = child.envs(value.map(|value| ("ALKSTORE_URL", value))).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, said) = text.split_once("child: ").unwrap_or_else(|| panic!("{text}"));
        said.lines().next().unwrap().to_owned()
    };
    let expected = StoreConfig::new("sqlite:app.db?synchronous=normal");
    let set = said(Some("sqlite:app.db?synchronous=normal".as_ref()));
    assert_eq!(set, format!("Ok({expected:?})"));
    let masked = said(Some("postgres://ada:s3cret@db/app".as_ref()));
    assert!(masked.contains("postgres://ada:***@db/app"), "{masked}");

    for (value, why) in [(None, "the variable isn't set"), (Some(""), "the variable is empty")] {
        let refused = said(value.map(OsStr::new));
        assert!(refused.contains("invalid argument ALKSTORE_URL: "), "{refused}");
        assert!(refused.contains("for instance \\\"sqlite:app.db\\\"; "), "{refused}");
        assert!(refused.contains(why), "{refused}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let refused = said(Some(OsStr::from_bytes(b"postgres://ada:s3cret\xff@db")));
        assert!(refused.contains("isn't UTF-8") && !refused.contains("s3cret"), "{refused}");
    }
}

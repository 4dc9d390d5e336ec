//! What `postgres:` makes of a URL and of a configuration.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by a panic"
)]

use std::time::Duration;

use alkstore::{Error, PgStore, StoreConfig, StoreExt, Synchronous, open, open_with};
use alkstore_suite::pg;

async fn error_of(config: StoreConfig) -> Error {
    match open_with(config.clone()).await {
        Err(error) => error,
        Ok(_) => panic!("{config:?} opens"),
    }
}

async fn assert_refused(config: StoreConfig, argument: &str, value: &str, expected: &str) {
    match error_of(config.clone()).await {
        Error::InvalidArgument { argument: a, value: v, expected: e } => {
            assert_eq!((a, v.as_str()), (argument, value), "{config:?}");
            assert!(e.contains(expected), "{config:?}: {e}");
        }
        other => panic!("{config:?} is refused with {other:?}"),
    }
}

fn refused(url: &str) -> StoreConfig {
    StoreConfig::new(url)
}

#[tokio::test]
async fn a_url_that_is_no_address_says_how_one_looks() {
    let form = "for instance \"postgres://user:password@host:5432/database\"";
    for url in ["postgres:", "postgres:app", "postgresql:/app", "POSTGRES:?schema=jobs"] {
        assert_refused(refused(url), "url", url, form).await;
    }
}

#[tokio::test]
async fn an_unknown_parameter_says_which_there_are() {
    let url = "postgres://localhost:1/app?schma=jobs";
    let known = "a parameter that \"postgres:\" has, \"schema\", \"max_connections\", ";
    assert_refused(refused(url), "parameter", "schma", known).await;
    let url = "postgres://localhost:1/app?synchronous=full";
    assert_refused(refused(url), "parameter", "synchronous", "\"sslmode\"").await;
    let url = "postgres://localhost:1/app?sslmode=require&sslmode=disable";
    assert_refused(refused(url), "parameter", "sslmode", "once").await;
}

#[tokio::test]
async fn a_parameter_of_the_wrong_form_is_refused() {
    for (parameter, value, expected) in [
        ("max_connections", "many", "a whole number, for instance 8"),
        ("max_connections", "+8", "a whole number, for instance 8"),
        ("max_connections", "0", "at least 1"),
        ("operation_timeout", "5", "a duration, for instance"),
        ("lock_timeout", "soon", "a duration, for instance"),
        ("payload_limit", "1MiB", "a whole number of bytes"),
        ("pooled", "yes", "\"true\" or \"false\""),
        ("schema", "pg_jobs", "that doesn't begin with \"pg_\""),
    ] {
        let url = format!("postgres://localhost:1/app?{parameter}={value}");
        assert_refused(refused(&url), parameter, value, expected).await;
    }
    let twice = refused("postgres://localhost:1/app?schema=jobs").schema("jobs");
    assert_refused(twice, "schema", "jobs", "not both").await;
    let durable = refused("postgres://localhost:1/app").synchronous(Synchronous::Full);
    assert_refused(durable, "synchronous", "Full", "nothing: \"postgres:\" has").await;
    let sqlite = refused("sqlite:app.db").max_connections(8);
    assert_refused(sqlite, "max_connections", "8", "nothing: \"sqlite:\" has").await;
}

#[tokio::test]
async fn no_password_is_shown() {
    for config in [
        refused("postgres://ada:s3cret@localhost:1/app?schma=jobs"),
        refused("postgres://ada:s3cret@localhost:1/app"),
        refused("postgres://ada:s3cret@localhost:x/app"),
        refused("postgres://ada:1?s3cret@localhost/app"),
        refused("postgres://ada:1#s3cret@localhost/app"),
        refused("postgres://localhost:1/app?password=s3cret"),
        refused("postgres://localhost:1/app?password=s3cret%FF"),
        refused("postgres://localhost:1/app?listen_url=postgres%3A%2F%2Fada%3As3cret%40%FF"),
        refused("postgres://localhost:1/app?listen_url=postgres%3A%2F%2Fada%3As3cret%40db&x=1"),
        refused("postgres://localhost:1/app?listen_url=postgres://ada:s3cret@db")
            .listen_url("postgres://ada:s3cret@db"),
        refused("memory:").listen_url("postgres://ada:s3cret@db"),
    ] {
        assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
        let error = error_of(config.clone()).await;
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{config:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let error = error_of(refused("postgres://ada:s3cret@127.0.0.1:1/app")).await;
    assert!(error.is_retryable(), "{error:?}");
}

mod needs_postgres {
    use super::*;

    #[tokio::test]
    async fn parameters_and_fields_reach_the_engine() {
        let (cluster, schema) = (pg::Cluster::shared(), pg::Cluster::shared().fresh_schema());
        let quoted = schema.replace(' ', "%20");
        let url = format!(
            "{}?schema={quoted}&max_connections=2&payload_limit=10&lock_timeout=50ms&sslmode=prefer",
            cluster.url()
        );
        let store = open(&url).await.unwrap();
        assert_eq!(store.limits().payload, 10);
        store.queue("q").unwrap().enqueue(&1).await.unwrap();
        // Two transactions hold both connections; a third call waits for one in vain.
        let (one, other) = (store.begin_tx().await.unwrap(), store.begin_tx().await.unwrap());
        let error = store.queue("q").unwrap().enqueue(&2).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        drop((one, other));

        let config = StoreConfig::new(cluster.url())
            .schema(&schema)
            .max_connections(3)
            .operation_timeout(Duration::from_secs(10));
        let again = open_with(config).await.unwrap();
        assert_eq!(again.queue("q").unwrap().stats().await.unwrap().ready, 1);
        again.close().await.unwrap();
        store.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_schema_of_its_own_is_a_store_of_its_own() {
        let cluster = pg::Cluster::shared();
        let of = |schema| StoreConfig::new(cluster.url()).schema(schema);
        let one = open_with(of(cluster.fresh_schema())).await.unwrap();
        let other = open_with(of(cluster.fresh_schema())).await.unwrap();
        one.queue("q").unwrap().enqueue(&1).await.unwrap();
        assert_eq!(other.queues().await.unwrap(), []);
        let direct = PgStore::builder(&cluster.url()).schema(cluster.fresh_schema());
        direct.connect().await.unwrap().close().await.unwrap();
        one.close().await.unwrap();
        other.close().await.unwrap();
    }
}

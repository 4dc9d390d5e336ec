//! A program that is written once prints the same on every engine.

#![allow(clippy::expect_used, reason = "a test says by a panic what it met")]

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use alkstore::prelude::*;

#[path = "../examples/engines/main.rs"]
#[allow(dead_code, reason = "the test is another main")]
mod example;

/// Something of everything, written down as it happens.
async fn program(store: Arc<dyn Store>) -> Result<String> {
    let mut out = String::new();
    let mut say = |line: String| writeln!(out, "{line}").expect("a string takes everything");
    let (orders, receipts) = (store.stream("shop/orders")?, store.queue("shop/receipts")?);
    let mut listener = store.listen("shop/bell").await?;

    // Work, with a retry and a dead letter.
    let mut ids = Vec::new();
    for (priority, mail) in [(3, "ada"), (2, "grace"), (1, "alan")] {
        let opts = EnqueueOpts::new().priority(priority).max_attempts(2).unique_key(mail);
        ids.push(receipts.enqueue_with(&mail, opts).await?);
    }
    let opts = EnqueueOpts::new().priority(5).max_attempts(1);
    receipts.enqueue_with(&"edsger", opts).await?;
    let again = receipts.enqueue_with(&"ada", EnqueueOpts::new().unique_key("ada")).await?;
    say(format!("ada twice is one job: {}", again == ids[0]));
    for turn in 1..=5 {
        let Some(mut job) = receipts.claim("worker").await? else {
            say(format!("turn {turn}: nothing"));
            continue;
        };
        let mail: String = job.decode()?;
        let outcome = match mail.as_str() {
            "ada" if job.attempt() == 1 => {
                let retried = job.retry("the line is busy", Some(Duration::ZERO)).await?;
                format!("again: {}", matches!(retried, Retried::Again { .. }))
            }
            "edsger" => format!("{:?}", job.retry("no address", None).await?),
            _ => format!("{:?}", job.ack().await?),
        };
        let stale = kind(job.ack().await);
        say(format!(
            "turn {turn}: {mail}, attempt {}: {outcome}, once more: {stale}",
            job.attempt()
        ));
    }
    for dead in receipts.jobs(JobFilter::new().state(JobState::Dead)).await? {
        let why = dead.last_error.unwrap_or_default();
        say(format!("dead: {} after {} for {why:?}", dead.payload.as_str(), dead.attempt));
    }

    // A transaction that commits, and one that doesn't.
    for (order, commits) in [("order 1", true), ("order 2", false), ("order 3", true)] {
        let mut tx = store.begin_tx().await?;
        orders.publish_tx(&mut tx, &order, PublishOpts::new().key(order)).await?;
        receipts.enqueue_tx(&mut tx, &order, EnqueueOpts::new()).await?;
        tx.notify_tx("shop/bell", &order).await?;
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    say(format!("receipts ready: {}", receipts.stats().await?.ready));
    for _ in 0..2 {
        let message = listener.recv().await.expect("the store is open")?;
        say(format!("the bell: {}", message.payload.as_str()));
    }
    let accountant = orders.consumer("accountant")?;
    let mut events = accountant.subscribe().await?;
    for _ in 0..2 {
        let event = events.recv().await.expect("the store is open")?;
        say(format!("event {}: {} by {:?}", event.offset, event.payload.as_str(), event.key));
        accountant.save_offset(event.offset).await?;
    }
    say(format!("the accountant is at {}", accountant.offset().await?));

    // One holder at a time.
    let ttl = Duration::from_secs(60);
    let lock = store.lock("shop/till", "ada", ttl).await?;
    say(format!("second holder: {}", store.try_lock("shop/till", "grace", ttl).await?.is_some()));
    lock.release().await?;
    say(format!("after release: {}", store.try_lock("shop/till", "grace", ttl).await?.is_some()));

    // The outside, and the calendar.
    let outbox = store.outbox("shop/webhooks")?;
    let mut tx = store.begin_tx().await?;
    outbox.enqueue_tx(&mut tx, &"paid", OutboxOpts::new()).await?;
    tx.commit().await?;
    let mut delivered = String::new();
    let run = outbox.run_once("courier", async |delivery: Delivery| {
        delivered = delivery.decode()?;
        Ok::<_, Error>(())
    });
    let ran = run.await?;
    say(format!("delivered: {ran}, {delivered}"));
    store.schedule("shop/report", "@every 1h", "shop/reports", &(), ScheduleOpts::new()).await?;
    for schedule in store.schedules().await? {
        say(format!("{} every {:?} into {}", schedule.name, schedule.period, schedule.queue));
    }
    say(format!("wrong: {}", kind(store.queue("").map(drop))));
    store.close().await?;
    say(format!("closed: {}", kind(receipts.enqueue(&1).await)));
    Ok(out)
}

/// The error's kind and text, which name no engine.
fn kind<T>(outcome: Result<T>) -> String {
    outcome.err().map_or_else(|| "ok".to_owned(), |error| error.to_string())
}

#[tokio::test]
async fn the_same_program_prints_the_same_on_every_engine() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", directory.path().join("app.db").display());
    let memory = program(alkstore::open("memory:").await.unwrap()).await.unwrap();
    let sqlite = program(alkstore::open(&file).await.unwrap()).await.unwrap();
    assert_eq!(memory, sqlite);
    for part in ["edsger, attempt 1", "ada, attempt 2", "event 2: \"order 3\"", "paid", "closed: "]
    {
        assert!(memory.contains(part), "{part} is missing:\n{memory}");
    }
}

/// What the example prints.
const EXPECTED: &str = "sold \"lamp\" as number 1\nsold \"rug\" as number 2\n\
                        packed \"lamp\", attempt 1\npacked \"rug\", attempt 1\nleft over: 0\n";

#[tokio::test]
async fn the_example_prints_the_same_by_another_configuration() {
    let (directory, mut printed) = (tempfile::tempdir().unwrap(), Vec::new());
    for file in example::FILES {
        let mut config = example::read(&example::beside(file)).unwrap();
        if let Some(path) = config.store.url.strip_prefix("sqlite:") {
            config.store.url = format!("sqlite:{}", directory.path().join(path).display());
        }
        // Once more, on what is there by now.
        printed.push(example::run(config.clone()).await.unwrap());
        printed.push(example::run(config).await.unwrap());
    }
    assert_eq!(printed, vec![EXPECTED; 2 * example::FILES.len()]);
    let missing = example::read("no/such.toml".as_ref()).unwrap_err();
    assert_eq!(missing.to_string(), "no/such.toml");
}

#[cfg(feature = "pg")]
mod needs_postgres {
    use alkstore_suite::pg::Cluster;

    use super::*;

    #[tokio::test]
    async fn the_same_program_prints_the_same_on_postgres() {
        let config = StoreConfig::new(Cluster::shared().url());
        let config = config.schema(Cluster::shared().fresh_schema());
        let memory = program(alkstore::open("memory:").await.unwrap()).await.unwrap();
        let postgres = program(alkstore::open_with(config).await.unwrap()).await.unwrap();
        assert_eq!(memory, postgres);
    }

    #[tokio::test]
    async fn the_example_prints_the_same_by_a_third_configuration() {
        let mut config = example::read(&example::beside("postgres.toml")).unwrap();
        config.store.url = Cluster::shared().url();
        config.store.schema = Some(Cluster::shared().fresh_schema());
        // Once more, on what is there by now.
        assert_eq!(example::run(config.clone()).await.unwrap(), EXPECTED);
        assert_eq!(example::run(config).await.unwrap(), EXPECTED);
    }
}

//! One program, one configuration each: the same result on every engine.
//!
//! ```sh
//! cargo run --example engines                         # the configurations beside this file
//! cargo run --example engines -- FILE.toml …          # others, for instance postgres.toml
//! ALKSTORE_URL=sqlite:app.db cargo run --example engines
//! ```
//!
//! The program knows no engine: it is given an `Arc<dyn Store>`.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use alkstore::prelude::*;
use anyhow::Context;
use serde::Deserialize;

/// The configurations beside this file that need no server. There is one for Postgres as well.
pub(crate) const FILES: [&str; 2] = ["memory.toml", "sqlite.toml"];

/// An application's own configuration, with a table for the store.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    shop: String,
    pub(crate) store: StoreConfig,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() && std::env::var_os("ALKSTORE_URL").is_some() {
        let store = StoreConfig::from_env()?;
        print!("{}", run(Config { shop: "corner".to_owned(), store }).await?);
        return Ok(());
    }
    if files.is_empty() {
        files = FILES.map(beside).into();
    }
    for file in files {
        println!("== {}", file.file_name().unwrap_or_default().display());
        print!("{}", run(read(&file)?).await?);
    }
    Ok(())
}

pub(crate) fn beside(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/engines").join(file)
}

pub(crate) fn read(file: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    toml::from_str(&text).with_context(|| file.display().to_string())
}

pub(crate) async fn run(config: Config) -> anyhow::Result<String> {
    let store = alkstore::open_with(config.store).await?;
    let report = shop(&store, &config.shop).await;
    store.close().await?;
    Ok(report?)
}

/// Sells three things, and writes down what the store makes of it.
async fn shop(store: &Arc<dyn Store>, name: &str) -> Result<String> {
    let mut report = String::new();
    let mut say = |line: String| report += &format!("{line}\n");
    let (sales, parcels) = (store.stream(&format!("{name}/sales"))?, store.queue("parcels")?);
    let before = sales.info().await?.last;
    for (article, in_stock) in [("lamp", true), ("chair", false), ("rug", true)] {
        let mut tx = store.begin_tx().await?;
        sales.publish_tx(&mut tx, article, PublishOpts::new()).await?;
        parcels.enqueue_tx(&mut tx, article, EnqueueOpts::new().unique_key(article)).await?;
        if in_stock {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
    }
    for event in sales.read(before, 10).await? {
        let number = event.offset.get() - before.get();
        say(format!("sold {} as number {number}", event.payload.as_str()));
    }
    while let Some(mut parcel) = parcels.claim("packer").await? {
        say(format!("packed {}, attempt {}", parcel.payload().as_str(), parcel.attempt()));
        parcel.ack().await?;
    }
    let stats = parcels.stats().await?;
    say(format!("left over: {}", stats.ready + stats.delayed + stats.claimed + stats.dead));
    sales.trim_to(sales.info().await?.last).await?;
    Ok(report)
}

//! Webhooks on their way to a receiver that isn't always well.
//!
//! Takes 131 real deliveries. Each is published to a stream and, in the same transaction, put
//! into an outbox. Workers deliver from the outbox by HTTP to a receiver that fails, stalls and
//! refuses at times; what fails is tried again, what keeps failing becomes a dead letter. A
//! schedule reports every second, and an audit follows the stream, stops in the middle and goes
//! on where it had stopped. In the end every total has to add up.
//!
//! The store is the file `app.db`: interrupted, or killed, it goes on from there at the next run.
//! What a killed run had in hand comes again when its claims have lapsed, a minute later.
//!
//! ```text
//! cargo run --release --example webhooks -- --workers 8 --fail 25 --seed 7
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a program of its own: it waits in real time and talks to a terminal"
)]

mod audit;
pub(crate) mod closing;
mod courier;
pub(crate) mod deliveries;
mod receiver;
pub(crate) mod run;
pub(crate) mod screen;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use alkstore::prelude::*;
use clap::Parser;

use screen::Screen;

/// Delivers real webhooks through an outbox to a receiver that fails at times.
#[derive(Debug, Clone, Parser)]
#[command(name = "webhooks")]
pub(crate) struct Cli {
    /// The store's URL. What is in it from earlier runs stays, and what they left undone is done.
    #[arg(long, value_name = "URL", default_value = "sqlite:app.db")]
    pub(crate) store: String,
    /// How many workers deliver at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// Decides which requests fail, stall or are rejected.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// A file of deliveries, one JSON object a line with event, delivery and body, instead of
    /// the 131 that come with the example.
    #[arg(long, value_name = "FILE")]
    pub(crate) deliveries: Option<PathBuf>,
    /// How many requests in a hundred the receiver answers with 503.
    #[arg(long, value_name = "PERCENT", default_value_t = 15, value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) fail: u8,
    /// How many requests in a hundred it takes and answers too late.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) stall: u8,
    /// How many deliveries in a hundred it refuses at every attempt.
    #[arg(long, value_name = "PERCENT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) reject: u8,
    /// How often a delivery is tried before it is a dead letter.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: u32,
    /// How many deliveries come in a second; 0 is as fast as it goes.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub(crate) rate: u32,
    /// Takes only the first of the deliveries.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
}

/// Why a run has no outcome.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was asked for something that can't be.
    Usage(String),
    /// Something failed on the way.
    Fault(String),
}

impl Failure {
    pub(crate) fn fault(error: impl fmt::Display) -> Self {
        Self::Fault(error.to_string())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Fault(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Fault(text)) = self;
        f.write_str(text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::fault(error)
    }
}

const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let (stop, screen) = (StopToken::new(), Screen::new());
    tokio::spawn(stop_on_ctrl_c(stop.clone()));
    let outcome = tokio::select! {
        outcome = run::run(&cli, &stop, &screen) => outcome,
        () = stop.aborted() => return INTERRUPTED.into(),
    };
    screen.clear();
    let closing = match outcome {
        Ok(closing) => closing,
        Err(failure) => {
            eprintln!("error: {failure}");
            return failure.exit_code().into();
        }
    };
    println!("{closing}");
    let discrepancies = closing.discrepancies();
    for discrepancy in &discrepancies {
        eprintln!("error: the totals don't add up: {discrepancy}");
    }
    match (discrepancies.is_empty(), closing.interrupted) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => INTERRUPTED.into(),
        (true, false) => ExitCode::SUCCESS,
    }
}

/// The first lets what is under way finish, the second ends at once.
async fn stop_on_ctrl_c(stop: StopToken) {
    while tokio::signal::ctrl_c().await.is_ok() {
        if stop.is_stopped() {
            stop.abort();
            return;
        }
        stop.stop();
    }
}

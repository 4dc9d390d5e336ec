//! Runs every column of the suite and writes which row holds where: docs/architecture/conformance.md.
//!
//! ```sh
//! cargo run -p alkstore-suite --example conformance
//! ```
//!
//! It needs what `scripts/test` installs: Postgres, pgbouncer, Node and the runner of wasm tests.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a program for those who work on the engines"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use alkstore_suite::{ROWS, Row};

const PAGE: &str = "docs/architecture/conformance.md";
const PASSED: &str = "✓";
const SKIPPED: &str = "–";
const FAILED: &str = "✗";
const WASM: &str = "wasm32-unknown-unknown";

/// A test target that holds columns, each a module of it.
struct Target {
    package: &'static str,
    test: &'static str,
    columns: &'static [Column],
}

struct Column {
    module: &'static str,
    heading: &'static str,
    runs_on: &'static str,
}

const TARGETS: [Target; 4] = [
    Target {
        package: "alkstore-mem",
        test: "conformance",
        columns: &[
            Column { module: "current_thread", heading: "M1", runs_on: "memory, one thread" },
            Column { module: "multi_thread", heading: "M2", runs_on: "memory, two threads" },
        ],
    },
    Target {
        package: "alkstore-mem",
        test: "wasm",
        columns: &[Column { module: "column", heading: "W", runs_on: "memory, wasm in Node" }],
    },
    Target {
        package: "alkstore-sqlite",
        test: "conformance",
        columns: &[
            Column { module: "current_thread", heading: "S1", runs_on: "SQLite, one thread" },
            Column { module: "multi_thread", heading: "S2", runs_on: "SQLite, two threads" },
        ],
    },
    Target {
        package: "alkstore-pg",
        test: "conformance",
        columns: &[
            Column {
                module: "one_connection",
                heading: "P1",
                runs_on: "Postgres, one connection, one thread, the client's clock an hour ahead",
            },
            Column {
                module: "eight_connections",
                heading: "P8",
                runs_on: "Postgres, eight connections, two threads, the client's clock an hour behind",
            },
            Column {
                module: "behind_a_pooler",
                heading: "PP",
                runs_on: "Postgres behind pgbouncer that lends connections for a transaction",
            },
        ],
    },
];

/// What became of the rows of a column.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Each row that ran, and whether it passed.
    pub(crate) passed: BTreeMap<String, bool>,
    pub(crate) skipped: BTreeSet<String>,
}

impl Outcome {
    fn cell(&self, row: &Row) -> &'static str {
        match self.passed.get(row.name) {
            Some(true) if self.skipped.contains(row.name) => SKIPPED,
            Some(true) => PASSED,
            // One that didn't run doesn't hold.
            Some(false) | None => FAILED,
        }
    }
}

/// Reads a log of tests: what became of each, by module. What says which rows are skipped stands
/// below the heading of its test; in Node, where nothing has one, below whatever came before.
pub(crate) fn outcomes(log: &str) -> BTreeMap<String, Outcome> {
    let mut outcomes: BTreeMap<String, Outcome> = BTreeMap::new();
    let mut module = "";
    for line in log.lines() {
        let heading = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
        if let Some((path, _)) = heading.and_then(|test| test.rsplit_once("::")) {
            module = last(path);
        } else if let Some((test, result)) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
            && let Some((path, row)) = test.rsplit_once("::")
        {
            module = last(path);
            let outcome = outcomes.entry(module.to_owned()).or_default();
            outcome.passed.insert(row.to_owned(), result.trim() == "ok");
        } else if let Some((_, skipped)) = line.split_once(" skipped")
            && line.contains(" rows")
        {
            let names = skipped.split('"').skip(1).step_by(2).map(str::to_owned);
            outcomes.entry(module.to_owned()).or_default().skipped.extend(names);
        }
    }
    outcomes
}

fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or_default()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Runs a target's tests and gives their log; how they end is read from it.
fn run(target: &Target) -> String {
    eprintln!("running {} --test {}", target.package, target.test);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--locked", "-p", target.package, "--test", target.test]);
    match target.test {
        "wasm" => {
            let tools = root().join("target/tools/bin");
            let path = std::env::var("PATH").unwrap_or_default();
            cargo.args(["--target", WASM, "--", "--nocapture"]);
            cargo.env("PATH", format!("{}:{path}", tools.display()));
            cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner");
        }
        _ => {
            cargo.args(["--", "--show-output"]);
        }
    }
    let output = cargo.current_dir(root()).stderr(Stdio::inherit()).output();
    String::from_utf8_lossy(&output.expect("cargo can be started").stdout).into_owned()
}

fn mechanism(row: &Row) -> &'static str {
    match row.rule().as_bytes().first() {
        Some(b'C') => "Common",
        Some(b'Q') => "Queues",
        Some(b'S') => "Streams",
        Some(b'N') => "Notify and listen",
        Some(b'L') => "Locks",
        Some(b'H') => "Schedules",
        Some(b'O') => "Outbox",
        Some(b'X') => "Transactions",
        letter => panic!("a mechanism of the letter {letter:?}"),
    }
}

fn page(columns: &[(&Column, Outcome)]) -> String {
    let mut page = format!(
        "# Rows and engines\n\n\
         Which row of the suite holds in which column, as\n\
         `cargo run -p alkstore-suite --example conformance` writes it, which runs them all. {PASSED} \
         passed,\n{SKIPPED} skipped because the engine doesn't declare what the row needs, {FAILED} \
         failed.\n\n\
         | | column | {PASSED} | {SKIPPED} | {FAILED} |\n|---|---|--:|--:|--:|\n"
    );
    for (column, outcome) in columns {
        let count = |cell| ROWS.iter().filter(|row| outcome.cell(row) == cell).count();
        let [passed, skipped, failed] = [PASSED, SKIPPED, FAILED].map(count);
        let Column { heading, runs_on, .. } = column;
        let _ = writeln!(page, "| {heading} | {runs_on} | {passed} | {skipped} | {failed} |");
    }
    let mut before = "";
    for row in ROWS {
        if mechanism(row) != before {
            before = mechanism(row);
            let headings: String =
                columns.iter().map(|(column, _)| format!(" {} |", column.heading)).collect();
            let lines = "---|".repeat(columns.len());
            let _ = write!(page, "\n## {before}\n\n| row | needs |{headings}\n|---|---|{lines}\n");
        }
        let cells: String =
            columns.iter().map(|(_, outcome)| format!(" {} |", outcome.cell(row))).collect();
        let _ = writeln!(page, "| {} | {} |{cells}", row.name, row.needs.join(", "));
    }
    page
}

fn main() -> ExitCode {
    let mut columns = Vec::new();
    for target in &TARGETS {
        let mut found = outcomes(&run(target));
        let all: BTreeSet<_> = found.values().flat_map(|one| one.skipped.clone()).collect();
        for column in target.columns {
            let mut outcome = found.remove(column.module).unwrap_or_default();
            if target.columns.len() == 1 {
                outcome.skipped.clone_from(&all);
            }
            columns.push((column, outcome));
        }
    }
    fs::write(root().join(PAGE), page(&columns)).expect("the page can be written");
    let mut hold = true;
    for (column, outcome) in &columns {
        for row in ROWS.iter().filter(|row| outcome.cell(row) == FAILED) {
            eprintln!("{}: {} failed or didn't run", column.runs_on, row.name);
            hold = false;
        }
    }
    if hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

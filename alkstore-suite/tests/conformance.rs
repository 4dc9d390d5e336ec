//! The page that says which row holds in which column is of the rows that there are.

#![allow(clippy::expect_used, reason = "a test fails by a panic")]

#[path = "../examples/conformance.rs"]
#[allow(dead_code, reason = "it isn't run here")]
mod program;

use std::fs;
use std::path::Path;

use alkstore_suite::ROWS;

/// What `cargo test -- --show-output` and the runner of wasm tests print.
const LOG: &str = r#"
running 4 tests
test one::a1_holds ... ok
test one::a2_fails ... FAILED
test two::rows_that_are_skipped_are_counted ... ok
test two::a1_holds ... ok

successes:

---- one::a1_holds stdout ----
what the row prints of rows

---- two::rows_that_are_skipped_are_counted stdout ----
2 rows: 1 run, 1 skipped ["a1_holds"]

test wasm::column::only_some ... ok
2 rows, 2 skipped: ["a1_holds", "a2_fails"]
"#;

#[test]
fn a_log_tells_what_became_of_each_row() {
    let found = program::outcomes(LOG);
    let told: Vec<_> = found
        .iter()
        .map(|(column, outcome)| {
            let passed: Vec<_> = outcome.passed.iter().map(|(row, ok)| (&**row, *ok)).collect();
            let skipped: Vec<_> = outcome.skipped.iter().map(String::as_str).collect();
            (&**column, passed, skipped)
        })
        .collect();
    let counted = "rows_that_are_skipped_are_counted";
    assert_eq!(
        told,
        [
            ("column", vec![("only_some", true)], vec!["a1_holds", "a2_fails"]),
            ("one", vec![("a1_holds", true), ("a2_fails", false)], vec![]),
            ("two", vec![("a1_holds", true), (counted, true)], vec!["a1_holds"]),
        ]
    );
}

#[test]
fn the_page_lists_the_rows_that_there_are_and_none_fails() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture/conformance.md");
    let page = fs::read_to_string(page).expect("the page");
    let again = "write it anew: cargo run -p alkstore-suite --example conformance";
    let mut listed = Vec::new();
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", name, needs, columns @ .., ""] = &cells[..] else { continue };
        let Some(row) = ROWS.iter().find(|row| row.name == *name) else {
            assert!(!name.contains('_'), "{name} is no row; {again}");
            continue;
        };
        assert_eq!(*needs, row.needs.join(", "), "what {name} needs; {again}");
        assert_eq!(columns.len(), 8, "the columns of {name}");
        for cell in columns {
            let skipped = *cell == "–" && !row.needs.is_empty();
            assert!(*cell == "✓" || skipped, "{name}: {cell}");
        }
        listed.push(*name);
    }
    let rows: Vec<_> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(listed, rows, "{again}");
}

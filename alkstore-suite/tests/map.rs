//! The map holds both ways: every rule in `docs/architecture/` has a row, every row states a rule.

#![expect(clippy::expect_used, reason = "a map that can't be read fails its test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use alkstore_suite::ROWS;

/// A rule's id and the page that states it.
type Rules = Vec<(String, String)>;

fn rules() -> Rules {
    let pages = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture");
    let mut rules = Rules::new();
    for entry in fs::read_dir(&pages).expect("the folder of the map") {
        let path = entry.expect("a page of the map").path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = path.file_name().expect("a page has a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a page is text");
        rules.extend(text.lines().filter_map(rule_of).map(|id| (id.to_owned(), page.clone())));
    }
    rules
}

/// The id of the rule that begins in this line: `Q7` of a line that begins with `- **Q7** `.
fn rule_of(line: &str) -> Option<&str> {
    let (id, _) = line.strip_prefix("- **")?.split_once("** ")?;
    let number = id.strip_prefix(|letter: char| letter.is_ascii_uppercase())?;
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then_some(id)
}

#[test]
fn a_rule_is_found_by_how_its_line_begins() {
    assert_eq!(rule_of("- **Q7** A stale ack is an error."), Some("Q7"));
    assert_eq!(rule_of("- **X38** Whatever meets"), Some("X38"));
    for line in ["- **Q** x", "- **Q7**", "  - **Q7** x", "* **Q7** x", "- **7** x", "- **Q7a** x"]
    {
        assert_eq!(rule_of(line), None, "{line:?}");
    }
}

#[test]
fn no_rule_is_stated_twice() {
    let mut pages: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, page) in rules() {
        pages.entry(id).or_default().push(page);
    }
    pages.retain(|_, pages| pages.len() > 1);
    assert!(pages.is_empty(), "stated more than once: {pages:?}");
}

#[test]
fn every_rule_has_a_row() {
    let rules = rules();
    assert!(!rules.is_empty(), "the map is empty");
    let without: Rules =
        rules.into_iter().filter(|(id, _)| !ROWS.iter().any(|row| row.rule() == *id)).collect();
    assert!(without.is_empty(), "rules without a row: {without:?}");
}

#[test]
fn every_row_states_a_rule() {
    let rules = rules();
    let without: Vec<_> = ROWS
        .iter()
        .filter(|row| !rules.iter().any(|(id, _)| row.rule() == *id))
        .map(|row| row.name)
        .collect();
    assert!(without.is_empty(), "rows without a rule: {without:?}");
}

#[test]
fn rows_have_names_of_their_own_that_begin_with_their_rule() {
    let mut seen = BTreeMap::new();
    for row in ROWS {
        let (id, states) = row.name.split_once('_').expect("a rule, then what the row states");
        assert_eq!(id.to_uppercase(), row.rule(), "{}", row.name);
        assert!(!states.is_empty(), "{} says nothing", row.name);
        assert!(seen.insert(row.name, ()).is_none(), "two rows are named {}", row.name);
    }
}

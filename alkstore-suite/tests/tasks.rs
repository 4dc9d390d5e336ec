//! The records in tasks/ are whole: their ids are unique, what they depend on exists and forms no
//! cycle, and every test that is said to pin a criterion exists.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use alkstore_suite::ROWS;

const KEYS: [&str; 5] = ["id", "name", "status", "depends_on", "tags"];
const STATES: [&str; 3] = ["planned", "active", "done"];

#[derive(Debug, Default)]
struct Record {
    file: String,
    fields: BTreeMap<String, String>,
    summary: String,
    /// Each criterion with the tests that pin it.
    criteria: Vec<(String, Vec<String>)>,
}

impl Record {
    fn field(&self, key: &str) -> &str {
        self.fields.get(key).map_or("", String::as_str)
    }

    fn list(&self, key: &str) -> Option<Vec<String>> {
        let inner = self.field(key).strip_prefix('[')?.strip_suffix(']')?;
        let items = inner.split(',').map(|item| item.trim().to_owned());
        Some(items.filter(|item| !item.is_empty()).collect())
    }

    fn parse(file: &str, text: &str) -> Self {
        let mut record = Self { file: file.to_owned(), ..Self::default() };
        let rest = text.strip_prefix("---\n").unwrap_or_default();
        let (front, body) = rest.split_once("\n---\n").unwrap_or_default();
        for line in front.lines() {
            let (key, value) = line.split_once(':').unwrap_or((line, ""));
            record.fields.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        let (summary, criteria) = body.split_once("\n## Criteria\n").unwrap_or((body, ""));
        let prose = summary.lines().filter(|line| !line.starts_with('#'));
        prose.collect::<Vec<_>>().join("\n").trim().clone_into(&mut record.summary);
        let criteria = criteria.split("\n## ").next().unwrap_or_default();
        for item in format!("\n{criteria}").split("\n- ").skip(1) {
            let (text, tests) = item.split_once("Tests:").unwrap_or((item, ""));
            let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            record.criteria.push((text.trim().to_owned(), tests));
        }
        record
    }
}

/// Everything that is wrong with the records.
fn faults(records: &[Record], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut ids: BTreeMap<&str, &Record> = BTreeMap::new();
    for record in records {
        let mut fault = |text: String| faults.push(format!("{}: {text}", record.file));
        for key in KEYS {
            if record.field(key).is_empty() {
                fault(format!("no {key}"));
            }
        }
        for key in record.fields.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            fault(format!("unknown field {key:?}"));
        }
        let (id, status) = (record.field("id"), record.field("status"));
        if id.parse::<u32>().is_err() {
            fault(format!("id {id:?} is no number"));
        }
        if !STATES.contains(&status) {
            fault(format!("status {status:?} is none of {STATES:?}"));
        }
        for key in ["depends_on", "tags"] {
            if record.list(key).is_none() {
                fault(format!("{key} is no [list]"));
            }
        }
        if record.summary.is_empty() {
            fault("no summary".to_owned());
        }
        if record.criteria.is_empty() {
            fault("no criteria".to_owned());
        }
        for (criterion, tests) in &record.criteria {
            if tests.is_empty() && status != "planned" {
                fault(format!("no test pins {criterion:?}"));
            }
            for test in tests.iter().filter(|test| !exists(test)) {
                fault(format!("there is no test {test:?}"));
            }
        }
        if let Some(other) = ids.insert(id, record) {
            fault(format!("the id is that of {}", other.file));
        }
    }
    // What depends on nothing that is left is taken away; what can't be taken away is a cycle.
    let mut left: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for record in records {
        let needs = record.list("depends_on").unwrap_or_default();
        for need in needs.iter().filter(|need| !ids.contains_key(need.as_str())) {
            faults.push(format!("{}: depends on {need}, which doesn't exist", record.file));
        }
        let known = needs.into_iter().filter(|need| ids.contains_key(need.as_str()));
        left.insert(record.field("id"), known.collect());
    }
    while let Some(free) = left.iter().find(|(_, needs)| needs.is_empty()).map(|(id, _)| *id) {
        left.remove(free);
        for needs in left.values_mut() {
            needs.remove(free);
        }
    }
    if !left.is_empty() {
        faults.push(format!("a cycle among {:?}", left.keys()));
    }
    faults
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// The names of the functions in a file that carry an attribute with `test` in it.
fn tests_in(source: &str, found: &mut BTreeSet<String>) {
    let mut marked = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            marked |= line.contains("test") && !line.contains("cfg");
        } else if let Some((before, after)) = line.split_once("fn ") {
            let prefix = ["", "async ", "pub ", "pub async "].contains(&before);
            if let (true, true, Some((name, _))) = (marked, prefix, after.split_once('(')) {
                found.insert(name.to_owned());
            }
            marked = false;
        } else if !line.is_empty() && !line.starts_with("//") && line != ")]" {
            marked = false;
        }
    }
}

fn walk(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            walk(&path, found);
        } else if name.ends_with(".rs") {
            tests_in(&fs::read_to_string(&path).expect("a source file"), found);
        }
    }
}

#[test]
fn records_are_whole_and_their_tests_exist() {
    let mut records = Vec::new();
    for entry in fs::read_dir(root().join("tasks")).expect("tasks/") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != "README.md" {
            records.push(Record::parse(&name, &fs::read_to_string(&path).expect("a record")));
        }
    }
    assert!(records.len() >= 18, "only {} records", records.len());
    let mut tests: BTreeSet<String> = ROWS.iter().map(|row| row.name.to_owned()).collect();
    walk(&root(), &mut tests);
    // A name with a slash is a file that is itself run: a script, or a page that is a doc test.
    let exists =
        |name: &str| tests.contains(name) || (name.contains('/') && root().join(name).is_file());
    let faults = faults(&records, exists);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_record_that_lacks_something_is_seen() {
    let good = "---\nid: 1\nname: a\nstatus: done\ndepends_on: []\ntags: [x]\n---\n# A\n\nWhat it is.\n\n\
                ## Criteria\n- It works. Tests: `known`, `known`\n";
    let check = |texts: &[String]| {
        let records: Vec<_> = texts.iter().map(|text| Record::parse("r.md", text)).collect();
        faults(&records, |name| name == "known")
    };
    assert_eq!(check(&[good.to_owned()]), Vec::<String>::new());
    for (from, to, fault) in [
        ("id: 1", "id: x", "is no number"),
        ("name: a\n", "", "no name"),
        ("status: done", "status: soon", "is none of"),
        ("tags: [x]", "tags: x", "tags is no [list]"),
        ("tags: [x]", "tags: [x]\nowner: me", "unknown field"),
        ("depends_on: []", "depends_on: [2]", "depends on 2, which doesn't exist"),
        ("depends_on: []", "depends_on: [1]", "a cycle among [\"1\"]"),
        ("What it is.\n", "", "no summary"),
        ("- It works.", "It works.", "no criteria"),
        (" Tests: `known`, `known`", "", "no test pins"),
        ("`known`, `known`", "`known`, `unknown`", "there is no test \"unknown\""),
    ] {
        assert!(good.contains(from), "{from}");
        let faults = check(&[good.replace(from, to)]);
        assert!(faults.iter().any(|found| found.contains(fault)), "{fault}: {faults:?}");
    }
    let faults = check(&[good.to_owned(), good.to_owned()]);
    assert_eq!(faults, ["r.md: the id is that of r.md"]);
}

#[test]
fn only_functions_marked_as_tests_count() {
    let mut found = BTreeSet::new();
    let source = "#[test]\nfn a() {}\nfn b() {}\n#[tokio::test(flavor = \"x\")]\nasync fn c() {}\n\
                  #[cfg(test)]\nmod m {}\nfn d() {}\n    #[wasm_bindgen_test]\n    fn e() {}\n";
    tests_in(source, &mut found);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a", "c", "e"]);
}

//! The house stands as docs/architecture/README.md draws it: arrows point down only, one file is
//! one mechanism, and every crate is under the workspace's lints.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const CORE: &str = "alkstore-core";
const ENGINES: [&str; 3] = ["alkstore-mem", "alkstore-sqlite", "alkstore-pg"];
const MECHANISMS: [&str; 6] = ["queue", "stream", "notify", "lock", "schedule", "tx"];
/// What neither the core, nor the suite, nor the memory engine may bring along.
const DRIVERS: [&str; 5] = ["rusqlite", "libsqlite3-sys", "sqlx", "sqlx-core", "tokio-postgres"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("cargo speaks UTF-8")
}

#[derive(Debug, Default)]
struct Crate {
    folder: PathBuf,
    /// What it is built from.
    uses: BTreeSet<String>,
    /// What it tests itself with.
    tests_with: BTreeSet<String>,
}

/// The crates of the workspace, with what they use of each other.
fn crates() -> BTreeMap<String, Crate> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1", "--all-features"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("cargo's metadata is JSON");
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let members: BTreeSet<_> = packages.iter().map(|package| text(&package["name"])).collect();
    let mut crates = BTreeMap::new();
    for package in packages {
        let folder = Path::new(&text(&package["manifest_path"])).parent().unwrap().to_owned();
        let mut found = Crate { folder, ..Crate::default() };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let name = text(&dependency["name"]);
            if !members.contains(&name) {
                continue;
            }
            match dependency["kind"].as_str() {
                Some("dev") => found.tests_with.insert(name),
                _ => found.uses.insert(name),
            };
        }
        crates.insert(text(&package["name"]), found);
    }
    crates
}

/// What a crate may be built from; `None` for a crate that has no place in the house.
fn below(name: &str) -> Option<Vec<&'static str>> {
    let core_and_engines = || [&[CORE][..], &ENGINES].concat();
    match name {
        CORE => Some(vec![]),
        "alkstore-suite" => Some(vec![CORE]),
        "alkstore" => Some(core_and_engines()),
        "alkstore-cli" => Some(vec!["alkstore"]),
        "alkstore-bench" => {
            Some([&["alkstore", "alkstore-suite"][..], &core_and_engines()].concat())
        }
        engine if ENGINES.contains(&engine) => Some(vec![CORE]),
        _ => None,
    }
}

/// The arrows that don't point down.
fn wrong_arrows(crates: &BTreeMap<String, Crate>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, Crate { uses, tests_with, .. }) in crates {
        let Some(below) = below(name) else {
            wrong.push(format!("{name} has no place in the house"));
            continue;
        };
        for used in uses.iter().filter(|used| !below.contains(&used.as_str())) {
            wrong.push(format!("{name} -> {used}"));
        }
        let engine = |name: &&String| ENGINES.contains(&name.as_str());
        for used in tests_with.iter().filter(engine).filter(|_| engine(&name)) {
            wrong.push(format!("{name} -> {used} (in its tests)"));
        }
    }
    wrong
}

#[test]
fn arrows_point_down_only() {
    let crates = crates();
    assert!(crates.contains_key(CORE) && crates.contains_key("alkstore-mem"), "{crates:?}");
    assert_eq!(wrong_arrows(&crates), Vec::<String>::new());
}

#[test]
fn an_arrow_that_points_up_or_aside_is_seen() {
    let uses = |used: &str| Crate { uses: [used.to_owned()].into(), ..Crate::default() };
    let tests = |used: &str| Crate { tests_with: [used.to_owned()].into(), ..Crate::default() };
    let crates = BTreeMap::from([
        (CORE.to_owned(), uses("alkstore-mem")),
        ("alkstore-mem".to_owned(), tests("alkstore-pg")),
        ("alkstore-pg".to_owned(), uses("alkstore-mem")),
        ("alkstore-shed".to_owned(), Crate::default()),
        ("alkstore-suite".to_owned(), tests("alkstore-mem")),
    ]);
    let wrong = wrong_arrows(&crates);
    assert_eq!(
        wrong,
        [
            "alkstore-core -> alkstore-mem",
            "alkstore-mem -> alkstore-pg (in its tests)",
            "alkstore-pg -> alkstore-mem",
            "alkstore-shed has no place in the house",
        ]
    );
}

#[test]
fn the_contract_and_the_memory_engine_bring_no_driver() {
    for name in [CORE, "alkstore-suite", "alkstore-mem"] {
        let tree = cargo(&["tree", "--frozen", "-e", "normal", "--prefix", "none", "-p", name]);
        let brought: BTreeSet<_> =
            tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(brought.contains("serde_json") || name == "alkstore-mem", "{name}: {tree}");
        for driver in DRIVERS {
            assert!(!brought.contains(driver), "{name} brings {driver}");
        }
    }
}

#[test]
fn an_engine_that_is_disabled_brings_no_driver() {
    let brings = |features: &[&str]| {
        let tree = ["tree", "--frozen", "-e", "normal", "--prefix", "none", "-p", "alkstore"];
        let tree = cargo(&[&tree, features].concat());
        let names = tree.lines().filter_map(|line| line.split_whitespace().next());
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    for (features, engines) in [
        (&["--no-default-features"][..], &[][..]),
        (&["--no-default-features", "--features", "mem"], &["alkstore-mem"]),
        (&["--no-default-features", "--features", "sqlite"], &["alkstore-sqlite"]),
        (&["--no-default-features", "--features", "pg"], &["alkstore-pg"]),
        (&["--no-default-features", "--features", "metrics,worker"], &[]),
        (&[], &["alkstore-mem", "alkstore-pg", "alkstore-sqlite"]),
    ] {
        let brought = brings(features);
        for engine in ENGINES {
            assert_eq!(
                brought.contains(engine),
                engines.contains(&engine),
                "{features:?} {engine}"
            );
        }
        for driver in DRIVERS {
            let expected = match driver {
                "rusqlite" | "libsqlite3-sys" => engines.contains(&"alkstore-sqlite"),
                "sqlx" | "sqlx-core" => engines.contains(&"alkstore-pg"),
                _ => false,
            };
            assert_eq!(brought.contains(driver), expected, "{features:?} {driver}");
        }
        // What tells of the store isn't there unless it is asked for.
        let asked = features.last().is_some_and(|features| features.contains("metrics"));
        assert_eq!(brought.contains("metrics"), asked, "{features:?} metrics");
    }
}

#[test]
fn one_file_is_one_mechanism_in_the_core_and_in_every_engine() {
    for (name, Crate { folder, .. }) in crates() {
        if name != CORE && !ENGINES.contains(&name.as_str()) {
            continue;
        }
        for mechanism in MECHANISMS {
            let file = folder.join("src").join(mechanism).with_extension("rs");
            let module = folder.join("src").join(mechanism).join("mod.rs");
            assert!(file.exists() || module.exists(), "{name} has no {mechanism}.rs");
        }
    }
}

#[test]
fn every_crate_is_under_the_lints_of_the_workspace() {
    for (name, Crate { folder, .. }) in crates() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let lints = manifest.split("[lints]").nth(1).unwrap_or_default();
        let first = lints.lines().map(str::trim).find(|line| !line.is_empty());
        assert_eq!(first, Some("workspace = true"), "[lints] of {name}");
    }
}

#[test]
fn every_page_that_is_linked_to_exists() {
    let mut pages = vec![];
    for folder in ["", "docs/architecture", "docs/decisions", "docs/guide", "tasks"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 10, "{pages:?}");
    let mut broken = vec![];
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            if !page.parent().expect("a folder").join(file).exists() {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn every_page_of_the_guide_is_a_doc_test() {
    let modules = ["alkstore/src/guide.rs", "alkstore-suite/src/lib.rs"]
        .map(|file| fs::read_to_string(root().join(file)).expect("a source file"))
        .concat();
    for entry in fs::read_dir(root().join("docs/guide")).expect("the guide") {
        let path = entry.expect("a page").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a page");
        // Every second fence opens a block.
        let fences = text.lines().filter_map(|line| line.strip_prefix("```"));
        for language in fences.step_by(2) {
            // What isn't Rust is run by a test (SQL), or is no program.
            let known = ["rust", "rust,no_run", "sh", "sql", "text", "toml"];
            assert!(known.contains(&language), "{name}: a block of {language:?}");
        }
        let shows_rust = text.contains("```rust");
        assert!(shows_rust || name == "README.md", "{name} shows nothing");
        assert_eq!(modules.contains(&format!("{name}\"")), shows_rust, "{name}");
        let index = fs::read_to_string(root().join("docs/guide/README.md")).expect("the index");
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "{name}");
    }
}

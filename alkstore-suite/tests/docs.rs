//! Every async method of the public surface says what can go wrong, and what a dropped future
//! leaves behind.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs;
use std::path::Path;

/// Where methods for applications stand. What engines implement (`async_trait`s) states its
/// contract in prose.
const CRATES: [&str; 5] =
    ["alkstore", "alkstore-core", "alkstore-mem", "alkstore-pg", "alkstore-sqlite"];

/// A public function that is async, with the headings of its documentation.
#[derive(Debug, PartialEq, Eq)]
struct Method {
    name: String,
    fallible: bool,
    headings: Vec<String>,
}

/// The public async functions of a file: `pub async fn`, and `fn`s that return a future, public
/// or of a public trait.
fn methods(source: &str) -> Vec<Method> {
    let (mut found, mut headings) = (Vec::new(), Vec::new());
    let mut in_trait = false;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim();
        if line.starts_with("pub trait ") || line == "}" {
            in_trait = line != "}";
        }
        if let Some(doc) = code.strip_prefix("///") {
            headings.extend(doc.trim().strip_prefix("# ").map(str::to_owned));
        } else if !code.starts_with("#[") && !code.starts_with("//") {
            let public = code.starts_with("pub async fn ")
                || code.starts_with("pub fn ")
                || (in_trait && code.starts_with("fn "));
            if public {
                let mut signature = code.to_owned();
                while !signature.contains('{') && !signature.ends_with(';') {
                    signature += " ";
                    signature += lines.next().expect("a signature ends").trim();
                }
                found.extend(method(&signature, &headings));
            }
            headings.clear();
        }
    }
    found
}

fn method(signature: &str, headings: &[String]) -> Option<Method> {
    // Closures among the parameters, and in the bounds, return something as well.
    let signature = signature.split(" where ").next()?;
    let (before, returned) = signature.rsplit_once("->").unwrap_or((signature, ""));
    let is_async = before.contains("async fn ")
        || ["impl Future<", "BoxFuture<"].iter().any(|future| returned.contains(future));
    let name = before.split_once("fn ")?.1.split(['(', '<']).next()?;
    is_async.then(|| Method {
        name: name.to_owned(),
        fallible: returned.contains("Result<"),
        headings: headings.to_vec(),
    })
}

fn lacks(method: &Method) -> Vec<&'static str> {
    let has = |heading: &str| method.headings.iter().any(|found| found == heading);
    let mut lacks = Vec::new();
    if method.fallible && !has("Errors") {
        lacks.push("# Errors");
    }
    if !has("Cancel safety") {
        lacks.push("# Cancel safety");
    }
    lacks
}

fn walk(folder: &Path, check: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, check);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            check(&path, &fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn every_async_method_documents_errors_and_cancel_safety() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let (mut seen, mut missing) = (0, Vec::new());
    for name in CRATES.map(|name| root.join(name).join("src")).iter().filter(|src| src.exists()) {
        walk(name, &mut |path, source| {
            for method in methods(source) {
                seen += 1;
                for heading in lacks(&method) {
                    missing.push(format!("{}: {} has no {heading}", path.display(), method.name));
                }
            }
        });
    }
    assert!(seen > 80, "only {seen} async methods were found");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn a_method_that_says_too_little_is_seen() {
    let source = r"
impl Queue {
    /// Adds.
    ///
    /// # Errors
    ///
    /// Many.
    #[must_use]
    pub async fn enqueue(&self) -> Result<JobId> {
    }
    /// Waits.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + '_ {
    }
    /// # Cancel safety
    pub async fn recv(
        &mut self,
        within: Duration,
    ) -> Option<Result<Event>> {
    }
    pub fn name(&self) -> &str {
    pub fn run(f: impl FnOnce() -> BoxFuture<'static, ()>) -> Result<()> {
    pub fn with<F>(f: F) -> impl Future<Output = ()>
    where
        F: FnOnce() -> Result<()>,
    {
    async fn hidden(&self) -> Result<()> {
    pub(crate) async fn inner(&self) -> Result<()> {
}
pub trait StoreExt {
    /// # Errors
    /// # Cancel safety
    fn close(&self) -> impl Future<Output = Result<()>> + Send {
    fn queue(&self) -> Result<Queue>;
}
fn sleep(&self) -> BoxFuture<'_, ()>;
";
    let found = methods(source);
    let told: Vec<_> = found.iter().map(|m| (m.name.as_str(), lacks(m))).collect();
    let expected = [
        ("enqueue", vec!["# Cancel safety"]),
        ("stopped", vec!["# Cancel safety"]),
        ("recv", vec!["# Errors"]),
        ("with", vec!["# Cancel safety"]),
        ("close", vec![]),
    ];
    assert_eq!(told, expected);
}

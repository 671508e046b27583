//! Doc comments: each stands alone.

use crate::sources::{Source, assert_none, is, sources_in};

/// Beginnings that have no subject, or that point elsewhere.
const NO_SUBJECT: [&str; 7] =
    ["What ", "Who ", "Whose ", "Whoever ", "Whatever ", "As above", "See the module"];

#[test]
fn doc_comments_stand_alone() {
    let mut findings = Vec::new();
    let mut comments = 0;
    for source in sources_in(&["rs", "py"]) {
        for (number, first) in first_lines(&source) {
            comments += 1;
            if let Some(why) = fault(first) {
                findings.push(format!("{}:{number}: {why}: {first}", source.path.display()));
            }
        }
    }
    assert!(comments > 3_000, "only {comments} doc comments found");
    assert_none(findings);
}

/// The fault of the first line of a doc comment.
fn fault(line: &str) -> Option<&'static str> {
    if NO_SUBJECT.iter().any(|beginning| line.starts_with(beginning)) {
        return Some("no subject");
    }
    line.starts_with(|c: char| c.is_lowercase()).then_some("begins in lower case")
}

/// The first line of each doc comment or docstring, with its number.
fn first_lines(source: &Source) -> Vec<(usize, &str)> {
    if is(source, &["py"]) { docstrings(&source.text) } else { rust_docs(&source.text) }
}

fn rust_docs(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let doc =
            line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!"));
        if let Some(doc) = doc.map(str::trim).filter(|doc| !inside && !doc.is_empty()) {
            found.push((number, doc));
        }
        inside = doc.is_some();
    }
    found
}

/// Docstrings begin on the line after a `def`, `class` or at the head of the file.
fn docstrings(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut may_begin = true;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let doc = line.strip_prefix("\"\"\"").or_else(|| line.strip_prefix("r\"\"\""));
        if let Some(doc) = doc.filter(|doc| may_begin && !doc.is_empty()) {
            found.push((number, doc));
        }
        may_begin = line.ends_with(':') || line.is_empty() && may_begin || line.starts_with("#!");
    }
    found
}

#[test]
fn only_first_lines_are_judged() {
    let text = "/// One\n/// two.\nfn a() {}\n    /// Three.\n    b: u8,\n//! \n";
    assert_eq!(rust_docs(text), [(1, "One"), (4, "Three.")]);
    let text = "\"\"\"Head.\"\"\"\nx = \"\"\"no\"\"\"\ndef f():\n    \"\"\"Body\n    more.\"\"\"\n";
    assert_eq!(docstrings(text), [(1, "Head.\"\"\""), (4, "Body")]);
    assert_eq!(fault("What it is."), Some("no subject"));
    assert_eq!(fault("on it goes."), Some("begins in lower case"));
    assert_eq!(fault("`x` is fine."), None);
}

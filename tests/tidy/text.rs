//! Stray paths, and tests that are skipped in silence.

use crate::sources::{assert_none, sources, sources_in};
use std::path::Path;

/// Traces of one machine or of one way to fetch packages. In pieces, so that this file is not
/// a finding itself.
const STRAY: [&str; 8] = [
    concat!("/wo", "rk/"),
    concat!("/tmp/", "w/"),
    concat!("/tmp/", "t-"),
    concat!("/ro", "ot/"),
    concat!("/home", "/"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("files.", "pythonhosted.org"),
];

#[test]
fn no_file_names_a_place_on_one_machine() {
    let mut findings = Vec::new();
    for source in sources().iter().filter(|source| source.path != Path::new("Cargo.lock")) {
        for (number, line) in (1..).zip(source.text.lines()) {
            for stray in STRAY.iter().filter(|stray| line.contains(**stray)) {
                findings.push(format!("{}:{number}: {stray}", source.path.display()));
            }
        }
    }
    assert_none(findings);
}

#[test]
fn an_ignored_test_says_why() {
    let bare = [concat!("#[ig", "nore]"), concat!("```ig", "nore")];
    let mut findings = Vec::new();
    for source in sources_in(&["rs"]) {
        for (number, line) in (1..).zip(source.text.lines()) {
            if bare.iter().any(|bare| line.contains(bare)) {
                findings
                    .push(format!("{}:{number}: ignored without a reason", source.path.display()));
            }
        }
    }
    assert_none(findings);
}

/// The test runner keeps what a passing test prints to itself: its skip would be counted as a pass.
#[test]
fn a_skipped_test_is_reported_past_the_test_runner() {
    let said = concat!("print", "ln!(\"SKIPPED");
    let mut findings = Vec::new();
    for source in sources().iter().filter(|source| source.text.contains("#[test]")) {
        for (line, text) in (1..).zip(source.text.lines()) {
            if text.contains(said) {
                findings.push(format!("{}:{line}: nobody sees this", source.path.display()));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

//! Names of tests.

use crate::sources::{assert_none, sources_in};

/// Words in the name of a test, at most: subject, verb, condition.
const WORDS_MAX: usize = 10;
/// First words that name no subject.
const NO_SUBJECT: [&str; 4] = ["what", "who", "whose", "whoever"];

#[test]
fn names_of_tests_are_short_and_have_a_subject() {
    let mut findings = Vec::new();
    let mut tests = 0;
    for source in sources_in(&["rs", "py"]) {
        for (number, name) in test_names(&source.text) {
            tests += 1;
            let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
            let starts_badly = words.first().is_some_and(|word| NO_SUBJECT.contains(word));
            if words.len() > WORDS_MAX || starts_badly {
                findings.push(format!(
                    "{}:{number}: {name}: {} words",
                    source.path.display(),
                    words.len()
                ));
            }
        }
    }
    assert!(tests > 800, "only {tests} tests found");
    assert_none(findings);
}

/// Line numbers and names; `test_` of Python is no word of a name.
fn test_names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("def test_") {
            found.push((number, name_at_start(rest)));
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
            found.push((number, name_at_start(rest)));
            is_test = false;
        }
    }
    found
}

fn name_at_start(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[test]
fn names_are_found_behind_their_attributes() {
    let text = "#[test]\n#[cfg(unix)]\nfn a_b() {}\nfn c() {}\ndef test_d_e(f):\n";
    assert_eq!(test_names(text), [(3, "a_b"), (5, "d_e")]);
}

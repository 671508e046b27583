//! Words that were replaced by the terms of the field stay away.

use crate::sources::{assert_none, sources};

/// One word or phrase a line; `docs/glossary.md` has what stands in its place.
const REPLACED: &str = include_str!("replaced_words.txt");
/// Where old words may stand: the list itself, what was measured or released under them, and locks.
const HISTORY: [&str; 5] =
    ["tests/tidy", "docs/results", "CHANGELOG.md", "Cargo.lock", "fuzz/corpus"];

#[test]
fn replaced_words_are_gone() {
    let words: Vec<&str> = REPLACED
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    assert!(words.len() > 40, "only {} words in the list", words.len());
    let mut findings = Vec::new();
    for source in sources() {
        if HISTORY.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for (number, line) in (1..).zip(source.text.lines()) {
            for word in words.iter().filter(|word| has_word(line, word)) {
                findings.push(format!("{}:{number}: {word}", source.path.display()));
            }
        }
    }
    assert_none(findings);
}

/// Whether the line has the word or phrase with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !joins(before.chars().next_back()) && !joins(after.chars().next())
    })
}

#[test]
fn a_word_within_another_is_no_finding() {
    assert!(has_word("the LinkRate of it", "LinkRate"));
    assert!(!has_word("the LinkRates of it", "LinkRate"));
    assert!(has_word("it goes again.", "goes again"));
}

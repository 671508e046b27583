//! Links, citations and names in the documents lead somewhere.

use crate::markdown;
use crate::sources::{Source, assert_none, root, sources_in};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    let mut links = 0;
    for source in sources_in(&["md"]) {
        for (line, target) in markdown::links(&source.text) {
            links += 1;
            if let Some(problem) = broken(&source.path, &target) {
                findings.push(format!("{}:{line}: {target}: {problem}", source.path.display()));
            }
        }
    }
    assert_none(findings);
    assert!(links > 10, "only {links} links found");
}

/// The fault of a link in `from`; links that leave the project are not followed.
fn broken(from: &Path, target: &str) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = from.parent().unwrap_or(Path::new(""));
    let path = root().join(if file.is_empty() { from.to_owned() } else { folder.join(file) });
    if !path.exists() {
        return Some("no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let known = markdown::headings(&text).any(|heading| markdown::anchor(heading) == anchor);
    (!known).then_some("no such heading")
}

#[test]
fn sections_of_the_protocol_that_the_code_cites_are_there() {
    let cite = "docs/protocol.md section ";
    let protocol = std::fs::read_to_string(root().join("docs/protocol.md")).expect("readable");
    let has = |number: &str| {
        markdown::headings(&protocol).any(|heading| heading.starts_with(&format!("{number}. ")))
    };
    let (mut findings, mut cited) = (Vec::new(), 0);
    for source in sources_in(&["rs", "py"]) {
        for after in source.text.split(cite).skip(1) {
            let number: String = after.chars().take_while(char::is_ascii_digit).collect();
            // The needle above is followed by no number.
            if number.is_empty() {
                continue;
            }
            cited += 1;
            if !has(&number) {
                findings.push(format!("{}: {cite}{number}", source.path.display()));
            }
        }
    }
    assert_none(findings);
    assert!(cited >= 2, "{cited} citations found");
}

/// The pages are of use only as long as what they name is there.
#[test]
fn pages_name_constants_tests_files_and_scenarios_that_are_there() {
    let code: Vec<Source> = sources_in(&["rs", "py"]);
    let declared = |declaration: String| {
        code.iter().any(|source| {
            let mut after = source.text.split(&declaration).skip(1);
            after.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let is_file = |path: &str| {
        let roots = ["", "gateway/src", "landbridge/src", "hier-collectives/src", "wan-sim/src"];
        roots.iter().any(|folder| root().join(folder).join(path).is_file())
    };
    let read = |page: &str| std::fs::read_to_string(root().join(page)).expect("readable");
    let scenarios = read("tests/scenarios.toml");
    let header = read("capi/include/landbridge.h");
    let pages = pages_about_code();
    let spans = pages.iter().flat_map(|(page, text)| {
        text.split('`').skip(1).step_by(2).map(move |span| (page.clone(), span))
    });
    let (mut findings, mut found) = (Vec::new(), 0);
    for (page, span) in spans {
        let words = span.trim_start_matches("Failure::");
        let constant = words.contains('_')
            && words.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            && !words.starts_with("LANDBRIDGE_");
        let test = span.matches('_').count() > 1
            && span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let known = if constant {
            declared(format!("const {words}"))
        } else if span.starts_with("landbridge_") || span.starts_with("process_") {
            // OpenMetrics has the suffix behind the name of a counter.
            declared(format!("\"{}", span.strip_suffix("_total").unwrap_or(span)))
                || header.contains(&format!("{span}("))
        } else if test {
            declared(format!("fn {span}")) || declared(format!("def {span}"))
        } else if span.ends_with(".rs") {
            is_file(span)
        } else if let Some((_, scenario)) = span.split_once("--scenario ") {
            scenarios.contains(&format!("name = \"{scenario}\""))
        } else {
            continue;
        };
        found += 1;
        if !known {
            findings.push(format!("{page}: `{span}` is not in the code"));
        }
    }
    assert_none(findings);
    assert!(found > 50, "only {found} names found");
}

/// Pages whose code spans are names of the code. The others have words of files, packets or systems.
fn pages_about_code() -> Vec<(String, String)> {
    let others = ["docs/results", "docs/protocol.md", "docs/emulation.md", "CHANGELOG.md"];
    sources_in(&["md"])
        .into_iter()
        .filter(|page| !others.iter().any(|other| page.path.starts_with(other)))
        .map(|page| (page.path.display().to_string(), page.text))
        .collect()
}

#[test]
fn the_readme_shows_the_training_script_that_runs() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("readable");
    let script = std::fs::read_to_string(root().join("examples/two_regions.py")).expect("readable");
    let shown = readme.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(shown.expect("a block of Python").trim(), script.trim());
}

/// Arguments in dots stand for others.
#[test]
fn the_page_of_pytorch_explains_lines_of_the_script() {
    let page = std::fs::read_to_string(root().join("docs/pytorch.md")).expect("readable");
    let script = std::fs::read_to_string(root().join("examples/two_regions.py")).expect("readable");
    let section = page.split("## The whole script").nth(1).expect("a section");
    let table = section.split("\n## ").next().unwrap_or_default();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let (mut findings, mut explained) = (Vec::new(), 0);
    for (code, _) in cells {
        explained += 1;
        let shown = if code.contains("...") { code.split('(').next() } else { Some(code) };
        if !shown.is_some_and(|code| script.contains(code)) {
            findings.push(format!("docs/pytorch.md: `{code}` is not in the script"));
        }
    }
    assert_none(findings);
    assert!(explained > 6, "only {explained} lines are explained");
}

#[test]
fn the_readme_fits_a_reader() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("readable");
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines, {README_LINES_MAX} allowed");
}

/// Lines of the README, at most: what a reader takes in before a first try.
const README_LINES_MAX: usize = 150;

/// A constant's reason is of use only as long as the test that it names is there.
#[test]
fn comments_cite_tests_that_are_there() {
    let sources = sources_in(&["rs", "py"]);
    let mut names = BTreeSet::new();
    for keyword in ["fn ", "def "] {
        for source in &sources {
            let after = source.text.split(keyword).skip(1);
            names.extend(after.filter_map(|rest| rest.split(['(', '<']).next()));
        }
    }
    let (mut findings, mut cited) = (Vec::new(), 0);
    for source in &sources {
        for after in source.text.split(CITATION).skip(1) {
            // A span with a space is a command.
            let name = after.split('`').next().unwrap_or_default();
            if name.contains(' ') {
                continue;
            }
            cited += 1;
            if !names.contains(name) {
                findings.push(format!("{}: {name} is not in the code", source.path.display()));
            }
        }
    }
    assert_none(findings);
    assert!(cited > 50, "only {cited} citations found");
}

/// The words before the name of a test in a comment. In pieces, so that this is no citation.
const CITATION: &str = concat!("Tested ", "by `");

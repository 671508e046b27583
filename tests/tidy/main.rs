//! The house rules that a compiler does not check: lengths, stray paths, reasons, links.

mod markdown;

use std::path::{Path, PathBuf};

/// Lines of a source file, at most.
const LINES_MAX: usize = 800;

/// What is no source: the repository itself (a file in a linked work tree), build outputs,
/// keys, environments.
const SKIPPED: [&str; 6] = [".git", "target", "keys", ".venv", "__pycache__", "node_modules"];

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

/// A text file of the project.
struct Source {
    /// From the root of the project.
    path: PathBuf,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder")
}

/// Every text file of the project, in path order.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = String::from_utf8(std::fs::read(&path).expect("readable")).ok()?;
        let path = path.strip_prefix(root()).expect("below the root").to_owned();
        Some(Source { path, text })
    };
    let sources: Vec<Source> = paths.into_iter().filter_map(read).collect();
    assert!(sources.len() > 50, "only {} files found", sources.len());
    sources
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("readable").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        let kind = entry.file_type().expect("known");
        if kind.is_dir() {
            walk(&path, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

fn is(source: &Source, extensions: &[&str]) -> bool {
    let extension = source.path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extensions.contains(&extension))
}

/// Fails with all findings at once.
fn assert_none(findings: Vec<String>) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn no_source_file_is_too_long() {
    let long = |source: &Source| {
        let lines = source.text.lines().count();
        (lines > LINES_MAX)
            .then(|| format!("{}: {lines} lines, {LINES_MAX} allowed", source.path.display()))
    };
    let sources = sources();
    let code = sources.iter().filter(|source| is(source, &["rs", "py"]));
    assert_none(code.filter_map(long).collect());
}

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
    for source in sources().iter().filter(|source| is(source, &["rs"])) {
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
fn a_test_that_cannot_run_says_so_past_the_test_runner() {
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

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    let mut links = 0;
    for source in sources().iter().filter(|source| is(source, &["md"])) {
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

/// What is wrong with a link in `from`; links that leave the project are not followed.
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
    for source in sources().iter().filter(|source| is(source, &["rs", "py"])) {
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
    let sources = sources();
    let code: Vec<&Source> = sources.iter().filter(|source| is(source, &["rs", "py"])).collect();
    let declared = |declaration: String| {
        code.iter().any(|source| {
            let mut after = source.text.split(&declaration).skip(1);
            after.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let is_file = |path: &str| {
        let roots = ["", "gateway/src", "hier-collectives/src", "wan-sim/src"];
        roots.iter().any(|folder| root().join(folder).join(path).is_file())
    };
    let read = |page: &str| std::fs::read_to_string(root().join(page)).expect("readable");
    let scenarios = read("tests/scenarios.toml");
    let pages = ["docs/defaults.md", "docs/failures.md"].map(|page| (page, read(page)));
    let spans = pages
        .iter()
        .flat_map(|(page, text)| text.split('`').skip(1).step_by(2).map(move |span| (*page, span)));
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
        } else if let Some(metric) = span.strip_prefix("landbridge_") {
            declared(format!(" {metric}"))
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
    assert!(found > 80, "only {found} names found");
}

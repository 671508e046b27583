//! The project's text files, as the rules see them.

use std::path::{Path, PathBuf};

/// Folders that hold no source of the project: the repository itself (a file in a linked work tree),
/// build outputs, keys, environments, caches of Python's tools.
const SKIPPED: [&str; 9] = [
    ".git",
    "target",
    "keys",
    ".venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
];

/// A text file of the project.
pub(crate) struct Source {
    /// Its path from the root of the project.
    pub path: PathBuf,
    pub text: String,
}

/// The root folder of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders below the root")
}

/// All files of the project in path order, as paths from its root.
pub(crate) fn files() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    walk(root(), &mut paths);
    paths.sort();
    let relative = |path: PathBuf| path.strip_prefix(root()).expect("below the root").to_owned();
    paths.into_iter().map(relative).collect()
}

/// All text files of the project in path order.
pub(crate) fn sources() -> Vec<Source> {
    let read = |path: PathBuf| {
        let bytes = std::fs::read(root().join(&path)).expect("readable");
        Some(Source { path, text: String::from_utf8(bytes).ok()? })
    };
    let sources: Vec<Source> = files().into_iter().filter_map(read).collect();
    assert!(sources.len() > 50, "only {} files found", sources.len());
    sources
}

/// The text files with one of these extensions.
pub(crate) fn sources_in(extensions: &[&str]) -> Vec<Source> {
    sources().into_iter().filter(|source| is(source, extensions)).collect()
}

/// Whether the file has one of these extensions.
pub(crate) fn is(source: &Source, extensions: &[&str]) -> bool {
    let extension = source.path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extensions.contains(&extension))
}

/// Fails with all findings at once.
pub(crate) fn assert_none(findings: Vec<String>) {
    let count = findings.len();
    assert!(findings.is_empty(), "{count} findings:\n{}\n", findings.join("\n"));
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

//! Lengths of files and sizes of folders.

use crate::sources::{assert_none, files, sources_in};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines of a source file, at most; above that nobody finds anything in it.
const LINES_MAX: usize = 600;
/// Files in one folder, at most; a reader sees that many names at a glance.
const FILES_MAX: usize = 12;
/// Folders of data, one file for each input of a fuzz target.
const DATA: &str = "fuzz/corpus";
/// The root has one file for each tool that looks for its own there.
const ROOT: &str = "";

#[test]
fn no_source_file_is_too_long() {
    let long = sources_in(&["rs", "py"]).into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > LINES_MAX)
            .then(|| format!("{}: {lines} lines, {LINES_MAX} allowed", source.path.display()))
    });
    assert_none(long.collect());
}

#[test]
fn no_folder_has_too_many_files() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in files() {
        let folder = file.parent().unwrap_or(Path::new(ROOT));
        *counts.entry(folder.to_owned()).or_default() += 1;
    }
    let full = counts.into_iter().filter(|(folder, count)| {
        *count > FILES_MAX && folder != Path::new(ROOT) && !folder.starts_with(DATA)
    });
    let shown = full
        .map(|(folder, count)| format!("{}: {count} files, {FILES_MAX} allowed", folder.display()));
    assert_none(shown.collect());
}

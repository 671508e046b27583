//! Files and their imports as a graph.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Which file needs which, and one item as the reason.
pub(crate) type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, String>>;

/// One text for each group of files that all need each other.
pub(crate) fn circles(imports: &Imports) -> Vec<String> {
    let mut texts = Vec::new();
    for group in groups(imports) {
        let mut text = format!("a circle of {} files:", group.len());
        for from in &group {
            let inside = imports[from].iter().filter(|(to, _)| group.contains(*to));
            for (to, item) in inside {
                text += &format!("\n  {} -> {} ({item})", from.display(), to.display());
            }
        }
        texts.push(text);
    }
    texts
}

/// Strongly connected groups of two files and more.
fn groups(imports: &Imports) -> Vec<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        imports.keys().map(|from| (from, reach(imports, from))).collect();
    let mut found: BTreeSet<BTreeSet<PathBuf>> = BTreeSet::new();
    for (from, ahead) in &reached {
        let back = |to: &&&PathBuf| reached.get(**to).is_some_and(|there| there.contains(*from));
        let group: BTreeSet<PathBuf> = ahead.iter().filter(back).map(|to| (*to).clone()).collect();
        if group.len() > 1 {
            found.insert(group);
        }
    }
    found.into_iter().collect()
}

/// All files that `from` needs, directly or through others; itself only if it is in a circle.
fn reach<'i>(imports: &'i Imports, from: &PathBuf) -> BTreeSet<&'i PathBuf> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&PathBuf> = imports.get(from).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(imports.get(file).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}

#[test]
fn a_circle_of_three_files_is_named_once() {
    let edge = |to: &str| BTreeMap::from([(PathBuf::from(to), "item".to_owned())]);
    let imports = BTreeMap::from([
        (PathBuf::from("a"), edge("b")),
        (PathBuf::from("b"), edge("c")),
        (PathBuf::from("c"), edge("a")),
        (PathBuf::from("d"), edge("a")),
    ]);
    let found = circles(&imports);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a circle of 3 files:\n  a -> b (item)"), "{}", found[0]);
}

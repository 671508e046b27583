//! Imports inside the Python package.

use super::graph::Imports;
use crate::sources::{Source, sources_in};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder that holds the package.
const HOME: &str = "python";
/// The package's name.
const PACKAGE: &str = "landbridge";

/// Which module of the package imports which; imports for type checkers and those inside functions count.
pub(crate) fn imports() -> Imports {
    let package = Path::new(HOME).join(PACKAGE);
    let files: Vec<Source> = sources_in(&["py"])
        .into_iter()
        .filter(|source| source.path.starts_with(&package))
        .collect();
    let modules: BTreeMap<String, PathBuf> =
        files.iter().map(|source| (name_of(&source.path), source.path.clone())).collect();
    let mut imports = Imports::new();
    for source in &files {
        let edges = imports.entry(source.path.clone()).or_default();
        for (module, item) in imported(source) {
            let submodule = format!("{module}.{item}");
            let target = modules.get(&submodule).or_else(|| modules.get(&module));
            if let Some(target) = target.filter(|target| **target != source.path) {
                edges.insert(target.clone(), item);
            }
        }
    }
    imports
}

/// The dotted name of a module.
fn name_of(path: &Path) -> String {
    let below = path.strip_prefix(HOME).expect("in the package's folder").with_extension("");
    let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
    let parts = parts.strip_suffix(&["__init__".into()]).unwrap_or(&parts);
    parts.join(".")
}

/// Each import as the module that is named and the item that is taken from it.
fn imported(source: &Source) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = source.text.lines();
    while let Some(line) = lines.next() {
        let mut statement = line.trim().to_owned();
        while statement.starts_with("from ") && statement.contains('(') && !statement.contains(')')
        {
            let Some(more) = lines.next() else { break };
            statement += more.split('#').next().unwrap_or("").trim();
        }
        if let Some((module, items)) =
            statement.strip_prefix("from ").and_then(|rest| rest.split_once(" import "))
        {
            let module = absolute(&source.path, module.trim());
            let items = items.split('#').next().unwrap_or("").trim().trim_matches(['(', ')']);
            for item in items.split(',').filter_map(|item| item.split_whitespace().next()) {
                found.push((module.clone(), item.to_owned()));
            }
        } else if let Some(modules) = statement.strip_prefix("import ") {
            for module in modules.split(',').filter_map(|module| module.split_whitespace().next()) {
                found.push((module.to_owned(), String::new()));
            }
        }
    }
    found
}

/// The dotted name that a relative import means in the file at `path`.
fn absolute(path: &Path, module: &str) -> String {
    let dots = module.chars().take_while(|c| *c == '.').count();
    if dots == 0 {
        return module.to_owned();
    }
    let folder = path.strip_prefix(HOME).expect("in the package's folder").parent();
    let mut parts: Vec<String> = folder
        .into_iter()
        .flat_map(Path::iter)
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    parts.truncate(parts.len() + 1 - dots);
    parts.extend(Some(module[dots..].to_owned()).filter(|rest| !rest.is_empty()));
    parts.join(".")
}

#[test]
fn relative_imports_are_resolved_from_their_file() {
    let path = PathBuf::from("python/landbridge/torch/_hook_state.py");
    let text = "from .. import errors\nfrom .._group import (\n    Group,  # one\n    Other,\n)\n";
    let found = imported(&Source { path, text: text.to_owned() });
    let named: Vec<String> =
        found.iter().map(|(module, item)| format!("{module}:{item}")).collect();
    assert_eq!(named, ["landbridge:errors", "landbridge._group:Group", "landbridge._group:Other"]);
}

//! Imports between the files of a Rust crate.

use super::graph::Imports;
use crate::sources::{root, sources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The module path below a crate's root.
type ModulePath = Vec<String>;

/// A crate by the path of its root file, from the root of the project.
pub(crate) struct Crate {
    root: PathBuf,
}

/// A module's file, and what the file names.
struct Module {
    file: PathBuf,
    /// The code without comments, strings and tests.
    code: String,
    uses: Vec<Use>,
}

/// One name that a `use` declaration brings into a module.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Use {
    path: Vec<String>,
    /// The name here; `*` for a glob.
    name: String,
    /// Whether the name can be used from outside the module.
    is_public: bool,
}

type Modules = BTreeMap<ModulePath, Module>;

/// All crates of the workspace: libraries, programs, tests with a path of their own.
pub(crate) fn crates() -> Vec<Crate> {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        let folder = source.path.parent().expect("a file's folder");
        let named = source.text.lines().filter_map(|line| line.strip_prefix("path = \""));
        let named = named.filter_map(|rest| rest.strip_suffix('"')).map(PathBuf::from);
        let usual = ["src/lib.rs", "src/main.rs"].map(PathBuf::from);
        let roots: BTreeSet<PathBuf> =
            usual.into_iter().chain(named).map(|file| folder.join(file)).collect();
        let there = roots.into_iter().filter(|file| root().join(file).is_file());
        found.extend(there.map(|root| Crate { root }));
    }
    assert!(found.len() > 8, "only {} crates found", found.len());
    found
}

/// Which file of the crate imports which.
pub(crate) fn imports(krate: &Crate) -> Imports {
    let mut modules = Modules::new();
    let folder = krate.root.parent().expect("a file's folder");
    add_module(&mut modules, Vec::new(), krate.root.clone(), folder);
    let mut imports = Imports::new();
    for (here, module) in &modules {
        let edges = imports.entry(module.file.clone()).or_default();
        for path in named_paths(&modules, here, module) {
            let Some(to) = defining_file(&modules, here, &path) else { continue };
            if *to != module.file {
                edges.insert(to.clone(), path.join("::"));
            }
        }
    }
    imports
}

/// Adds the module at `file` and those that it declares; `folder` holds the files of its children.
fn add_module(modules: &mut Modules, path: ModulePath, file: PathBuf, folder: &Path) {
    let text = std::fs::read_to_string(root().join(&file)).expect("readable");
    let code = bare_code(&text);
    let declared = declared_modules(&code);
    let uses = declarations(&code);
    modules.insert(path.clone(), Module { file, code, uses });
    let beside = modules[&path].file.parent().expect("a file's folder").to_owned();
    for (name, place) in declared {
        let inner = folder.join(&name);
        let named = place.map(|place| normal(&beside.join(place)));
        let usual = [inner.with_extension("rs"), inner.join("mod.rs")];
        let candidates = named.map_or_else(|| usual.to_vec(), |file| vec![file]);
        let Some(file) = candidates.into_iter().find(|file| root().join(file).is_file()) else {
            continue;
        };
        let path = path.iter().cloned().chain([name]).collect();
        add_module(modules, path, file, &inner);
    }
}

/// The code without comments, texts and whatever stands behind `#[cfg(test)]`.
fn bare_code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            // An item in one line, or a block up to the brace in its own column.
            let item = lines.next().unwrap_or("");
            let indent = &item[..item.len() - item.trim_start().len()];
            if !item.trim_end().ends_with(';') {
                let end = format!("{indent}}}");
                lines.by_ref().find(|line| *line == end);
            }
            continue;
        }
        if line.trim_start().starts_with("#[path = ") {
            code += line;
            code.push('\n');
            continue;
        }
        let line = without_strings(line);
        code += line.split("//").next().unwrap_or("");
        code.push('\n');
    }
    code
}

/// The line with its texts emptied, so that no word of them counts as a path.
fn without_strings(line: &str) -> String {
    let mut kept = String::new();
    let (mut inside, mut escaped) = (false, false);
    for c in line.chars() {
        if c == '"' && !escaped {
            inside = !inside;
        } else if !inside {
            kept.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    kept
}

/// Modules declared in files of their own, each with the path that an attribute gives it.
fn declared_modules(code: &str) -> Vec<(String, Option<String>)> {
    let mut modules = Vec::new();
    let mut place = None;
    for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(path) = line.strip_prefix("#[path = \"") {
            place = path.strip_suffix("\"]").map(str::to_owned);
            continue;
        }
        let declaration = line.strip_suffix(';').and_then(|line| line.split_once("mod "));
        if let Some((_, name)) = declaration.filter(|(before, _)| is_visibility(before)) {
            modules.push((name.trim().to_owned(), place.take()));
        }
    }
    modules
}

fn is_visibility(text: &str) -> bool {
    text.is_empty() || text.starts_with("pub")
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.iter() {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts
}

/// All names that the code's `use` declarations bring in.
fn declarations(code: &str) -> Vec<Use> {
    let mut uses = Vec::new();
    for (start, _) in code.match_indices("use ") {
        let line_start = code[..start].rfind('\n').map_or(0, |at| at + 1);
        let before = code[line_start..start].trim();
        if !before.is_empty() && !before.starts_with("pub") {
            continue;
        }
        let Some(end) = code[start..].find(';') else { continue };
        let tree: String = code[start + 4..start + end].split('\n').collect();
        add_tree(&mut uses, &[], tree.trim(), !before.is_empty());
    }
    uses
}

/// Adds the names of one use tree such as `a::{b, c as d, e::*}`.
fn add_tree(uses: &mut Vec<Use>, prefix: &[String], tree: &str, is_public: bool) {
    if let Some((path, group)) = tree.split_once('{') {
        let segments = path.split("::").map(str::trim).filter(|part| !part.is_empty());
        let prefix: Vec<String> =
            prefix.iter().cloned().chain(segments.map(str::to_owned)).collect();
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        for part in top_level_parts(group) {
            add_tree(uses, &prefix, part.trim(), is_public);
        }
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim())),
        None => (tree, None),
    };
    let segments = path.split("::").map(|part| part.trim().to_owned());
    let mut path: Vec<String> = prefix.iter().cloned().chain(segments).collect();
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let Some(last) = path.last().cloned() else { return };
    let name = alias.map_or(last, str::to_owned);
    uses.push(Use { path, name, is_public });
}

/// The parts between commas that stand in no inner group.
fn top_level_parts(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts
}

/// The paths that a module names: by private `use`, by a re-export that it also uses, and inline.
fn named_paths(modules: &Modules, here: &ModulePath, module: &Module) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for item in &module.uses {
        if !item.is_public || count_of(&module.code, &item.name) > 1 {
            paths.push(item.path.clone());
        }
    }
    for path in inline_paths(&module.code) {
        let first = &path[0];
        let child: ModulePath = here.iter().cloned().chain([first.clone()]).collect();
        if matches!(first.as_str(), "crate" | "super" | "self") || modules.contains_key(&child) {
            paths.push(path);
        } else if let Some(item) = module.uses.iter().find(|item| item.name == *first) {
            paths.push(item.path.iter().cloned().chain(path[1..].iter().cloned()).collect());
        }
    }
    paths
}

/// How often the name stands in the code as a word of its own.
fn count_of(code: &str, name: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c: char| !is_word(c)).filter(|word| *word == name).count()
}

/// Paths of two segments and more outside `use` declarations.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let code = without_uses(code);
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_path(c)).filter(|word| word.contains("::"));
    let paths = words.map(|word| {
        let segments = word.split("::").map(|part| part.trim_matches(':'));
        segments.filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<String>>()
    });
    paths.filter(|path| path.len() > 1).collect()
}

/// The code without `use` declarations, which are read by themselves, and without the paths of
/// restricted visibility.
fn without_uses(code: &str) -> String {
    let mut kept = String::new();
    let mut is_use = false;
    for line in code.lines() {
        let start = line.trim_start();
        is_use |= start.starts_with("use ") || start.starts_with("pub") && start.contains(" use ");
        if !is_use {
            kept += line.split_once("pub(in").map_or(line, |(before, _)| before);
            kept.push('\n');
        }
        is_use &= !line.contains(';');
    }
    kept
}

/// The file that defines what `path` means in the module `here`; none outside the crate.
fn defining_file<'m>(
    modules: &'m Modules,
    here: &ModulePath,
    path: &[String],
) -> Option<&'m PathBuf> {
    let mut seen = BTreeSet::new();
    resolve(modules, here, path, &mut seen)
}

fn resolve<'m>(
    modules: &'m Modules,
    here: &ModulePath,
    path: &[String],
    seen: &mut BTreeSet<(ModulePath, Vec<String>)>,
) -> Option<&'m PathBuf> {
    if !seen.insert((here.clone(), path.to_vec())) {
        return None;
    }
    let mut at = here.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {}
        first => {
            let child: ModulePath = here.iter().cloned().chain([first.to_owned()]).collect();
            if !modules.contains_key(&child) {
                return None;
            }
        }
    }
    while let Some(first) = rest.first() {
        if first == "super" {
            at.pop()?;
        } else {
            let child: ModulePath = at.iter().cloned().chain([first.clone()]).collect();
            if !modules.contains_key(&child) {
                break;
            }
            at = child;
        }
        rest = &rest[1..];
    }
    let module = modules.get(&at)?;
    // A module that is named without an item; paths through it are followed where they stand.
    let item = rest.first()?;
    for item_use in module.uses.iter().filter(|item_use| item_use.name == *item) {
        let path: Vec<String> =
            item_use.path.iter().cloned().chain(rest[1..].iter().cloned()).collect();
        if let Some(file) = resolve(modules, &at, &path, seen) {
            return Some(file);
        }
    }
    Some(&module.file)
}

#[test]
fn use_trees_are_taken_apart() {
    let code = "use crate::a::{b::C, d::{self, E as F}};\npub use g::*;\nfn h() { x::use_it(); }\n";
    let shown: Vec<String> = declarations(code)
        .iter()
        .map(|item| format!("{} {} {}", item.path.join("::"), item.name, item.is_public))
        .collect();
    assert_eq!(
        shown,
        ["crate::a::b::C C false", "crate::a::d d false", "crate::a::d::E F false", "g::* * true"]
    );
}

#[test]
fn paths_in_use_declarations_are_not_inline() {
    let code = "use a::{\n    b::C,\n};\npub(crate) use d::E;\nfn f() { g::h() }\n";
    assert_eq!(inline_paths(code), [["g", "h"]]);
}

#[test]
fn code_of_tests_and_texts_is_not_read() {
    let text = "use a::B;\n#[cfg(test)]\nuse c::D;\nlet x = \"e::F\"; // g::H\n#[cfg(test)]\n\
                mod tests {\n    use i::J;\n}\nuse k::L;\n";
    let names: Vec<String> =
        declarations(&bare_code(text)).into_iter().map(|item| item.name).collect();
    assert_eq!(names, ["B", "L"]);
    assert!(!bare_code(text).contains("e::F"));
}

//! A typed walk over a TOML file that records faults and goes on.
//!
//! The readers of the two kinds of file call it. It knows the keys of a table from the table's
//! description alone, so that whatever it reads is on the reference page.

use super::fault::{Fault, Faults};
use super::key::{Key, Table};
use super::values::{FromValue, toml_type_name};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reads the text of a config file; a file that cannot be read is its only fault.
pub(super) fn read_text(path: &Path) -> Result<String, Faults> {
    std::fs::read_to_string(path).map_err(|error| Faults::unreadable_file(path, &error))
}

/// Whether the text has this key at its root, as far as the text can be parsed.
pub(super) fn has_root_key(text: &str, key: &str) -> bool {
    let (root, _) = DeTable::parse_recoverable(text);
    root.get_ref().contains_key(key)
}

/// One file under reading, with the faults found so far.
pub(super) struct ConfigSource<'a> {
    path: &'a Path,
    text: &'a str,
    faults: RefCell<Vec<Fault>>,
    /// Location of each table and value read so far, by key path, for faults found later.
    locations: RefCell<BTreeMap<String, Location>>,
}

/// Line and spelling of a value.
#[derive(Clone)]
struct Location {
    /// Line number, from 1.
    line: usize,
    /// The value as written, cut to [`VALUE_SHOWN_CHARS`]; `None` for a table.
    value: Option<String>,
}

impl<'a> ConfigSource<'a> {
    /// Makes the source of a file whose text is `text`; `path` names the file in faults.
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, faults: RefCell::default(), locations: RefCell::default() }
    }

    /// Parses the file, reads values with `walk`, then records the root keys that `table` does not
    /// have.
    ///
    /// # Errors
    /// Every fault that the parser, the walk or this function found.
    pub(super) fn read_root_table<T>(
        self,
        table: &'static Table,
        walk: impl FnOnce(&Self, &Section<'_>) -> Option<T>,
    ) -> Result<T, Faults> {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let line = error
                .span()
                .map_or_else(|| self.line_of_deep_nesting(), |span| self.line_of_span(&span));
            let accepted = "TOML, as in the examples under configs/".to_owned();
            self.push_fault(String::new(), Some(line), None, error.message().to_owned(), accepted);
        }
        let section =
            Section { source: &self, key: String::new(), line: 1, entries: root.get_ref(), table };
        let value = walk(&self, &section);
        section.report_unknown_keys();
        match (Faults::collect(self.faults.take()), value) {
            (Some(faults), _) => Err(faults),
            (None, Some(value)) => Ok(value),
            (None, None) => unreachable!("a walk that returns nothing has recorded a fault"),
        }
    }

    /// Resolves a relative path against the directory of the config file.
    pub(super) fn resolve_path(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Whether any fault was recorded at `key` or below.
    pub(super) fn has_fault_under(&self, key: &str) -> bool {
        let faults = self.faults.borrow();
        let mut below = faults.iter().map(|fault| fault.key.as_str());
        below.any(|fault| {
            fault.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Records a fault at a key that was read before.
    pub(super) fn record_fault(&self, key: &str, problem: String, accepted: String) {
        let location = self.locations.borrow().get(key).cloned();
        let (line, value) = location.map_or((None, None), |at| (Some(at.line), at.value));
        self.push_fault(key.to_owned(), line, value, problem, accepted);
    }

    /// Records the faults of another file, to which this file refers.
    pub(super) fn record_faults_of_file(&self, faults: Faults) {
        self.faults.borrow_mut().extend(faults);
    }

    /// Records a fault of this file.
    fn push_fault(
        &self,
        key: String,
        line: Option<usize>,
        value: Option<String>,
        problem: String,
        accepted: String,
    ) {
        let file = self.path.to_owned();
        self.faults.borrow_mut().push(Fault { file, line, key, value, problem, accepted });
    }

    /// Returns the line number, from 1, at which a span of the text begins.
    fn line_of_span(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Returns the line at which values become nested too deeply. The parser reports that fault
    /// without a position, so this searches for the shortest beginning of the file that causes it.
    fn line_of_deep_nesting(&self) -> usize {
        let too_deep = |end: usize| {
            let (_, errors) = DeTable::parse_recoverable(&self.text[..end]);
            errors.iter().any(|error| error.span().is_none())
        };
        let ends: Vec<usize> = self.text.match_indices('\n').map(|(at, _)| at).collect();
        1 + ends.partition_point(|end| !too_deep(*end))
    }

    /// Returns the first line of a value as written, cut to [`VALUE_SHOWN_CHARS`].
    fn value_excerpt(&self, span: &Range<usize>) -> Option<String> {
        let text = self.text.get(span.clone())?;
        let first = text.lines().next()?;
        let cut: String = first.chars().take(VALUE_SHOWN_CHARS).collect();
        let whole = cut.len() == text.len();
        Some(if whole { cut } else { format!("{cut}...") })
    }

    /// Records the line and the spelling of the value at `key`, for faults found later.
    fn record_location(&self, key: &str, span: &Range<usize>, value: Option<String>) {
        let line = self.line_of_span(span);
        self.locations.borrow_mut().insert(key.to_owned(), Location { line, value });
    }
}

/// One table of the file.
pub(super) struct Section<'a> {
    source: &'a ConfigSource<'a>,
    /// Path of the table; empty for the file itself.
    key: String,
    line: usize,
    entries: &'a DeTable<'a>,
    table: &'static Table,
}

impl<'a> Section<'a> {
    /// Returns the path of this table, such as `region.east`; empty for the file itself.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the path of the key `name` in this table, such as `region.east.ranks`.
    pub(super) fn key_path(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    /// Whether the table has this key, with any value.
    pub(super) fn has_key(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Whether the table has keys that its description does not have.
    pub(super) fn has_unknown_key(&self) -> bool {
        self.entries.keys().any(|name| !self.is_known_key(name.get_ref()))
    }

    /// Whether the table's description has this key.
    fn is_known_key(&self, name: &str) -> bool {
        self.table.key_names().any(|known| known == name)
    }

    /// Reads the value of a key that may be absent; `None` also for a value at fault, which is then
    /// recorded.
    pub(super) fn read_optional<T: FromValue>(&self, key: &Key<T>) -> Option<T> {
        let value = self.entries.get(key.name)?;
        let path = self.key_path(key.name);
        let excerpt = self.source.value_excerpt(&value.span());
        self.source.record_location(&path, &value.span(), excerpt);
        match T::from_value(value.get_ref()) {
            Ok(value) => Some(value),
            Err(bad) => {
                self.source.record_fault(&path, bad.problem, bad.accepted);
                None
            }
        }
    }

    /// Reads the value of a key that must be there; records the fault and returns `None` when the
    /// value is absent or at fault.
    pub(super) fn read_required<T: FromValue>(&self, key: &Key<T>) -> Option<T> {
        if !self.has_key(key.name) {
            self.report_missing(key.name, T::VALUE_TYPE.accepted);
        }
        self.read_optional(key)
    }

    /// Records that the key `name` is missing from this table.
    pub(super) fn report_missing(&self, name: &str, accepted: &str) {
        let (key, line) = (self.key_path(name), Some(self.line));
        let problem = "is missing".to_owned();
        self.source.push_fault(key, line, None, problem, accepted.to_owned());
    }

    /// Returns the tables `[name.X]` of one kind with their names `X`, in the order of the file.
    pub(super) fn read_subtables(&self, table: &'static Table) -> Vec<(String, Section<'a>)> {
        let Some(value) = self.entries.get(table.name) else {
            return Vec::new();
        };
        let key = self.key_path(table.name);
        let Some(entries) = self.table_of_value(&key, value) else {
            return Vec::new();
        };
        let mut entries: Vec<_> = entries.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let mut sections = Vec::new();
        for (name, value) in entries {
            let text = name.get_ref().as_ref();
            let key = format!("{key}.{text}");
            let Some(entries) = self.table_of_value(&key, value) else {
                continue;
            };
            let line = self.source.line_of_span(&name.span());
            sections.push((
                text.to_owned(),
                Section { source: self.source, key, line, entries, table },
            ));
        }
        sections
    }

    /// Records every key that the table's description does not have.
    pub(super) fn report_unknown_keys(&self) {
        let known: Vec<&'static str> = self.table.key_names().collect();
        for (name, _) in self.entries.iter() {
            let text = name.get_ref().as_ref();
            if self.is_known_key(text) {
                continue;
            }
            let listed = known.join(", ");
            let accepted = match nearest_key(text, &known) {
                Some(near) => format!("{listed} (did you mean `{near}`?)"),
                None => listed,
            };
            let line = self.source.line_of_span(&name.span());
            let problem = "is not a key of this table".to_owned();
            self.source.push_fault(self.key_path(text), Some(line), None, problem, accepted);
        }
    }

    /// Returns the table that `value` is; records a fault when it is none.
    fn table_of_value(
        &self,
        key: &str,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Option<&'a DeTable<'a>> {
        let table = value.get_ref().as_table();
        let excerpt = if table.is_some() { None } else { self.source.value_excerpt(&value.span()) };
        self.source.record_location(key, &value.span(), excerpt);
        if table.is_none() {
            let problem = format!("is {}, not a table", toml_type_name(value.get_ref()));
            self.source.record_fault(key, problem, format!("a table, such as [{key}...]"));
        }
        table
    }
}

/// Returns the known key that differs least from `text`, if close enough for a misspelling.
fn nearest_key(text: &str, known: &[&'static str]) -> Option<&'static str> {
    let ranked = known.iter().map(|name| (edit_distance(text, name), *name));
    let (distance, name) = ranked.min()?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

/// Counts the insertions, deletions and replacements of one character between two texts.
fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, from) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// 60 characters: most of a value that a fault shows, as long as one line of a terminal.
const VALUE_SHOWN_CHARS: usize = 60;

//! A typed walk over a TOML file that records faults and goes on.

use super::fault::{Fault, Faults};
use super::values::FromValue;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text of a config file.
pub(super) fn read_text(path: &Path) -> Result<String, Faults> {
    std::fs::read_to_string(path).map_err(|error| Faults::unreadable(path, &error))
}

/// Whether the file has this key at its root, as far as it can be parsed.
pub(super) fn has_key(text: &str, key: &str) -> bool {
    let (root, _) = DeTable::parse_recoverable(text);
    root.get_ref().contains_key(key)
}

/// One file under reading, with the faults found so far.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    faults: RefCell<Vec<Fault>>,
    /// Where each table and value that was asked for stands, for faults found later.
    places: RefCell<BTreeMap<String, Place>>,
}

#[derive(Clone)]
struct Place {
    line: usize,
    value: Option<String>,
}

impl<'a> Source<'a> {
    /// Nothing read yet.
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, faults: RefCell::default(), places: RefCell::default() }
    }

    /// Reads the whole file by `walk`, then reports the keys that nothing asked for.
    ///
    /// # Errors
    /// Every fault that the parser, the walk or this found.
    pub(super) fn read<T>(
        self,
        walk: impl FnOnce(&Self, &mut Section<'_>) -> Option<T>,
    ) -> Result<T, Faults> {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let line = error.span().map_or_else(|| self.placeless(), |span| self.line(&span));
            let accepted = "TOML, as in the examples under configs/".to_owned();
            self.push(String::new(), Some(line), None, error.message().to_owned(), accepted);
        }
        let mut section = Section {
            source: &self,
            key: String::new(),
            line: 1,
            table: root.get_ref(),
            asked: Vec::new(),
        };
        let value = walk(&self, &mut section);
        section.close();
        match (Faults::collect(self.faults.take()), value) {
            (Some(faults), _) => Err(faults),
            (None, Some(value)) => Ok(value),
            (None, None) => unreachable!("a walk that gives nothing has recorded why"),
        }
    }

    /// A path as the file spells it: relative to the file's own directory.
    pub(super) fn resolve(&self, path: &Path) -> PathBuf {
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

    /// Records a fault that only several values together make, at a key read before.
    pub(super) fn fault_at(&self, key: &str, problem: String, accepted: String) {
        let place = self.places.borrow().get(key).cloned();
        let (line, value) = place.map_or((None, None), |place| (Some(place.line), place.value));
        self.push(key.to_owned(), line, value, problem, accepted);
    }

    /// Records faults of another file that this one names.
    pub(super) fn adopt(&self, faults: Faults) {
        self.faults.borrow_mut().extend(faults);
    }

    fn push(
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

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// The parser gives no place when values are nested too deeply: the first line with which
    /// it says so.
    fn placeless(&self) -> usize {
        let says_so = |end: usize| {
            let (_, errors) = DeTable::parse_recoverable(&self.text[..end]);
            errors.iter().any(|error| error.span().is_none())
        };
        let ends: Vec<usize> = self.text.match_indices('\n').map(|(at, _)| at).collect();
        1 + ends.partition_point(|end| !says_so(*end))
    }

    fn excerpt(&self, span: &Range<usize>) -> Option<String> {
        let text = self.text.get(span.clone())?;
        let first = text.lines().next()?;
        let cut: String = first.chars().take(VALUE_SHOWN_CHARS).collect();
        let whole = cut.len() == text.len();
        Some(if whole { cut } else { format!("{cut}...") })
    }

    fn note(&self, key: &str, span: &Range<usize>, value: Option<String>) {
        let line = self.line(span);
        self.places.borrow_mut().insert(key.to_owned(), Place { line, value });
    }
}

/// One table of the file.
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    key: String,
    line: usize,
    table: &'a DeTable<'a>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Path of this table.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Path of a key in this table.
    pub(super) fn key_of(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    /// Whether the table has this key, with any value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// Whether the table has keys that nothing asked for yet.
    pub(super) fn has_unasked(&self) -> bool {
        self.table.keys().any(|name| !self.asked.contains(&name.get_ref().as_ref()))
    }

    /// A value that may be absent; `None` also when it is at fault, which is then recorded.
    pub(super) fn optional<T: FromValue>(&mut self, name: &'static str) -> Option<T> {
        self.asked.push(name);
        let value = self.table.get(name)?;
        let key = self.key_of(name);
        let excerpt = self.source.excerpt(&value.span());
        self.source.note(&key, &value.span(), excerpt);
        match T::from_value(value.get_ref()) {
            Ok(value) => Some(value),
            Err(bad) => {
                self.source.fault_at(&key, bad.problem, bad.accepted);
                None
            }
        }
    }

    /// A value that must be there; `None` when it is not or is at fault, which is recorded.
    pub(super) fn required<T: FromValue>(&mut self, name: &'static str) -> Option<T> {
        if !self.has(name) {
            self.asked.push(name);
            self.missing(name, T::ACCEPTED);
        }
        self.optional(name)
    }

    /// Records that `name` is missing from this table.
    pub(super) fn missing(&self, name: &str, accepted: &str) {
        let (key, line) = (self.key_of(name), Some(self.line));
        let problem = "is missing".to_owned();
        self.source.push(key, line, None, problem, accepted.to_owned());
    }

    /// The tables `[name.X]`, in order of their places in the file. Nothing when there is none.
    pub(super) fn tables(&mut self, name: &'static str) -> Vec<(String, Section<'a>)> {
        self.asked.push(name);
        let Some(value) = self.table.get(name) else {
            return Vec::new();
        };
        let key = self.key_of(name);
        let Some(table) = self.as_table(&key, value) else {
            return Vec::new();
        };
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let mut sections = Vec::new();
        for (name, value) in entries {
            let text = name.get_ref().as_ref();
            let key = format!("{key}.{text}");
            let Some(table) = self.as_table(&key, value) else {
                continue;
            };
            let line = self.source.line(&name.span());
            let section = Section { source: self.source, key, line, table, asked: Vec::new() };
            sections.push((text.to_owned(), section));
        }
        sections
    }

    /// Records every key of this table that nothing asked for.
    pub(super) fn close(self) {
        for (name, _) in self.table.iter() {
            let text = name.get_ref().as_ref();
            if self.asked.contains(&text) {
                continue;
            }
            let known = self.asked.join(", ");
            let accepted = match nearest(text, &self.asked) {
                Some(near) => format!("{known} (did you mean `{near}`?)"),
                None => known,
            };
            let line = self.source.line(&name.span());
            let problem = "is no key of this table".to_owned();
            self.source.push(self.key_of(text), Some(line), None, problem, accepted);
        }
    }

    fn as_table(&self, key: &str, value: &'a Spanned<DeValue<'a>>) -> Option<&'a DeTable<'a>> {
        let table = value.get_ref().as_table();
        let excerpt = if table.is_some() { None } else { self.source.excerpt(&value.span()) };
        self.source.note(key, &value.span(), excerpt);
        if table.is_none() {
            let problem = format!("is {}, not a table", value.get_ref().type_str());
            self.source.fault_at(key, problem, format!("a table, such as [{key}...]"));
        }
        table
    }
}

/// The known key that differs least from `text`, if it is near enough to be a slip.
fn nearest(text: &str, known: &[&'static str]) -> Option<&'static str> {
    let ranked = known.iter().map(|name| (distance(text, name), *name));
    let (distance, name) = ranked.min()?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

/// Edit distance: insertions, deletions and replacements of one character.
fn distance(one: &str, other: &str) -> usize {
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

/// Characters of a value that a fault shows.
const VALUE_SHOWN_CHARS: usize = 60;

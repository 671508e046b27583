//! A typed walk over the tables of a TOML file that records faults and goes on.
//!
//! The readers of the two kinds of file call it. It knows the keys of a table from the table's
//! description alone, so that whatever it reads is on the reference page.

use super::config_faults::ConfigFaults;
use super::config_source::ConfigSource;
use super::config_value::{BadValue, FromConfigValue, toml_type_of_config_value};
use super::key::{Key, TableKeys};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One table of the file.
pub(super) struct Section<'a> {
    source: &'a ConfigSource<'a>,
    /// Path of the table; empty for the file itself.
    key: String,
    line: usize,
    entries: &'a DeTable<'a>,
    table: &'static TableKeys,
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

    /// Returns whether the table has this key, with any value.
    pub(super) fn has_key(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns whether the table has keys that its description does not have.
    pub(super) fn has_unknown_key(&self) -> bool {
        self.entries.keys().any(|name| !self.is_known_key(name.get_ref()))
    }

    /// Returns whether the table's description has this key.
    fn is_known_key(&self, name: &str) -> bool {
        self.table.key_names().any(|known| known == name)
    }

    /// Reads the value of a key that may be absent; `None` also for a value at fault, which is then
    /// recorded.
    pub(super) fn read_optional<T: FromConfigValue>(&self, key: &Key<T>) -> Option<T> {
        let value = self.entries.get(key.name)?;
        let path = self.key_path(key.name);
        let excerpt = self.source.value_excerpt(&value.span());
        self.source.record_location(&path, &value.span(), excerpt);
        match T::from_config_value(value.get_ref()) {
            Ok(value) => Some(value),
            Err(BadValue { problem, accepted, former: None }) => {
                self.source.record_fault(&path, problem, accepted);
                None
            }
            Err(BadValue { problem, accepted, former: Some(former) }) => {
                let rewrite = |_: &DeValue<'_>| Some(former.now.to_owned());
                self.source.record_fault_of_former_value(
                    &path,
                    (problem, accepted),
                    value,
                    rewrite,
                );
                None
            }
        }
    }

    /// Returns the value of a key as the file has it; `None` without one.
    pub(super) fn value(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.entries.get(name)
    }

    /// Reads the value of a key that must be there; records the fault and returns `None` when the
    /// value is absent or at fault.
    pub(super) fn read_required<T: FromConfigValue>(&self, key: &Key<T>) -> Option<T> {
        if !self.has_key(key.name) {
            self.report_missing(key.name, T::VALUE_TYPE.accepted);
        }
        self.read_optional(key)
    }

    /// Records that the key `name` is missing from this table, unless the text has syntax errors.
    pub(super) fn report_missing(&self, name: &str, accepted: &str) {
        if self.source.has_syntax_error() {
            return;
        }
        let (key, line) = (self.key_path(name), Some(self.line));
        let problem = "is missing".to_owned();
        self.source.push_fault(key, line, None, problem, accepted.to_owned());
    }

    /// Returns the tables `[name.X]` of one kind with their names `X`, in the order of the file.
    pub(super) fn read_subtables(&self, table: &'static TableKeys) -> Vec<(String, Section<'a>)> {
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
            let accepted = match nearest_section_key(text, &known) {
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
            let problem = format!("is {}, not a table", toml_type_of_config_value(value.get_ref()));
            self.source.record_fault(key, problem, format!("a table, such as [{key}...]"));
        }
        table
    }
}

/// Parses `source`, reads values from its root table with `walk`, then records the root keys that
/// `table` does not have.
///
/// # Errors
/// Every fault that the parser, the walk or this function found.
pub(super) fn read_root_section<T>(
    source: &ConfigSource<'_>,
    table: &'static TableKeys,
    walk: impl FnOnce(&ConfigSource<'_>, &Section<'_>) -> Option<T>,
) -> Result<T, ConfigFaults> {
    let root = source.parse_toml();
    if root.get_ref().is_empty() && !source.has_syntax_error() {
        return Err(source.fault_of_empty_file());
    }
    let section = Section { source, key: String::new(), line: 1, entries: root.get_ref(), table };
    let value = walk(source, &section);
    section.report_unknown_keys();
    match (source.take_faults(), value) {
        (Some(faults), _) => Err(faults),
        (None, Some(value)) => Ok(value),
        (None, None) => unreachable!("a walk that returns nothing has recorded a fault"),
    }
}

/// Returns the known key that differs least from `text`: by at most 1 character and a quarter of
/// the key's length, rounded down. `None` if all differ more.
fn nearest_section_key(text: &str, known: &[&'static str]) -> Option<&'static str> {
    let ranked = known.iter().map(|name| (section_key_edit_distance(text, name), *name));
    let (distance, name) = ranked.min()?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

/// Counts the insertions, deletions and replacements of one character between two texts.
fn section_key_edit_distance(one: &str, other: &str) -> usize {
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

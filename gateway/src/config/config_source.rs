//! The text of a config file under reading, and the faults found in it.
//!
//! The readers of the two kinds of file and [`Section`](super::section::Section) call it.

use super::config_faults::{ConfigFaults, Fault};
use super::former_value::Replacement;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// 16 MiB: the longest config file that is read; a longer file is reported as one that cannot be
/// read. Any fabric's file is shorter, and a wrong path does not fill the memory.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Reads the text of a config file; a file that cannot be read is its only fault.
pub(super) fn read_config_source(path: &Path) -> Result<String, ConfigFaults> {
    if path.to_str().is_none() {
        // Python trainers get the paths of sockets and tokens in JSON.
        let why = "its path is not in UTF-8, in which trainers are told it; rename it";
        let error = std::io::Error::new(std::io::ErrorKind::InvalidFilename, why);
        return Err(ConfigFaults::unreadable_file(path, &error));
    }
    stdio::read_input_text_up_to(path, CONFIG_BYTES_MAX)
        .map_err(|error| ConfigFaults::unreadable_file(path, &error))
}

/// Returns whether the text has this key at its root, as far as the text can be parsed.
pub(super) fn config_source_has_root_key(text: &str, key: &str) -> bool {
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
    /// The bytes of the text that are the value.
    span: Range<usize>,
}

impl<'a> ConfigSource<'a> {
    /// Makes the source of a file whose text is `text`; `path` names the file in faults.
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, faults: RefCell::default(), locations: RefCell::default() }
    }

    /// Parses the file, records a fault for each syntax error, and returns the root table as far as
    /// it can be parsed.
    pub(super) fn parse_toml(&self) -> Spanned<DeTable<'a>> {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let line = error
                .span()
                .map_or_else(|| self.line_of_deep_nesting(), |span| self.line_of_span(&span));
            let (problem, accepted) = self.describe_syntax_error(&error);
            self.push_fault(String::new(), Some(line), None, problem, accepted.to_owned());
        }
        root
    }

    /// Returns the text of a syntax error's fault, and what would be accepted.
    fn describe_syntax_error(&self, error: &toml::de::Error) -> (String, &'static str) {
        let message = error.message();
        let spelling = error.span().and_then(|span| self.text.get(span));
        match spelling {
            Some(key) if message == "duplicate key" => {
                (format!("`{key}` is there twice"), "each key and each table once")
            }
            _ if message.contains("quoted") => (
                message.to_owned(),
                "TOML, in which texts and quantities have quotes, such as rate = \"500 Mbit/s\"",
            ),
            _ => (message.to_owned(), "TOML, as in the files of configs/two-region"),
        }
    }

    /// Returns the only fault of a file that has no key at all.
    pub(super) fn fault_of_empty_file(&self) -> ConfigFaults {
        ConfigFaults::empty_file(self.path)
    }

    /// Removes and returns all faults recorded so far; `None` when there is none.
    pub(super) fn take_faults(&self) -> Option<ConfigFaults> {
        ConfigFaults::collect(self.faults.take())
    }

    /// Resolves a relative path against the directory of the config file.
    pub(super) fn resolve_path(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Returns whether the file has syntax errors, so that keys may seem to be missing.
    pub(super) fn has_syntax_error(&self) -> bool {
        self.has_own_fault(|fault| fault.key.is_empty())
    }

    /// Returns whether any fault of this file was recorded at `key` or below.
    pub(super) fn has_fault_under(&self, key: &str) -> bool {
        self.has_own_fault(|fault| {
            let rest = fault.key.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Returns whether a recorded fault of this file matches; faults of files to which it refers do
    /// not.
    fn has_own_fault(&self, matches: impl Fn(&Fault) -> bool) -> bool {
        self.faults.borrow().iter().any(|fault| fault.file == self.path && matches(fault))
    }

    /// Records a fault at a key whose line and value were recorded when it was read.
    pub(super) fn record_fault(&self, key: &str, problem: String, accepted: String) {
        let location = self.locations.borrow().get(key).cloned();
        let (line, value) = location.map_or((None, None), |at| (Some(at.line), at.value));
        self.push_fault(key.to_owned(), line, value, problem, accepted);
    }

    /// Records a fault as [`Self::record_fault`] does, of a value for which `rewrite` has another one.
    /// It gets the value, or each element of an array.
    pub(super) fn record_fault_of_former_value(
        &self,
        key: &str,
        (problem, accepted): (String, String),
        value: &Spanned<DeValue<'_>>,
        rewrite: impl Fn(&DeValue<'_>) -> Option<String>,
    ) {
        self.record_fault(key, problem, accepted);
        let whole = value.span();
        let alone = std::slice::from_ref(value);
        let elements = value.get_ref().as_array().map_or(alone, |array| &array[..]);
        let mut text = self.text[whole.clone()].to_owned();
        // From the end on, so that the places of the others stay.
        for element in elements.iter().rev() {
            let (start, end) =
                (element.span().start - whole.start, element.span().end - whole.start);
            if let Some(now) = rewrite(element.get_ref()) {
                text.replace_range(start..end, &now);
            }
        }
        if let Some(fault) = self.faults.borrow_mut().last_mut() {
            fault.replacement = Some(Replacement::new(&whole, text));
        }
    }

    /// Records the faults of another file, to which this file refers.
    pub(super) fn record_faults_of_file(&self, faults: ConfigFaults) {
        self.faults.borrow_mut().extend(faults);
    }

    /// Records a fault of this file at a key, with its line, the value as written, and what would
    /// be accepted.
    pub(super) fn push_fault(
        &self,
        key: String,
        line: Option<usize>,
        value: Option<String>,
        problem: String,
        accepted: String,
    ) {
        let file = self.path.to_owned();
        let fault = Fault { file, line, key, value, problem, accepted, replacement: None };
        self.faults.borrow_mut().push(fault);
    }

    /// Returns the line number, from 1, at which a span of the text begins.
    pub(super) fn line_of_span(&self, span: &Range<usize>) -> usize {
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

    /// Returns the first line of a value as written, cut to [`VALUE_SHOWN_CHARS`]. Three dots
    /// follow where a part of the value is left out; `None` for a span outside the text.
    pub(super) fn value_excerpt(&self, span: &Range<usize>) -> Option<String> {
        let text = self.text.get(span.clone())?;
        let first = text.lines().next()?;
        let cut: String = first.chars().take(VALUE_SHOWN_CHARS).collect();
        let whole = cut.len() == text.len();
        Some(if whole { cut } else { format!("{cut}...") })
    }

    /// Records the line and the spelling of the value at `key`, for faults found later.
    pub(super) fn record_location(&self, key: &str, span: &Range<usize>, value: Option<String>) {
        let line = self.line_of_span(span);
        let location = Location { line, value, span: span.clone() };
        self.locations.borrow_mut().insert(key.to_owned(), location);
    }

    /// Returns the line of a table or value that was read.
    pub(super) fn line_of_key(&self, key: &str) -> Option<usize> {
        self.locations.borrow().get(key).map(|location| location.line)
    }

    /// Returns the line of every table and value that was read, by key path.
    pub(super) fn lines_of_keys(&self) -> BTreeMap<String, usize> {
        let locations = self.locations.borrow();
        locations.iter().map(|(key, location)| (key.clone(), location.line)).collect()
    }

    /// Returns the spelling of every value that was read, by key path.
    pub(super) fn spelled_values(&self) -> BTreeMap<String, String> {
        let locations = self.locations.borrow();
        let values = locations.iter().filter(|(_, location)| location.value.is_some());
        let spelled = values.filter_map(|(key, location)| {
            let spelling = self.text.get(location.span.clone())?;
            Some((key.clone(), spelling.to_owned()))
        });
        spelled.collect()
    }
}

/// 60 characters: how much of a faulty value an error message quotes, so that the quotation fits
/// one line of a terminal. A longer value is cut there, and three dots follow.
const VALUE_SHOWN_CHARS: usize = 60;

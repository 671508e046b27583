//! Faults of config files, each with its place in the file.

use super::former_value::Replacement;
use hier_collectives::plan::PlanError;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// One fault of a config file, which its author can mend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fault {
    /// The file.
    #[serde(serialize_with = "crate::observe::versioned::serialize_versioned_path")]
    pub file: PathBuf,
    /// The line, from 1; `None` when the fault has no line, such as a missing file.
    pub line: Option<usize>,
    /// Path of the key, such as `region.east.gateway.east-0.egress`; empty for the whole file.
    pub key: String,
    /// The value as written; `None` when the key has none.
    pub value: Option<String>,
    /// The fault, as a phrase that follows the key, such as `is missing`.
    pub problem: String,
    /// The accepted form.
    pub accepted: String,
    /// The value that takes the place of this one, where an earlier version took it.
    pub replacement: Option<Replacement>,
}

/// All faults of the files of one load: at least one, in file and line order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigFaults(Vec<Fault>);

impl ConfigFaults {
    /// Collects faults, sorted and without repetitions; `None` when there is no fault.
    pub fn collect(faults: impl IntoIterator<Item = Fault>) -> Option<Self> {
        let mut faults: Vec<Fault> = faults.into_iter().collect();
        faults.sort();
        faults.dedup();
        (!faults.is_empty()).then_some(Self(faults))
    }

    /// Makes the fault of a file that cannot be read at all.
    pub(crate) fn unreadable_file(path: &Path, error: &std::io::Error) -> Self {
        Self(vec![Fault {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            value: None,
            problem: format!("cannot be read: {error}"),
            accepted: "a readable TOML file in UTF-8".to_owned(),
            replacement: None,
        }])
    }

    /// Makes the fault of a file without any key.
    pub(super) fn empty_file(path: &Path) -> Self {
        Self(vec![Fault {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            value: None,
            problem: "is empty, or has comments alone".to_owned(),
            accepted: "a file such as those of configs/two-region".to_owned(),
            replacement: None,
        }])
    }

    /// Makes the fault of a file of the other kind, such as a region file in place of a fabric file.
    pub(super) fn file_of_other_kind(path: &Path, found: &str, wanted: &str) -> Self {
        Self(vec![Fault {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            value: None,
            problem: format!("is a {found} file"),
            accepted: format!("a {wanted} file, such as the one in configs/two-region"),
            replacement: None,
        }])
    }

    /// Returns the only fault where it is one of the whole file, without line and key. Such a file
    /// is empty, of the other kind, or cannot be read.
    pub(super) fn fault_of_whole_file(&self) -> Option<&Fault> {
        let [fault] = &self.0[..] else { return None };
        (fault.line.is_none() && fault.key.is_empty()).then_some(fault)
    }

    /// Makes the fault of a fabric for which there is no plan.
    pub fn no_plan(path: &Path, error: &PlanError) -> Self {
        Self(vec![Fault {
            file: path.to_owned(),
            line: None,
            key: "region".to_owned(),
            value: None,
            problem: error.to_string(),
            accepted: "a fabric for which a plan exists".to_owned(),
            replacement: None,
        }])
    }

    /// Iterates over the faults, in the order of files and lines.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }
}

impl IntoIterator for ConfigFaults {
    type Item = Fault;
    type IntoIter = std::vec::IntoIter<Fault>;
    /// Returns the faults one by one, in file and line order.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Fault {
    /// Prints `FILE:LINE: KEY = VALUE: PROBLEM; accepted: FORM` in one line, without the parts that
    /// the fault lacks. Control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.file.display().to_string();
        if let Some(number) = self.line {
            line += &format!(":{number}");
        }
        if !self.key.is_empty() {
            line += &format!(": {}", self.key);
        }
        if let Some(value) = &self.value {
            line += &format!(" = {value}");
        }
        line += &format!(": {}; accepted: {}", self.problem, self.accepted);
        // Names come from the file: their control characters must not reach the terminal.
        let escaped = |c: char| match c.is_control() {
            true => c.escape_default().to_string(),
            false => c.to_string(),
        };
        f.write_str(&line.chars().map(escaped).collect::<String>())
    }
}

impl fmt::Display for ConfigFaults {
    /// Prints one fault a line, without an end of line after the last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigFaults {}

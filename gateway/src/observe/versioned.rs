//! The version that every JSON object of the program has beside its other keys.
//!
//! The status server and `--json` of all commands use it. docs/schemas has a schema for each.

use serde::{Serialize, Serializer};
use std::path::Path;

/// 1: the version of the keys of all JSON objects that the program writes, which each object
/// states. The version grows when a key goes away or gets another meaning. New keys do not change
/// it.
pub const JSON_VERSION: u32 = 1;

/// A report with the version of its keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Versioned<T> {
    /// The version of the keys.
    version: u32,
    /// The report, whose keys stand beside the version.
    #[serde(flatten)]
    report: T,
}

impl<T: Serialize> Versioned<T> {
    /// Adds the version to a report, which is a struct.
    pub const fn new(report: T) -> Self {
        Self { version: JSON_VERSION, report }
    }

    /// Returns report and version as one JSON object.
    ///
    /// # Panics
    /// The report is no struct, or a map in it has keys that are no strings.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a struct whose keys are strings")
    }
}

/// Serialises a path, for fields of reports: bytes that are no UTF-8 become U+FFFD, as where the path
/// is printed.
///
/// # Errors
/// The errors of the serialiser.
pub fn serialize_versioned_path<S: Serializer>(
    path: impl AsRef<Path>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.as_ref().display())
}

/// Serialises paths as [`serialize_versioned_path`] does one.
///
/// # Errors
/// The errors of the serialiser.
pub fn serialize_versioned_paths<S: Serializer>(
    paths: &[impl AsRef<Path>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.as_ref().display().to_string()))
}

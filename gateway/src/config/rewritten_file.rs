//! A config file in which the values of earlier versions are replaced.
//!
//! `landbridge check --fix` calls it, and writes the text.

use super::config_faults::{ConfigFaults, Fault};
use super::config_file::ConfigFile;
use super::config_source::read_config_source;
use std::path::Path;

/// The text of a config file that has values of earlier versions, and the text that has none. All else
/// of the text stays: comments, order, spaces.
#[derive(Debug)]
pub struct RewrittenConfigFile {
    /// The text of the file.
    pub before: String,
    /// The text in which each value of an earlier version is replaced.
    pub after: String,
    /// The faults that are gone in it, each with its replacement.
    pub mended: Vec<Fault>,
}

impl RewrittenConfigFile {
    /// Reads a file and replaces its values of earlier versions. Returns `None` where it has none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load(path: &Path) -> Result<Option<Self>, ConfigFaults> {
        let before = read_config_source(path)?;
        let faults = ConfigFile::parse(path, &before).err();
        let mut mended: Vec<Fault> = faults
            .into_iter()
            .flatten()
            .filter(|fault| fault.file == path && fault.replacement.is_some())
            .collect();
        let mut replacements: Vec<_> =
            mended.iter().filter_map(|fault| fault.replacement.as_ref()).collect();
        // From the end on, so that the places of the others stay.
        replacements.sort_by_key(|replacement| std::cmp::Reverse(replacement.span().start));
        let mut after = before.clone();
        for replacement in replacements {
            after.replace_range(replacement.span(), replacement.value());
        }
        mended.sort_by_key(|fault| fault.line);
        Ok((!mended.is_empty()).then_some(Self { before, after, mended }))
    }
}

//! A config file of either kind.

use super::config_faults::ConfigFaults;
use super::fabric::FabricFile;
use super::region::RegionFile;
use crate::config::config_source;
use std::path::Path;

/// A config file of either kind.
#[derive(Debug, Clone)]
pub enum ConfigFile {
    /// A fabric file: it has a `region` table.
    Fabric(FabricFile),
    /// A region file, with the fabric that it names.
    Region(RegionFile),
}

impl ConfigFile {
    /// Reads a file whose kind is known by its content: a fabric file has a `region` table.
    ///
    /// # Errors
    /// Every fault of the file, and of the fabric that it names.
    pub fn load(path: &Path) -> Result<Self, ConfigFaults> {
        Self::parse(path, &config_source::read_config_source(path)?)
    }

    /// Reads the text of the file at `path`, as [`Self::load`] does.
    ///
    /// # Errors
    /// As of [`Self::load`].
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigFaults> {
        if config_source::config_source_has_root_key(text, "region") {
            FabricFile::parse(path, text).map(Self::Fabric)
        } else {
            RegionFile::parse(path, text).map(Self::Region)
        }
    }
}

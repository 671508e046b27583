//! Configuration: the fabric file, which all regions share, and one region file for each region.
//!
//! The commands call it, before any task runs. A file is read once, and every fault is recorded
//! with its line, so that one report names them all. Values are never clamped: a file is used
//! exactly as written, or not at all.

mod fabric;
mod fault;
mod key;
pub mod reference;
mod region;
mod section;
mod source;
mod values;

#[cfg(test)]
mod tests;

pub use fabric::FabricFile;
pub use fault::{Fault, Faults};
pub use region::{GatewayChoiceError, GatewayConfig, JobConfig, LanePeer, RegionFile};
pub use values::{LANES_MAX, is_valid_name_value};

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
    pub fn load(path: &Path) -> Result<Self, Faults> {
        let text = source::read_config_source(path)?;
        if source::config_source_has_root_key(&text, "region") {
            FabricFile::parse(path, &text).map(Self::Fabric)
        } else {
            RegionFile::parse(path, &text).map(Self::Region)
        }
    }
}

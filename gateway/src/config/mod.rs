//! Configuration: the fabric file, which all regions share, and one region file for each region.
//!
//! The commands call it, before any task runs. A file is read once, and every fault is recorded
//! with its line, so that one report names them all. Values are never clamped: a file is used
//! exactly as written, or not at all.

mod config_faults;
mod config_source;
mod config_value;
mod fabric;
mod key;
pub mod reference;
mod region;
mod section;

#[cfg(test)]
mod tests;

pub use config_faults::{ConfigFaults, Fault};
pub use config_value::{LANES_MAX, is_valid_config_name_value};
pub use fabric::FabricFile;
pub use region::{GatewayChoiceError, GatewayConfig, JobConfig, LanePeer, RegionFile};

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
        let text = config_source::read_config_source(path)?;
        if config_source::config_source_has_root_key(&text, "region") {
            FabricFile::parse(path, &text).map(Self::Fabric)
        } else {
            RegionFile::parse(path, &text).map(Self::Region)
        }
    }
}

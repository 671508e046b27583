//! Configuration: the fabric everybody agrees on, and what one region adds to it.
//!
//! A file is walked once; whatever is wrong with it is recorded with its place, and the walk
//! goes on, so that one report names every fault. Values are never clamped: a file is used
//! exactly as written, or not at all.

mod fabric_file;
mod fault;
mod reader;
mod region_file;
mod values;

#[cfg(test)]
mod tests;

pub use fabric_file::{FabricFile, LANES_MAX};
pub use fault::{Fault, Faults};
pub use region_file::{GatewayChoiceError, GatewayConfig, JobConfig, RegionFile};
pub use values::is_name;

use std::path::Path;

/// A config file of either kind.
#[derive(Debug, Clone)]
pub enum ConfigFile {
    /// A fabric: has regions.
    Fabric(FabricFile),
    /// A region's part, with the fabric it names.
    Region(RegionFile),
}

impl ConfigFile {
    /// Reads a file and tells by its content which kind it is: a fabric has a `region` table.
    ///
    /// # Errors
    /// Every fault of the file, and of the fabric that it names.
    pub fn load(path: &Path) -> Result<Self, Faults> {
        let text = reader::read_text(path)?;
        if reader::has_key(&text, "region") {
            FabricFile::parse(path, &text).map(Self::Fabric)
        } else {
            RegionFile::parse(path, &text).map(Self::Region)
        }
    }
}

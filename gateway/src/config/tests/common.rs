//! Example files, and their faults after changes.

use crate::config::{ConfigFaults, FabricFile, Fault, RegionFile};
use std::path::Path;

pub(super) const FABRIC: &str = include_str!("../../../../configs/two-region/fabric.toml");

pub(super) const EAST: &str = include_str!("../../../../configs/two-region/east.toml");

pub(super) fn fabric(text: &str) -> Result<FabricFile, ConfigFaults> {
    FabricFile::parse(Path::new("fabric.toml"), text)
}

/// The faults of the example fabric after each `from` is replaced by its `to`.
pub(super) fn faults_of(changes: &[(&str, &str)]) -> Vec<Fault> {
    let mut text = FABRIC.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the example has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    fabric(&text).expect_err("at fault").into_iter().collect()
}

pub(super) fn keys(faults: &[Fault]) -> Vec<&str> {
    faults.iter().map(|fault| fault.key.as_str()).collect()
}

pub(super) fn region_in(directory: &Path, text: &str) -> Result<RegionFile, ConfigFaults> {
    let east = directory.join("east.toml");
    std::fs::write(directory.join("fabric.toml"), FABRIC).expect("a temporary file");
    std::fs::write(&east, text).expect("a temporary file");
    RegionFile::load(&east)
}

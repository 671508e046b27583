//! The fabric file, `fabric.toml`: regions, gateways and links, the same in every region.

mod check;
mod entry;
mod file;
pub(super) mod keys;
mod tables;

pub use file::FabricFile;

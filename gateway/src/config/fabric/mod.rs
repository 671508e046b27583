//! The fabric file, `fabric.toml`: regions, gateways and links, the same in every region.

mod entry;
mod fabric_check;
mod fabric_file;
mod fabric_tables;
pub(super) mod keys;

pub use fabric_file::FabricFile;
pub(crate) use fabric_file::sha256_of_fabric;

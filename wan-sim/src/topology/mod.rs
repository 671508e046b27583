//! Sites and the links between them, from a file.
//!
//! A lab file has sites and links; a fabric file has regions and links, which serve as
//! well, and the rest of it is the gateway's. A lab file may name a fabric and add to its
//! links what a fabric does not say.

mod keys;
mod preset;
mod site_link;
mod site_port;
mod topology_file;
mod topology_path;

pub use preset::{Preset, presets};
pub use site_link::SiteLink;
pub use site_port::SitePort;
pub use topology_file::{FileError, Host, Topology, topology_file_device};
pub use topology_path::{PathPlace, SITES_MAX, TopologyPath, topology_path_site_addresses};

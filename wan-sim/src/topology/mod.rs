//! Sites and the links between them, from a file.
//!
//! A lab file has sites and links; a fabric file has regions and links, which serve as
//! well, and the rest of it is the gateway's. A lab file may name a fabric and add to its
//! links what a fabric does not say.

mod file;
mod keys;
mod link;
mod path;
mod port;
mod preset;

pub use file::{FileError, Host, Topology, file_device_of_site};
pub use link::SiteLink;
pub use path::{LinkPath, PathPlace, SITES_MAX, site_addresses};
pub use port::SitePort;
pub use preset::{Preset, presets};

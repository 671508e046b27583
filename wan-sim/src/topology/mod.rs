//! Sites and the links between them, from a file.
//!
//! A lab file has sites and links; a fabric file has regions and links, which serve as
//! well, and the rest of it is the gateway's. A lab file may name a fabric and add to its
//! links what a fabric does not say.

mod change;
mod file;
mod link;
mod path;
mod port;
mod preset;
mod raw;
mod schedule;
mod spelling;
mod whole;

pub use file::{FileError, Host, Topology, device_of};
pub use link::SiteLink;
pub use path::{Path, Place, SITES_MAX, addresses};
pub use port::Port;
pub use preset::{Preset, presets};

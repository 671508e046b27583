//! Sites and the links between them, from a file.
//!
//! A lab file has sites and links; a fabric file has regions and links, which serve as
//! well, and the rest of it is the gateway's. A lab file may name a fabric and add to its
//! links what a fabric does not say.

mod file;
mod path;
mod port;
mod preset;
mod raw;
mod schedule;

pub use file::{FileError, Host, Topology, device_of};
pub use path::{Path, Place, SITES_MAX, addresses};
pub use port::Port;
pub use preset::{Preset, presets};

use crate::{LinkSpec, Script};

/// A link between two sites, each direction by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteLink {
    /// Index of the site named first.
    pub a: usize,
    /// Index of the other site.
    pub b: usize,
    /// From `a` to `b`.
    pub a_to_b: LinkSpec,
    /// What happens to that when, and which packets it drops.
    pub a_to_b_script: Script,
    /// From `b` to `a`.
    pub b_to_a: LinkSpec,
    /// What happens to that when, and which packets it drops.
    pub b_to_a_script: Script,
}

impl SiteLink {
    /// From `site` and to it, where it is an end.
    fn ways(&self, site: usize) -> Option<(LinkSpec, LinkSpec)> {
        match site {
            _ if site == self.a => Some((self.a_to_b, self.b_to_a)),
            _ if site == self.b => Some((self.b_to_a, self.a_to_b)),
            _ => None,
        }
    }
}

//! Sites and the links between them, from a file.
//!
//! A lab file has sites and links; a fabric file has regions and links, which serve as
//! well, and the rest of it is the gateway's. A lab file may name a fabric and add to its
//! links what a fabric does not say.

mod file;
mod preset;
mod raw;

pub use file::{FileError, Host, Topology};
pub use preset::{Preset, presets};

use crate::LinkSpec;

/// A link between two sites, each direction by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteLink {
    /// Index of the site named first.
    pub a: usize,
    /// Index of the other site.
    pub b: usize,
    /// From `a` to `b`.
    pub a_to_b: LinkSpec,
    /// From `b` to `a`.
    pub b_to_a: LinkSpec,
}

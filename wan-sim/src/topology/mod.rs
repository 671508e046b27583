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
mod whole;

pub use file::{FileError, Host, Topology, device_of};
pub use path::{Path, Place, SITES_MAX, addresses};
pub use port::Port;
pub use preset::{Preset, presets};

use crate::{Change, LinkSpec, Script};
use units::Span;

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

impl Topology {
    /// The least round trip of any link at any time, without queueing: what lateness is held
    /// against.
    pub fn shortest_round_trip(&self) -> Span {
        let least = |spec: &LinkSpec, script: &Script| {
            let changed = script.changes().filter_map(|(_, change)| match change {
                Change::Spec(spec) => Some(spec.delay()),
                Change::Cut | Change::Join => None,
            });
            changed.fold(spec.delay(), Span::min)
        };
        let round_trips = self.links.iter().map(|link| {
            least(&link.a_to_b, &link.a_to_b_script) + least(&link.b_to_a, &link.b_to_a_script)
        });
        round_trips.min().unwrap_or_default()
    }
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

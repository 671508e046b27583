//! A link between two sites.

use crate::{Change, Conditions, LinkSpec, Script};
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
    /// The scripted changes and drops of that direction.
    pub a_to_b_script: Script,
    /// The recorded capacity, parallel paths and cross traffic of that direction.
    pub a_to_b_conditions: Conditions,
    /// From `b` to `a`.
    pub b_to_a: LinkSpec,
    /// The scripted changes and drops of that direction.
    pub b_to_a_script: Script,
    /// The recorded capacity, parallel paths and cross traffic of that direction.
    pub b_to_a_conditions: Conditions,
}

impl SiteLink {
    /// Returns the least round trip of the link at any time of its scripts, over any of its
    /// parallel paths, without queueing.
    pub(super) fn shortest_round_trip(&self) -> Span {
        let least = |spec: &LinkSpec, script: &Script, conditions: &Conditions| {
            let changed = script.changes().filter_map(|(_, change)| match change {
                Change::Spec(spec) => Some(spec.delay()),
                Change::Cut | Change::Join => None,
            });
            let parallel = conditions.parallel.iter().map(LinkSpec::delay);
            changed.chain(parallel).fold(spec.delay(), Span::min)
        };
        least(&self.a_to_b, &self.a_to_b_script, &self.a_to_b_conditions)
            + least(&self.b_to_a, &self.b_to_a_script, &self.b_to_a_conditions)
    }

    /// Returns the direction from `site` and the direction to `site`; `None` where the link does
    /// not join it.
    pub(super) fn directions_of(&self, site: usize) -> Option<(LinkSpec, LinkSpec)> {
        match site {
            _ if site == self.a => Some((self.a_to_b, self.b_to_a)),
            _ if site == self.b => Some((self.b_to_a, self.a_to_b)),
            _ => None,
        }
    }
}

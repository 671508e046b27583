//! The policy of a link: the settings of the fabric file that no plan depends on.
//!
//! The config reader makes policies; the daemon and the engine read them.

use super::rate_schedule::RateSchedule;
use hier_collectives::ids::RegionId;
use std::collections::BTreeMap;

/// 8 kbit/s: the least rate of a link, and the least rate limit of an operator or schedule; a lower
/// one is refused. The fabric file has the same minimum. A packet of 1,500 bytes then takes 1.5 s.
pub(crate) const LINK_RATE_MIN_BITS_PER_S: u64 = 8_000;

/// The policies of a fabric's links, by the regions at their ends in number order. A link without an
/// entry has [`LinkPolicy::default`].
pub type LinkPolicies = BTreeMap<(RegionId, RegionId), LinkPolicy>;

/// The policy of one link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkPolicy {
    /// Its rate limit by the time of day; `None` for the whole rate at all times.
    pub schedule: Option<RateSchedule>,
    /// The congestion controller of its lanes.
    pub controller: ControllerPolicy,
}

/// A congestion controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControllerPolicy {
    /// For a link whose rate is known and ours: random loss does not count as congestion.
    #[default]
    Dedicated,
    /// For a link whose rate is not known, or shared with others: a model finds the rate.
    Shared,
    /// CUBIC (RFC 9438), for paths shared with other traffic.
    Cubic,
    /// NewReno (RFC 9002).
    NewReno,
}

impl ControllerPolicy {
    /// All congestion controllers that a link can have. The config reader finds the one that a
    /// fabric file names among them, and refuses any other name.
    pub const ALL: [Self; 4] = [Self::Dedicated, Self::Shared, Self::Cubic, Self::NewReno];

    /// Returns the controller's name in a fabric file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Shared => "shared",
            Self::Cubic => "cubic",
            Self::NewReno => "newreno",
        }
    }
}

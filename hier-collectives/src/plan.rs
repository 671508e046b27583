//! Who owns what, along which trees: data, computed once per epoch and sent to everybody.

mod apart;
mod capacity;
mod choose;
pub mod control;
mod direct;
mod express;
mod forecast;
mod memory;
mod operation;
mod packing;
mod proof;
mod rates;
mod shape;
mod spread;
mod windows;

pub use express::EXPRESS_MAX;
pub use forecast::{Forecast, GatewayLoad, LinkLoad};
pub use memory::{Memory, relay_bytes};
pub use operation::{Operation, Phases};
pub use proof::PlanFault;
pub use rates::{PairRate, PairRates, RATE_RESERVE, pair_rates, payload_limit};
pub use windows::{
    SEGMENT_BYTES_MAX, ahead_bytes, bdp, early_bytes, early_over, lanes, segment_bytes, trees_max,
};

use crate::ids::GatewayId;
use crate::repair::Repair;
use crate::topology::{Fabric, Link};
use std::collections::BTreeMap;
use units::ByteCount;

/// Regions above which there is no plan: pricing trees takes time with their square.
pub const REGIONS_MAX: usize = 256;

/// The plan of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm chosen.
    pub algorithm: Algorithm,
    /// Why, in words.
    pub reason: String,
    /// The unit of pipelining.
    pub segment: ByteCount,
    /// The largest buffer that takes the express tree; 0 where there is none.
    pub express_bytes: ByteCount,
    /// The trees: those with a share carry a buffer together; one without is the express tree.
    pub trees: Vec<Tree>,
}

/// How regions exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// One region: nothing crosses the long haul.
    Local = 1,
    /// Two regions: both send their partial, both add.
    Swap = 2,
    /// Each region owns a share, reduces it and sends it to all others.
    Direct = 3,
    /// Several trees, in which regions pass on what others have no good link for.
    Relay = 4,
    /// One region reduces for all.
    Hub = 5,
}

impl Algorithm {
    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Swap => "swap",
            Self::Direct => "direct",
            Self::Relay => "relay",
            Self::Hub => "hub",
        }
    }
    /// The algorithm with wire code `code`.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Local, Self::Swap, Self::Direct, Self::Relay, Self::Hub];
        all.into_iter().find(|known| *known as u8 == code)
    }
}

/// One tree. Partials are reduced on the way up to the crown; the members of the crown
/// exchange theirs, so that each holds the result; results go down. A crown of one is a
/// root; a crown of everybody needs the fewest hops. Every gateway of the group is either
/// in the crown or has a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its part of the buffer, relative to the other trees'. The express tree has none: it
    /// takes buffers of at most [`Plan::express_bytes`], and those whole.
    pub share: u64,
    /// What goes along it.
    pub carries: Carries,
    /// The gateways at the top, ascending.
    pub crown: Vec<GatewayId>,
    /// Everybody else's parent.
    pub parents: BTreeMap<GatewayId, GatewayId>,
}

/// What goes along a tree. Where ports carry more one way than the other, partials take one tree and
/// results the next one of the plan, which has the same share and the same root: what a port takes in
/// follows from the first, what it sends from the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Carries {
    /// Partials up and results down.
    Both = 0,
    /// Partials up; the tree behind it has the results.
    Partials = 1,
    /// Results down, of the tree before it.
    Results = 2,
}

impl Carries {
    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "partials and results",
            Self::Partials => "partials",
            Self::Results => "results",
        }
    }
    /// What has wire code `code`.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Both, Self::Partials, Self::Results].into_iter().find(|known| *known as u8 == code)
    }
    /// Whether partials go up.
    pub fn partials(self) -> bool {
        self != Self::Results
    }
    /// Whether results come down.
    pub fn results(self) -> bool {
        self != Self::Partials
    }
}

/// What one gateway does in one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Gateways whose partials come up to this one, ascending.
    pub children: Vec<GatewayId>,
    /// Where its own partial goes.
    pub above: Above,
}

/// Where a partial goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Above {
    /// To the parent, from which the result comes down.
    Parent(GatewayId),
    /// To the others of the crown, of which this gateway is one; ascending.
    Crown(Vec<GatewayId>),
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A fabric of more regions than can be planned for.
    #[error("the fabric has {regions} regions, {REGIONS_MAX} at most can be planned for")]
    TooManyRegions {
        /// Regions in the fabric.
        regions: usize,
    },
    /// A plan that no message holds.
    #[error(
        "a plan of {trees} trees over {gateways} gateways takes {bytes} bytes, more than one \
         message between gateways holds: use fewer gateways"
    )]
    TooLarge {
        /// Trees of the plan.
        trees: usize,
        /// Gateways in the fabric.
        gateways: usize,
        /// Encoded length.
        bytes: usize,
    },
}

/// Chooses the plan for a fabric: that of the least time for a large buffer, the simpler one
/// of two that are within half a percent, and an express tree for buffers up to a size where that
/// is sooner. The same fabric always gives the same plan.
///
/// # Errors
/// [`PlanError`] when the fabric is too large.
pub fn plan(fabric: &Fabric) -> Result<Plan, PlanError> {
    let (regions, gateways) = (fabric.regions().len(), fabric.gateways().len());
    if regions > REGIONS_MAX {
        return Err(PlanError::TooManyRegions { regions });
    }
    let mut plan = choose::choose(fabric);
    plan.segment = windows::segment_for_pairs(fabric, &plan);
    express::add(fabric, &mut plan);
    debug_assert!(plan.trees.len() <= trees_max(fabric), "others would refuse it");
    let (bytes, most) = (crate::wire::plan_bytes(&plan).len(), bytes_max(gateways));
    if bytes > most {
        return Err(PlanError::TooLarge { trees: plan.trees.len(), gateways, bytes });
    }
    Ok(plan)
}

/// The longest plan that fits a message, with a boot id for each gateway.
fn bytes_max(gateways: usize) -> usize {
    crate::wire::MAX_MESSAGE_BYTES - ROOM_BESIDE_PLAN - 8 * gateways
}

impl Plan {
    /// What `gateway` does in each tree.
    pub fn roles(&self, gateway: GatewayId) -> Vec<Role> {
        self.trees.iter().map(|tree| tree.role(gateway)).collect()
    }

    /// Whether partials and results take trees of their own.
    pub fn is_apart(&self) -> bool {
        self.trees.iter().any(|tree| tree.carries == Carries::Results)
    }

    /// Whether the tail of what crosses a link is repaired.
    pub fn repair(&self, link: &Link, mtu: u16) -> Repair {
        Repair::of(link, mtu, self.segment.get())
    }

    /// FNV-1a of the plan's wire form without its reason, since that says why and not what: equal
    /// hashes give equal bits, run after run.
    pub fn hash(&self) -> u64 {
        let unsaid = Self { reason: String::new(), ..self.clone() };
        crate::wire::plan_bytes(&unsaid)
            .into_iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

impl Tree {
    /// Whether it takes small buffers, whole.
    pub fn is_express(&self) -> bool {
        self.share == 0
    }

    /// The pairs of gateways that exchange along it.
    pub fn edges(&self) -> impl Iterator<Item = (GatewayId, GatewayId)> {
        let crown =
            self.crown.iter().enumerate().flat_map(|(index, one)| {
                self.crown[index + 1..].iter().map(|other| (*one, *other))
            });
        self.parents.iter().map(|(child, parent)| (*child, *parent)).chain(crown)
    }

    /// What `gateway` does in it.
    pub fn role(&self, gateway: GatewayId) -> Role {
        let children = self.parents.iter().filter(|(_, parent)| **parent == gateway);
        let above = match self.parents.get(&gateway) {
            Some(parent) => Above::Parent(*parent),
            None => Above::Crown(self.crown.clone()),
        };
        Role { children: children.map(|(child, _)| *child).collect(), above }
    }
}

/// Bytes of the message that brings a plan, beside the plan and a boot id for each gateway.
const ROOM_BESIDE_PLAN: usize = 64;

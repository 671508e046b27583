//! The data of a plan: its trees, their shares, and the role of a gateway in a tree.
//!
//! The planner makes it, the session follows it, and the wire carries it. It calls nothing.

use crate::ids::GatewayId;
use std::collections::BTreeMap;
use units::ByteCount;

/// The plan of an epoch: the trees over which every collective of the epoch runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm chosen.
    pub algorithm: Algorithm,
    /// The reason for the choice, for people; no part of [`Plan::hash`].
    pub reason: String,
    /// Bytes of a segment, the unit of pipelining.
    pub segment: ByteCount,
    /// The largest buffer that takes the express tree; 0 where there is none.
    pub express_bytes: ByteCount,
    /// The trees. Those with a share divide a buffer; one without is the express tree.
    pub trees: Vec<Tree>,
}

/// The algorithm by which regions exchange partials and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// One region; nothing crosses the long haul.
    Local = 1,
    /// Two regions; both send their partial, and both add.
    Swap = 2,
    /// Each region owns a share, reduces it and sends the result to all others.
    Direct = 3,
    /// Several trees, in which some regions relay for pairs without a good link.
    Relay = 4,
    /// One region reduces for all.
    Hub = 5,
}

impl Algorithm {
    /// Returns the algorithm's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Swap => "swap",
            Self::Direct => "direct",
            Self::Relay => "relay",
            Self::Hub => "hub",
        }
    }
    /// Returns the algorithm with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Local, Self::Swap, Self::Direct, Self::Relay, Self::Hub];
        all.into_iter().find(|known| *known as u8 == code)
    }
}

/// One tree over all gateways of a job.
///
/// Partials are reduced on the way up to the root set. Its members exchange their partials, so
/// that each holds the result. Results go down the same edges. A root set of one gateway is an
/// ordinary root; a root set of all gateways needs the fewest hops. Every gateway is either in the
/// root set or has a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Part of the buffer, relative to the other trees' shares. The express tree has share 0: it
    /// takes whole buffers of at most [`Plan::express_bytes`].
    pub share: u64,
    /// Directions in which data flow along the tree.
    pub direction: TreeDirection,
    /// The root set: the gateways at the top, ascending.
    pub roots: Vec<GatewayId>,
    /// Parent of every gateway outside the root set.
    pub parents: BTreeMap<GatewayId, GatewayId>,
}

/// Directions in which data flow along a tree.
///
/// Where ports have unequal rates in and out, partials take one tree and results the next tree of
/// the plan. Both have the same share and the same root. The first fits the ports' ingress, the
/// second their egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TreeDirection {
    /// Partials go up and results come down.
    Both = 0,
    /// Partials go up; results take the next tree of the plan.
    Partials = 1,
    /// Results come down; their partials took the tree before it.
    Results = 2,
}

impl TreeDirection {
    /// Returns the direction's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "partials and results",
            Self::Partials => "partials",
            Self::Results => "results",
        }
    }
    /// Returns the direction with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Both, Self::Partials, Self::Results].into_iter().find(|known| *known as u8 == code)
    }
    /// Whether partials go up the tree.
    pub fn has_partials(self) -> bool {
        self != Self::Results
    }
    /// Whether results come down the tree.
    pub fn has_results(self) -> bool {
        self != Self::Partials
    }
}

/// The place of one gateway in one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Gateways whose partials come up to this one, ascending.
    pub children: Vec<GatewayId>,
    /// Destination of the gateway's own partial.
    pub upstream: Upstream,
}

/// Destination of a gateway's partial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// The parent, from which the result comes down.
    Parent(GatewayId),
    /// The root set, ascending; this gateway is a member and sends to the others.
    RootSet(Vec<GatewayId>),
}

impl Plan {
    /// Returns the role of `gateway` in each tree of the plan.
    pub fn roles(&self, gateway: GatewayId) -> Vec<Role> {
        self.trees.iter().map(|tree| tree.role(gateway)).collect()
    }

    /// Whether some partials and results take separate trees.
    pub fn has_separate_trees(&self) -> bool {
        self.trees.iter().any(|tree| tree.direction == TreeDirection::Results)
    }

    /// Returns the size of the largest buffer that takes the express tree; `None` without an
    /// express tree.
    pub fn express_limit(&self) -> Option<ByteCount> {
        self.trees.iter().any(Tree::is_express).then_some(self.express_bytes)
    }

    /// Whether a buffer of `bytes` bytes takes the express tree.
    pub fn uses_express(&self, bytes: u64) -> bool {
        self.express_limit().is_some_and(|most| bytes <= most.get())
    }
}

impl Tree {
    /// Whether this is the express tree, which takes small buffers whole.
    pub fn is_express(&self) -> bool {
        self.share == 0
    }

    /// Returns the pairs of gateways that exchange data along the tree.
    pub fn edges(&self) -> impl Iterator<Item = (GatewayId, GatewayId)> {
        let roots =
            self.roots.iter().enumerate().flat_map(|(index, one)| {
                self.roots[index + 1..].iter().map(|other| (*one, *other))
            });
        self.parents.iter().map(|(child, parent)| (*child, *parent)).chain(roots)
    }

    /// Returns the role of `gateway` in the tree.
    pub fn role(&self, gateway: GatewayId) -> Role {
        let children = self.parents.iter().filter(|(_, parent)| **parent == gateway);
        let upstream = match self.parents.get(&gateway) {
            Some(parent) => Upstream::Parent(*parent),
            None => Upstream::RootSet(self.roots.clone()),
        };
        Role { children: children.map(|(child, _)| *child).collect(), upstream }
    }
}

//! The data of a plan.

use crate::ids::GatewayId;
use std::collections::BTreeMap;
use units::ByteCount;

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

/// One tree. Partials are reduced on the way up to the root set; the members of the root set
/// exchange theirs, so that each holds the result; results go down. A root set of one is a
/// root; a root set of everybody needs the fewest hops. Every gateway of the group is either
/// in the root set or has a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its part of the buffer, relative to the other trees'. The express tree has none: it
    /// takes buffers of at most [`Plan::express_bytes`], and those whole.
    pub share: u64,
    /// What goes along it.
    pub direction: TreeDirection,
    /// The gateways at the top, ascending.
    pub roots: Vec<GatewayId>,
    /// Everybody else's parent.
    pub parents: BTreeMap<GatewayId, GatewayId>,
}

/// What goes along a tree. Where ports carry more one way than the other, partials take one tree and
/// results the next one of the plan, which has the same share and the same root: what a port takes in
/// follows from the first, what it sends from the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TreeDirection {
    /// Partials up and results down.
    Both = 0,
    /// Partials up; the tree behind it has the results.
    Partials = 1,
    /// Results down, of the tree before it.
    Results = 2,
}

impl TreeDirection {
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
    pub fn has_partials(self) -> bool {
        self != Self::Results
    }
    /// Whether results come down.
    pub fn has_results(self) -> bool {
        self != Self::Partials
    }
}

/// What one gateway does in one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Gateways whose partials come up to this one, ascending.
    pub children: Vec<GatewayId>,
    /// Where its own partial goes.
    pub upstream: Upstream,
}

/// Where a partial goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// To the parent, from which the result comes down.
    Parent(GatewayId),
    /// To the others of the root set, of which this gateway is one; ascending.
    Crown(Vec<GatewayId>),
}

impl Plan {
    /// What `gateway` does in each tree.
    pub fn roles(&self, gateway: GatewayId) -> Vec<Role> {
        self.trees.iter().map(|tree| tree.role(gateway)).collect()
    }

    /// Whether partials and results take trees of their own.
    pub fn has_separate_trees(&self) -> bool {
        self.trees.iter().any(|tree| tree.direction == TreeDirection::Results)
    }

    /// The largest buffer that takes the express tree, if there is one.
    pub fn express_limit(&self) -> Option<ByteCount> {
        self.trees.iter().any(Tree::is_express).then_some(self.express_bytes)
    }

    /// Whether a buffer of this size takes the express tree.
    pub fn uses_express(&self, bytes: u64) -> bool {
        self.express_limit().is_some_and(|most| bytes <= most.get())
    }
}

impl Tree {
    /// Whether it takes small buffers, whole.
    pub fn is_express(&self) -> bool {
        self.share == 0
    }

    /// The pairs of gateways that exchange along it.
    pub fn edges(&self) -> impl Iterator<Item = (GatewayId, GatewayId)> {
        let roots =
            self.roots.iter().enumerate().flat_map(|(index, one)| {
                self.roots[index + 1..].iter().map(|other| (*one, *other))
            });
        self.parents.iter().map(|(child, parent)| (*child, *parent)).chain(roots)
    }

    /// What `gateway` does in it.
    pub fn role(&self, gateway: GatewayId) -> Role {
        let children = self.parents.iter().filter(|(_, parent)| **parent == gateway);
        let above = match self.parents.get(&gateway) {
            Some(parent) => Upstream::Parent(*parent),
            None => Upstream::RootSet(self.roots.clone()),
        };
        Role { children: children.map(|(child, _)| *child).collect(), above }
    }
}

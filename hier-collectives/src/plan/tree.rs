//! One tree of a plan: its share, its directions, and the role of a gateway in it.

use crate::ids::GatewayId;
use std::collections::BTreeMap;

/// One tree over all gateways of a job.
///
/// Partials are reduced on the way up to the root set. Its members exchange their partials, so
/// that each holds the result. Results go down the same edges. A root set of one gateway is an
/// ordinary root; a root set of all gateways needs the fewest hops. Every gateway is either in the
/// root set or has a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Part of the buffer, relative to the other trees' shares. The express tree has share 0: it
    /// takes whole buffers of at most [`Plan::express_bytes`](super::Plan::express_bytes).
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
pub struct TreeRole {
    /// Gateways whose partials come up to this one, ascending.
    pub children: Vec<GatewayId>,
    /// Destination of the gateway's own partial.
    pub upstream: TreeUpstream,
}

/// Destination of a gateway's partial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeUpstream {
    /// The parent, from which the result comes down.
    Parent(GatewayId),
    /// The root set, ascending; this gateway is a member and sends to the others.
    RootSet(Vec<GatewayId>),
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
    pub fn role(&self, gateway: GatewayId) -> TreeRole {
        let children = self.parents.iter().filter(|(_, parent)| **parent == gateway);
        let upstream = match self.parents.get(&gateway) {
            Some(parent) => TreeUpstream::Parent(*parent),
            None => TreeUpstream::RootSet(self.roots.clone()),
        };
        TreeRole { children: children.map(|(child, _)| *child).collect(), upstream }
    }
}

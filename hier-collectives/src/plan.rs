//! Who owns what, along which trees: data, computed once per epoch and sent to everybody.

use crate::ids::GatewayId;
use crate::topology::{Fabric, Link};
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
    /// The trees; together they carry the whole buffer.
    pub trees: Vec<Tree>,
}

/// How regions exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// One gateway: nothing crosses the long haul.
    Local = 1,
    /// Both send their partial, both add.
    Swap = 2,
}

impl Algorithm {
    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Swap => "swap",
        }
    }
    /// The algorithm with wire code `code`.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Local, Self::Swap].into_iter().find(|known| *known as u8 == code)
    }
}

/// One tree. Partials are reduced on the way up to the crown; the members of the crown
/// exchange theirs, so that each holds the result; results go down. A crown of one is a
/// root; a crown of everybody needs the fewest hops. Every gateway of the group is either
/// in the crown or has a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its part of the buffer, relative to the other trees'.
    pub share: u64,
    /// The gateways at the top, ascending.
    pub crown: Vec<GatewayId>,
    /// Everybody else's parent.
    pub parents: BTreeMap<GatewayId, GatewayId>,
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
    /// A shape for which no algorithm is there yet.
    #[error(
        "no plan for {regions} regions with {gateways} gateways: \
         supported are one gateway, or two regions with one gateway each"
    )]
    Unsupported {
        /// Regions in the fabric.
        regions: usize,
        /// Gateways in the fabric.
        gateways: usize,
    },
}

/// A plan that is none: some contribution would not reach every result exactly once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tree {tree}: {text}")]
pub struct PlanFault {
    /// The tree.
    pub tree: usize,
    /// What is wrong with it.
    pub text: String,
}

/// Chooses the plan for a fabric.
///
/// # Errors
/// [`PlanError`] when no algorithm covers the fabric's shape.
pub fn plan(fabric: &Fabric) -> Result<Plan, PlanError> {
    let (regions, gateways) = (fabric.regions().len(), fabric.gateways().len());
    let crown: Vec<GatewayId> = fabric.gateway_ids().collect();
    let (algorithm, reason) = match (regions, gateways) {
        (1, 1) => (Algorithm::Local, "one gateway serves every rank".to_owned()),
        (2, 2) => (
            Algorithm::Swap,
            "two regions: both send their partial once and both add, which takes S/B and one \
             one-way delay, the least possible"
                .to_owned(),
        ),
        _ => return Err(PlanError::Unsupported { regions, gateways }),
    };
    let trees = vec![Tree { share: 1, crown, parents: BTreeMap::new() }];
    Ok(Plan { algorithm, reason, segment: segment_bytes(fabric), trees })
}

/// QUIC connections a link is striped over: one per 8 Gbit/s (20 with jumbo frames), at
/// least four so that equal-cost paths are all used, at most sixteen.
pub fn lanes(fabric: &Fabric) -> u16 {
    let per_lane = if fabric.mtu() >= 8_000 { 20_000_000_000 } else { 8_000_000_000 };
    let fastest = fabric.links().iter().map(|link| link.rate.bits_per_second()).max().unwrap_or(0);
    u16::try_from(fastest.div_ceil(per_lane).clamp(4, 16)).unwrap_or(16)
}

/// Bandwidth-delay product of a link.
pub fn bdp(link: &Link) -> ByteCount {
    let bits = u128::from(link.rate.bits_per_second()) * u128::from(link.rtt.ns()) / 1_000_000_000;
    ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
}

/// Bytes a gateway may send to a peer beyond its grants, and that the peer keeps room for:
/// one BDP, so that distance costs nothing when posts are not simultaneous; at least four
/// segments.
pub fn early_bytes(fabric: &Fabric, one: GatewayId, other: GatewayId, plan: &Plan) -> ByteCount {
    let (from, to) = (fabric.gateway(one).region, fabric.gateway(other).region);
    let window = fabric.link(from, to).map_or(0, |link| bdp(link).get());
    ByteCount::new(window.max(4 * plan.segment.get()))
}

/// A quarter of the largest BDP per lane, as a power of two from 256 KiB to 4 MiB: small
/// enough that the last segments of all lanes end together, large enough that a header and
/// a receipt cost nothing.
pub fn segment_bytes(fabric: &Fabric) -> ByteCount {
    let largest = fabric.links().iter().map(|link| bdp(link).get()).max().unwrap_or(0);
    let wanted = (largest / (4 * u64::from(lanes(fabric)))).clamp(256 << 10, 4 << 20);
    ByteCount::new(1 << wanted.ilog2())
}

impl Plan {
    /// What `gateway` does in each tree.
    pub fn roles(&self, gateway: GatewayId) -> Vec<Role> {
        self.trees.iter().map(|tree| tree.role(gateway)).collect()
    }

    /// FNV-1a of the plan's wire form: equal hashes give equal bits, run after run.
    pub fn hash(&self) -> u64 {
        crate::wire::plan_bytes(self).into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Proves that in every tree each gateway's contribution reaches every gateway's result
    /// exactly once, for a group of `gateways` gateways.
    ///
    /// # Errors
    /// [`PlanFault`] naming the tree and the gateway.
    pub fn prove(&self, gateways: u16) -> Result<(), PlanFault> {
        let fault = |tree, text: String| Err(PlanFault { tree, text });
        if self.trees.is_empty() || self.segment.get() < 64 {
            return fault(0, "no tree, or segments below 64 bytes".to_owned());
        }
        if self.trees.len() > usize::from(u16::MAX) || self.segment.get() > 64 << 20 {
            return fault(0, "too many trees, or segments above 64 MiB".to_owned());
        }
        for (index, tree) in self.trees.iter().enumerate() {
            if let Err(text) = tree.prove(gateways) {
                return fault(index, text);
            }
        }
        Ok(())
    }
}

impl Tree {
    fn role(&self, gateway: GatewayId) -> Role {
        let children = self.parents.iter().filter(|(_, parent)| **parent == gateway);
        let above = match self.parents.get(&gateway) {
            Some(parent) => Above::Parent(*parent),
            None => Above::Crown(self.crown.clone()),
        };
        Role { children: children.map(|(child, _)| *child).collect(), above }
    }

    /// Follows every contribution up to the crown. Each has one way up (one parent) and the
    /// crown one exchange, so reaching the crown is reaching every result exactly once.
    fn prove(&self, gateways: u16) -> Result<(), String> {
        if self.share == 0 || self.crown.is_empty() {
            return Err("an empty share or an empty crown".to_owned());
        }
        if !self.crown.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("the crown is not in ascending order".to_owned());
        }
        let strange = |id: &&GatewayId| id.0 >= gateways;
        if let Some(id) = self.crown.iter().chain(self.parents.keys()).find(strange) {
            return Err(format!("gateway {id} is not in the group"));
        }
        for start in (0..gateways).map(GatewayId) {
            let (mut at, mut hops) = (start, 0);
            while let Some(parent) = self.parents.get(&at) {
                if self.crown.contains(&at) {
                    return Err(format!("gateway {at} is in the crown and has a parent"));
                }
                (at, hops) = (*parent, hops + 1);
                if hops > gateways {
                    return Err(format!("gateway {start} is on a cycle"));
                }
            }
            if !self.crown.contains(&at) {
                return Err(format!("gateway {start} does not reach the crown"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(crown: &[u16], parents: &[(u16, u16)]) -> Tree {
        let parents = parents.iter().map(|(a, b)| (GatewayId(*a), GatewayId(*b))).collect();
        Tree { share: 1, crown: crown.iter().copied().map(GatewayId).collect(), parents }
    }

    fn plan_of(tree: Tree) -> Plan {
        let segment = ByteCount::new(1 << 20);
        Plan { algorithm: Algorithm::Swap, reason: String::new(), segment, trees: vec![tree] }
    }

    #[test]
    fn a_fault_in_a_tree_is_found() {
        assert_eq!(plan_of(tree(&[0, 1], &[])).prove(2), Ok(()));
        assert_eq!(plan_of(tree(&[0], &[(1, 0), (2, 1)])).prove(3), Ok(()));
        for bad in [
            tree(&[0], &[]),
            tree(&[0], &[(1, 2), (2, 1)]),
            tree(&[0, 1], &[(1, 0)]),
            tree(&[1, 0], &[]),
            tree(&[0, 2], &[(1, 0)]),
            tree(&[], &[]),
        ] {
            assert!(plan_of(bad.clone()).prove(2).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// An independent check by flooding: up along the parents, across the crown.
        #[test]
        fn the_proof_agrees_with_counting_paths(
            parents in proptest::collection::vec(0u16..6, 6),
            top in 0u16..64,
        ) {
            let crown: Vec<u16> = (0..6).filter(|id| top >> id & 1 == 1).collect();
            let edges: Vec<(u16, u16)> = (0..6u16)
                .filter(|id| !crown.contains(id))
                .map(|id| (id, parents[usize::from(id)]))
                .collect();
            let reaches = |start: u16| {
                let mut at = start;
                for _ in 0..7 {
                    match edges.iter().find(|(child, _)| *child == at) {
                        Some((_, parent)) => at = *parent,
                        None => return crown.contains(&at),
                    }
                }
                false
            };
            let all = !crown.is_empty() && (0..6).all(reaches);
            prop_assert_eq!(plan_of(tree(&crown, &edges)).prove(6).is_ok(), all);
        }
    }
}

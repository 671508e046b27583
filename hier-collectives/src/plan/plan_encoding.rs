//! The wire form of a plan, and the hash that names it.

use super::plan_data::{BlockTree, Plan, PlanAlgorithm};
use super::tree::{Tree, TreeDirection};
use crate::codec::{
    DecodeError, FieldReader, fnv1a_hash, write_text, write_u16, write_u32, write_u64,
};
use crate::ids::{GatewayId, RegionId};
use crate::wire::MESSAGE_BYTES_MAX;
use std::collections::BTreeMap;
use units::ByteCount;

/// Returns the largest encoded plan, in bytes, that fits a message beside one boot id for each
/// gateway.
pub(super) fn plan_encoding_bytes_max(gateways: usize) -> usize {
    MESSAGE_BYTES_MAX - PLAN_MESSAGE_OTHER_BYTES - 8 * gateways
}

/// 64 bytes of the 1 MiB message that carries a plan: an upper bound for its fields of fixed
/// length, which are all but plan and boot ids. A plan that does not fit beside these 64 bytes and
/// the boot ids is refused.
const PLAN_MESSAGE_OTHER_BYTES: usize = 64;

impl Plan {
    /// Returns the FNV-1a hash of the plan's wire form without its reason.
    ///
    /// Plans of equal hashes give equal bits, run after run.
    pub fn encoding_hash(&self) -> u64 {
        fnv1a_hash(&plan_encoding(&Self { reason: String::new(), ..self.clone() }))
    }

    /// Appends the plan to the message `out`: algorithm, segment, express limit, reason, trees, trees
    /// of blocks, and the least bytes for these.
    pub(crate) fn write_encoding(&self, out: &mut Vec<u8>) {
        out.push(self.algorithm as u8);
        write_u64(out, self.segment.get());
        write_u64(out, self.express_bytes.get());
        write_text(out, &self.reason);
        write_u16(out, u16::try_from(self.trees.len()).unwrap_or(u16::MAX));
        for tree in &self.trees {
            write_u64(out, tree.share);
            out.push(tree.direction as u8);
            write_u16(out, u16::try_from(tree.roots.len()).unwrap_or(u16::MAX));
            tree.roots.iter().for_each(|id| write_u16(out, id.0));
            write_parents(out, tree.parents.iter().map(|(child, parent)| (child.0, parent.0)));
        }
        write_u16(out, u16::try_from(self.block_trees.len()).unwrap_or(u16::MAX));
        for tree in &self.block_trees {
            write_u16(out, tree.root.0);
            write_u32(out, tree.share);
            write_parents(out, tree.parents.iter().map(|(child, parent)| (child.0, parent.0)));
        }
        write_u64(out, self.block_bytes_min.get());
    }

    /// Reads a plan: algorithm, segment, express limit, reason, trees, trees of blocks,
    /// and the least bytes for these.
    pub(crate) fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let algorithm =
            PlanAlgorithm::from_code(reader.read_u8()?).ok_or(DecodeError::Unknown("algorithm"))?;
        let segment = ByteCount::new(reader.read_u64()?);
        let express_bytes = ByteCount::new(reader.read_u64()?);
        let reason = reader.read_text()?;
        let count = reader.read_u16()?;
        let trees = (0..count).map(|_| Tree::read_encoding(reader)).collect::<Result<_, _>>()?;
        let count = reader.read_u16()?;
        let block_tree = |_| BlockTree::read_encoding(reader);
        let block_trees = (0..count).map(block_tree).collect::<Result<_, _>>()?;
        let block_bytes_min = ByteCount::new(reader.read_u64()?);
        Ok(Self { algorithm, reason, segment, express_bytes, trees, block_trees, block_bytes_min })
    }
}

impl Tree {
    /// Reads one tree of a plan: share, direction, roots, and the parent of each other gateway.
    fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let share = reader.read_u64()?;
        let direction =
            TreeDirection::from_code(reader.read_u8()?).ok_or(DecodeError::Unknown("tree"))?;
        let roots = usize::from(reader.read_u16()?);
        let mut fields = FieldReader(reader.read_bytes(roots * 2)?);
        let roots =
            (0..roots).map(|_| fields.read_u16().map(GatewayId)).collect::<Result<_, _>>()?;
        let parents = read_parents(reader, GatewayId)?;
        Ok(Self { share, direction, roots, parents })
    }
}

impl BlockTree {
    /// Reads one tree of blocks: root, share, and the parent of each other region.
    fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let root = RegionId(reader.read_u16()?);
        let share = reader.read_u32()?;
        Ok(Self { root, share, parents: read_parents(reader, RegionId)? })
    }
}

/// Appends the parent of each node of a tree.
fn write_parents(out: &mut Vec<u8>, parents: impl ExactSizeIterator<Item = (u16, u16)>) {
    write_u16(out, u16::try_from(parents.len()).unwrap_or(u16::MAX));
    for (child, parent) in parents {
        write_u16(out, child);
        write_u16(out, parent);
    }
}

/// Reads the parent of each node of a tree; `node` makes a node of its number.
fn read_parents<N: Ord>(
    reader: &mut FieldReader<'_>,
    node: impl Fn(u16) -> N,
) -> Result<BTreeMap<N, N>, DecodeError> {
    let count = usize::from(reader.read_u16()?);
    let mut fields = FieldReader(reader.read_bytes(count * 4)?);
    let mut parents = BTreeMap::new();
    for _ in 0..count {
        let (child, parent) = (node(fields.read_u16()?), node(fields.read_u16()?));
        // Ascending, so that a plan has one wire form and one hash.
        if parents.last_key_value().is_some_and(|(last, _)| *last >= child) {
            return Err(DecodeError::Invalid("order of parents"));
        }
        parents.insert(child, parent);
    }
    Ok(parents)
}

/// Returns the wire form of a plan.
pub(super) fn plan_encoding(plan: &Plan) -> Vec<u8> {
    let mut out = Vec::new();
    plan.write_encoding(&mut out);
    out
}

//! The wire form of a plan, and the hash that names it.

use super::tree::{Algorithm, Plan, Tree, TreeDirection};
use crate::codec::{DecodeError, Reader, fnv1a, put_text, put_u16, put_u64};
use crate::ids::GatewayId;
use crate::wire::MAX_MESSAGE_BYTES;
use std::collections::BTreeMap;
use units::ByteCount;

/// Largest encoded plan in bytes that fits a message beside one boot id for each gateway.
pub(super) fn bytes_max(gateways: usize) -> usize {
    MAX_MESSAGE_BYTES - OTHER_FIELDS_BYTES - 8 * gateways
}

/// 64 bytes for the other fields of the message that carries a plan.
const OTHER_FIELDS_BYTES: usize = 64;

impl Plan {
    /// FNV-1a of the plan's wire form without its reason. Plans of equal hashes give equal bits,
    /// run after run.
    pub fn hash(&self) -> u64 {
        fnv1a(&plan_bytes(&Self { reason: String::new(), ..self.clone() }))
    }
}

/// Appends a plan: algorithm, segment, express limit, reason, trees.
pub(crate) fn put_plan(out: &mut Vec<u8>, plan: &Plan) {
    out.push(plan.algorithm as u8);
    put_u64(out, plan.segment.get());
    put_u64(out, plan.express_bytes.get());
    put_text(out, &plan.reason);
    put_u16(out, u16::try_from(plan.trees.len()).unwrap_or(u16::MAX));
    for tree in &plan.trees {
        put_u64(out, tree.share);
        out.push(tree.direction as u8);
        put_u16(out, u16::try_from(tree.roots.len()).unwrap_or(u16::MAX));
        tree.roots.iter().for_each(|id| put_u16(out, id.0));
        put_u16(out, u16::try_from(tree.parents.len()).unwrap_or(u16::MAX));
        for (child, parent) in &tree.parents {
            put_u16(out, child.0);
            put_u16(out, parent.0);
        }
    }
}

/// The wire form of a plan.
pub(super) fn plan_bytes(plan: &Plan) -> Vec<u8> {
    let mut out = Vec::new();
    put_plan(&mut out, plan);
    out
}

impl Reader<'_> {
    /// Reads a plan.
    pub(crate) fn plan(&mut self) -> Result<Plan, DecodeError> {
        let algorithm =
            Algorithm::from_code(self.u8()?).ok_or(DecodeError::Unknown("algorithm"))?;
        let segment = ByteCount::new(self.u64()?);
        let express_bytes = ByteCount::new(self.u64()?);
        let reason = self.text()?;
        let count = self.u16()?;
        let trees = (0..count).map(|_| self.tree()).collect::<Result<_, _>>()?;
        Ok(Plan { algorithm, reason, segment, express_bytes, trees })
    }
    fn tree(&mut self) -> Result<Tree, DecodeError> {
        let share = self.u64()?;
        let direction = TreeDirection::from_code(self.u8()?).ok_or(DecodeError::Unknown("tree"))?;
        let roots = usize::from(self.u16()?);
        let mut fields = Reader(self.take(roots * 2)?);
        let roots = (0..roots).map(|_| fields.u16().map(GatewayId)).collect::<Result<_, _>>()?;
        let count = usize::from(self.u16()?);
        let mut fields = Reader(self.take(count * 4)?);
        let mut parents = BTreeMap::new();
        for _ in 0..count {
            let (child, parent) = (GatewayId(fields.u16()?), GatewayId(fields.u16()?));
            // Ascending, so that a plan has one wire form and one hash.
            if parents.last_key_value().is_some_and(|(last, _)| *last >= child) {
                return Err(DecodeError::Invalid("order of parents"));
            }
            parents.insert(child, parent);
        }
        Ok(Tree { share, direction, roots, parents })
    }
}

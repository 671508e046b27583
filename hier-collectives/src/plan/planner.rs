//! Makes the plan of a fabric.

use super::choice;
use super::encoding::{bytes_max, plan_bytes};
use super::sizing::{segment_for_pairs, trees_max};
use super::tree::Plan;
use super::trees::express;
use crate::topology::Fabric;

/// Regions above which there is no plan: pricing trees takes time with their square.
pub const REGIONS_MAX: usize = 256;

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
    let mut plan = choice::choose(fabric);
    plan.segment = segment_for_pairs(fabric, &plan);
    express::add(fabric, &mut plan);
    debug_assert!(plan.trees.len() <= trees_max(fabric), "others would refuse it");
    let (bytes, most) = (plan_bytes(&plan).len(), bytes_max(gateways));
    if bytes > most {
        return Err(PlanError::TooLarge { trees: plan.trees.len(), gateways, bytes });
    }
    Ok(plan)
}

//! Makes the plan of a fabric.
//!
//! The daemon, the session (after a change of link rates) and `landbridge plan` call it. It calls
//! the choice of an algorithm, the express tree and the segment size, all of them pure functions.

use super::plan_choice;
use super::plan_data::Plan;
use super::plan_encoding::{plan_encoding, plan_encoding_bytes_max};
use super::plan_limits::plan_trees_limit;
use super::segment_size::segment_size_for_pairs;
use super::trees::{block_trees, express};
use crate::topology::Fabric;

/// 256 regions: a fabric with more gets no plan, but an error. Planning time grows with the square
/// of the number of regions, so the limit is chosen.
pub const REGIONS_MAX: usize = 256;

/// Why a fabric has no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The fabric has more regions than can be planned for.
    #[error(
        "the fabric has {regions} regions, more than the {REGIONS_MAX} that can be planned for: use fewer regions"
    )]
    TooManyRegions {
        /// Regions in the fabric.
        regions: usize,
    },
    /// The plan does not fit one message.
    #[error(
        "a plan of {trees} trees over {gateways} gateways takes {bytes} bytes, more than one \
         message between gateways holds: use fewer gateways"
    )]
    TooLarge {
        /// Trees of the plan.
        trees: usize,
        /// Gateways in the fabric.
        gateways: usize,
        /// Encoded length of the plan in bytes.
        bytes: usize,
    },
}

/// Makes the plan for a fabric.
///
/// A witness is in no plan. The plan has the least time for a large buffer; of two within 0.5 % it is the simpler one. An
/// express tree is added for buffers up to the size at which it is sooner. One fabric always gives
/// one plan.
///
/// # Errors
/// [`PlanError`] when the fabric is too large.
pub fn make_plan(fabric: &Fabric) -> Result<Plan, PlanError> {
    let fabric = &fabric.without_witness();
    let (regions, gateways) = (fabric.regions().len(), fabric.gateways().len());
    if regions > REGIONS_MAX {
        return Err(PlanError::TooManyRegions { regions });
    }
    let mut plan = plan_choice::choose_large_plan(fabric);
    plan.segment = segment_size_for_pairs(fabric, &plan);
    express::add_express_tree(fabric, &mut plan);
    debug_assert!(plan.trees.len() <= plan_trees_limit(fabric), "peers would refuse the plan");
    let most = plan_encoding_bytes_max(gateways);
    block_trees::add_block_trees(fabric, &mut plan, most);
    let bytes = plan_encoding(&plan).len();
    if bytes > most {
        return Err(PlanError::TooLarge { trees: plan.trees.len(), gateways, bytes });
    }
    Ok(plan)
}

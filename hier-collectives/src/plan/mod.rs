//! The plan of an epoch: the trees and shares over which every collective runs.
//!
//! The first gateway of a job makes the plan from the fabric and sends it to all others. Nothing
//! here does I/O or reads a clock: the same fabric always gives the same plan.

mod analysis;
mod capacity;
mod choice;
mod encoding;
mod plan_data;
mod planner;
mod reroot;
mod sizing;
mod tree;
mod trees;

pub use crate::operation::{Operation, OperationPhases};
pub use analysis::forecast::{Forecast, GatewayLoad, LinkLoad};
pub use analysis::memory::{MemoryBound, relay_bytes};
pub use analysis::pair_shares::{
    PairShare, PairShares, RATE_RESERVE, pair_payload_rate, pair_shares,
};
pub use analysis::proof::PlanFault;
pub use plan_data::{Algorithm, Plan};
pub use planner::{PlanError, REGIONS_MAX, make_plan};
pub use sizing::{
    SEGMENT_BYTES_MAX, lane_count, result_window, segment_bytes, trees_max, unsolicited_window,
    unsolicited_window_bytes,
};
pub use tree::{Tree, TreeDirection, TreeRole, TreeUpstream};
pub use trees::baseline;
pub use trees::express::EXPRESS_MAX;

//! The plan of an epoch: the trees and shares over which every collective runs.
//!
//! The first gateway of a job makes the plan from the fabric and sends it to all others. Nothing
//! here does I/O or reads a clock: the same fabric always gives the same plan.

mod analysis;
mod fabric_capacity;
mod plan_choice;
mod plan_data;
mod plan_encoding;
mod plan_limits;
mod planner;
mod reroot;
mod root_shares;
mod segment_size;
mod tree;
mod trees;
mod window_size;

pub use crate::operation::{Operation, OperationPhases};
pub use analysis::forecast::{Forecast, GatewayLoad, LinkLoad};
pub use analysis::memory_bound::{MemoryBound, relay_memory_bound};
pub use analysis::pair_shares::{
    PairShare, PairShares, PortRates, RATE_RESERVE_FRACTION, pair_share_payload_rate, pair_shares,
};
pub use analysis::payload_flows::PayloadFlows;
pub use analysis::proof::PlanFault;
pub use analysis::traffic_mix::{TrafficMix, flows_of_operations};
pub use plan_data::{BlockTree, Plan, PlanAlgorithm};
pub use plan_limits::{plan_lanes_limit, plan_trees_limit};
pub use planner::{PlanError, REGIONS_MAX, make_plan};
pub use segment_size::SEGMENT_BYTES_MAX;
pub use segment_size::segment_size_of_fabric;
pub use tree::{Tree, TreeDirection, TreeRole, TreeUpstream};
pub use trees::baseline;
pub use trees::express::EXPRESS_MAX;
pub use trees::owner_trees::{OwnerTrees, OwnerWays};
pub use window_size::passed_on_window_size;
pub use window_size::relayed_window_size;
pub use window_size::result_window_size;
pub use window_size::unsolicited_window_size;
pub use window_size::unsolicited_window_size_of_link;

//! Who owns what, along which trees: data, computed once per epoch and sent to everybody.

mod capacity;
mod choice;
mod encoding;
mod flows;
mod forecast;
mod memory;
mod ownership;
mod pair_shares;
mod planner;
mod proof;
mod reroot;
mod sizing;
mod tree;
mod trees;

pub use crate::operation::{Operation, Phases};
pub(crate) use encoding::put_plan;
pub use forecast::{Forecast, GatewayLoad, LinkLoad};
pub use memory::{MemoryBound, relay_bytes};
pub use pair_shares::{PairShare, PairShares, RATE_RESERVE, pair_shares, payload_limit};
pub use planner::{PlanError, REGIONS_MAX, plan};
pub use proof::PlanFault;
pub use sizing::{
    SEGMENT_BYTES_MAX, lanes, result_window, segment_bytes, trees_max, unsolicited_window,
    unsolicited_window_over,
};
pub use tree::{Algorithm, Plan, Role, Tree, TreeDirection, Upstream};
pub use trees::baseline;
pub use trees::express::EXPRESS_MAX;

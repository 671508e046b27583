//! Who owns what, along which trees: data, computed once per epoch and sent to everybody.

mod capacity;
mod choice;
mod encoding;
mod flows;
mod forecast;
mod memory;
mod ownership;
mod pair_rates;
mod planner;
mod proof;
mod reroot;
mod sizing;
mod tree;
mod trees;

pub use crate::operation::{Operation, Phases};
pub(crate) use encoding::put_plan;
pub use forecast::{Forecast, GatewayLoad, LinkLoad};
pub use memory::{Memory, relay_bytes};
pub use pair_rates::{PairRate, PairRates, RATE_RESERVE, pair_rates, payload_limit};
pub use planner::{PlanError, REGIONS_MAX, plan};
pub use proof::PlanFault;
pub use sizing::{
    SEGMENT_BYTES_MAX, ahead_bytes, early_bytes, early_over, lanes, segment_bytes, trees_max,
};
pub use tree::{Above, Algorithm, Carries, Plan, Role, Tree};
pub use trees::baseline as control;
pub use trees::express::EXPRESS_MAX;

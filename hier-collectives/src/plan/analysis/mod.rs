//! Analysis of a plan: its payload flows, forecast, memory bound, pair shares and proof.
//!
//! Every file here reads a plan and changes none.

pub(crate) mod forecast;
pub(crate) mod memory_bound;
mod ownership;
pub(crate) mod pair_shares;
pub(in crate::plan) mod payload_flows;
pub(crate) mod proof;
pub(crate) mod traffic_mix;

//! Cross traffic: flows inside the simulator that share a link's queue with real packets.
//!
//! Each flow is sans-IO and lives in the time of the link. Its packets meet the queue like any
//! others, and its acknowledgements come back after the delay of the path.

mod ack_sample;
mod bbr;
mod cross_controller;
mod cross_engine;
mod cross_report;
mod cross_traffic;
mod cubic;
mod new_reno;
mod on_off;
mod window_flow;

pub(super) use cross_engine::{CrossEngine, CrossPacket, CrossStep};
pub use cross_report::{CrossReport, jain_fairness_of_cross_reports};
pub use cross_traffic::{CrossKind, CrossTraffic, CrossTrafficError};

//! Cross traffic: flows inside the simulator that share a link's queue with real packets.
//!
//! Each flow is sans-IO and lives in the time of the link. Its packets meet the queue like any
//! others, and its acknowledgements come back after the delay of the path.

mod ack_sample;
mod bbr;
mod controller;
mod cross_report;
mod cubic;
mod engine;
mod new_reno;
mod on_off;
mod traffic;
mod window_flow;

pub use cross_report::{CrossReport, jain_fairness};
pub(super) use engine::{CrossEngine, CrossPacket, CrossStep};
pub use traffic::{CrossKind, CrossTraffic, CrossTrafficError};

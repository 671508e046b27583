//! Whole gateways under virtual time: real sessions, real QUIC, simulated links.

pub mod collectives;
pub mod faults;
pub mod lab;
pub mod observe;
pub mod testbed;

pub use gateway::simulate::{simulated_address, simulated_dialling_address, simulated_lan_address};
pub use lab::jobs::{JOB, TOKEN};
pub use lab::running::{Lab, simulate};
pub use lab::shape::{EAST, Shape, WEST, carrier_address, mbit, ppm};

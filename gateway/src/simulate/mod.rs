//! Simulation of whole gateways in virtual time, with their sessions, QUIC and TLS, over the links
//! of `wan-sim`.
//!
//! `landbridge plan --simulate`, `landbridge plan efficiency` and the scenarios call it. Everything
//! runs on the caller's thread, under a paused clock.

mod addresses;
mod clock;
mod error;
mod keys;
mod network;
mod simulation;
mod spec;
mod training_step;
mod virtual_deployment;

pub use addresses::{simulated_address, simulated_lan_address};
pub use clock::run_with_simulated_clock;
pub use error::SimulateError;
pub use keys::{GatewayIdentity, KeyFolder};
pub use network::{NetworkLayout, SIMULATED_QUEUE_MIN};
pub use simulation::{SimulatedTraffic, Simulation, TimedCollective};
pub use spec::SimulationSpec;
pub use training_step::{StepLink, TrainingStep};
pub use virtual_deployment::{FabricSetup, VirtualDeployment, virtual_gateway_spec};

//! Simulation of whole gateways in virtual time, with their sessions, QUIC and TLS, over the links
//! of `wan-sim`.
//!
//! `landbridge plan --simulate`, `landbridge plan efficiency` and the scenarios call it. Everything
//! runs on the caller's thread, under a paused clock.

mod error;
mod key_folder;
mod network_layout;
mod simulated_addresses;
mod simulated_clock;
mod simulation;
mod simulation_spec;
mod training_step;
mod virtual_deployment;

pub use error::SimulateError;
pub use key_folder::{GatewayIdentity, KeyFolder};
pub use network_layout::{NetworkLayout, SIMULATED_QUEUE_MIN};
pub use simulated_addresses::{
    simulated_address, simulated_dialling_address, simulated_lan_address,
};
pub use simulated_clock::run_with_simulated_clock;
pub use simulation::{SimulatedTraffic, Simulation, TimedCollective};
pub use simulation_spec::SimulationSpec;
pub use training_step::{StepLink, TrainingStep};
pub use virtual_deployment::{FabricSetup, VirtualDeployment, virtual_deployment_gateway_spec};

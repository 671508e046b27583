//! One gateway, assembled on a host: the engine, the lanes and the local plane.
//!
//! [`Gateway::start`] makes the queues, starts every task, and returns a handle. `landbridge run`
//! calls it on the operating system, simulations and tests call it in virtual time.

mod descriptor_needs;
mod fabric_judge;
mod gateway;
mod job_settings;
mod kept_fabric;
mod link_setup;
mod memory_budget;
mod shutdown_messages;
mod spec;
mod start_fabric;
mod thread_needs;

pub use descriptor_needs::descriptor_needs;
pub use gateway::Gateway;
pub use kept_fabric::KeptFabric;
pub use memory_budget::{least_memory_budget, process_memory_budget_needs, reserved_memory_budget};
pub use spec::{GatewaySpec, ListenSpec, ObservabilitySpec, StartError};
pub use thread_needs::threads_needed;

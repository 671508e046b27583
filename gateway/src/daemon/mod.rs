//! One gateway, assembled on a host: the engine, the lanes and the local plane.
//!
//! [`Gateway::start`] makes the queues, starts every task, and returns a handle. `landbridge run`
//! calls it on the operating system, simulations and tests call it in virtual time.

mod descriptors;
mod gateway;
mod job_settings;
mod memory_budget;
mod peer_links;
mod spec;
mod thread_needs;

pub use descriptors::descriptors_needed;
pub use gateway::Gateway;
pub use memory_budget::{memory_needed, process_memory_needs, reserved_memory_bytes};
pub use spec::{GatewaySpec, ListenSpec, ObservabilitySpec, StartError};
pub use thread_needs::threads_needed;

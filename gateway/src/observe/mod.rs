//! Observing a gateway: metrics, status and health over HTTP.
//!
//! The HTTP server runs on the daemon's runtime, in a task for each connection. It reads metrics
//! itself, and requests the status from the engine's task. [`readiness`] judges a status: whether
//! the gateway is ready, and what is wrong.

pub mod fetch;
pub mod metrics;
pub mod readiness;
pub mod server;
pub mod status;
pub mod status_request;

#[cfg(test)]
mod tests;

//! Observing a gateway: metrics, status and health over HTTP.
//!
//! The HTTP server runs on the daemon's runtime, in a task for each connection. It reads metrics
//! itself, and requests the status from the engine's task. [`readiness`] judges a status: whether
//! the gateway is ready, and what is wrong. `status_page` shows a status to people, with the samples of
//! [`history`] and the map of [`fabric_report`].

mod answers;
pub mod engine_status_request;
pub mod fabric_report;
pub mod fetch_status;
pub mod history;
pub mod http_server;
pub mod membership_report;
pub mod metrics;
pub mod problem_cause;
pub mod readiness;
pub mod spans;
pub mod status;
mod status_page;
pub mod versioned;

#[cfg(test)]
mod tests;

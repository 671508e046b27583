//! Observing a gateway: metrics, status and health over HTTP.
//!
//! The HTTP server runs on the daemon's runtime, in a task for each connection. It reads metrics
//! itself, and requests the status from the engine's task. [`readiness`] judges a status: whether
//! the gateway is ready, and what is wrong. `page` shows a status to people, with the samples of
//! [`history`] and the map of [`fabric`].

mod answers;
pub mod engine_status_request;
pub mod fabric;
pub mod fetch_status;
pub mod history;
pub mod metrics;
mod page;
pub mod problem_report;
pub mod readiness;
pub mod server;
pub mod status;
pub mod versioned;

#[cfg(test)]
mod tests;

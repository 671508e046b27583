//! Observing a gateway: metrics, status and health over HTTP.
//!
//! The HTTP server runs on the daemon's runtime, in a task for each connection. It reads metrics
//! itself, and requests the status from the engine's task. [`readiness`] judges a status: whether
//! the gateway is ready, and what is wrong. `page` shows a status to people, with the samples of
//! [`history`] and the map of [`fabric`].

mod answers;
pub mod fabric;
pub mod fetch;
pub mod history;
pub mod metrics;
mod page;
pub mod readiness;
pub mod server;
pub mod status;
pub mod status_request;
pub mod versioned;

#[cfg(test)]
mod tests;

//! What a gateway shows of itself: metrics, status, health.

pub mod metrics;
pub mod server;
pub mod status;
pub mod trace;

#[cfg(test)]
mod tests;

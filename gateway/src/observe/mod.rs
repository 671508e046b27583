//! What a gateway shows of itself: metrics, status, health.

pub mod metrics;
pub mod server;
pub mod status;

#[cfg(test)]
mod tests;

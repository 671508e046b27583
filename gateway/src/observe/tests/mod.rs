mod metrics;
mod readiness;
mod server;

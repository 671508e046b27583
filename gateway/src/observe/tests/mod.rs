mod metrics;
mod server;

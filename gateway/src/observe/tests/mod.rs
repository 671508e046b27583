mod history;
mod http;
mod metrics;
mod page;
mod readiness;
mod server;

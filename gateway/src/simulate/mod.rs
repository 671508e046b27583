//! Whole gateways under virtual time: the sessions, QUIC and TLS of production, over the links
//! of `wan-sim`.

mod deployment;
mod error;
mod keys;
mod lab;
mod network;
mod step;

pub use deployment::{Deployment, LinkSeen, Post, Simulation};
pub use error::SimulateError;
pub use keys::{Keys, Papers};
pub use lab::{Lab, Setup, address, gateway_spec, lan_address};
pub use network::{Network, QUEUE_MIN};
pub use step::{Haul, Step};

use std::future::Future;

/// Runs a future to its end under a paused clock, which jumps to the next timer as soon as
/// nothing else is left to do.
///
/// # Errors
/// No runtime could be had.
pub fn run<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    Ok(paused(runtime)?.block_on(future))
}

fn paused(mut builder: tokio::runtime::Builder) -> std::io::Result<tokio::runtime::Runtime> {
    builder.enable_time().start_paused(true).build()
}

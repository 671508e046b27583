//! The Landbridge gateway.
//!
//! In the direction of the data: a trainer's buffer comes in over [`local`], the [`engine`]
//! runs the session of `hier-collectives` on it, segments leave and arrive over [`wan`], and
//! [`client`] is the trainer's side. Everything stands on the [`host`] seam; [`daemon`] puts
//! it together.

mod admission;
pub mod certs;
pub mod client;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod events;
pub mod host;
pub mod local;
mod log_throttle;
pub mod loopback;
pub mod memory;
pub mod observe;
pub mod simulate;
mod sync;
pub mod wan;

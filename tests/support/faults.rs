//! Faults as data, run in virtual time: whole gateways, trainers that come back, a link that
//! does what links do, and an oracle that judges what every rank sees.
//!
//! A run is a [`Scenario`]: deployment, load and a list of [`Fault`]s, drawn from a seed or
//! named in `tests/scenarios.toml`. `cargo xtask simulate` runs them.

mod collective;
mod fault;
mod gate;
mod harm;
mod limits;
mod meeting;
mod oracle;
mod run;
mod scenario;
mod sweep;
mod timeline;
mod told;
mod trainer;
mod world;

pub use fault::{Direction, Fault, GATEWAYS, Place, What};
pub use limits::Limits;
pub use run::{replay, run};
pub use scenario::{JOBS, Load, Named, RANDOM, Scenario, named};
pub use sweep::{IN_FLIGHT_MIN, IN_FLIGHT_SEEDS, sweep, threads};
pub use told::{Struck, Told, Waits};

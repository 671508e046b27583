//! Faults as data, run in virtual time, with an oracle that judges the outcome at every rank.
//!
//! A run is a [`Scenario`]: deployment, load and a list of [`Fault`]s, drawn from a seed or
//! named in `tests/scenarios.toml`; the one called [`MEMBERS`] has more regions. `cargo xtask simulate` runs them.

mod deployment;
mod judge;
mod members;
mod run;
mod spec;
mod sweep;
mod timeline;

pub use judge::outcomes::{RunSummary, Struck, Waits};
pub use members::MEMBERS;
pub use run::{replay, run};
pub use spec::fault::{Fault, FaultKind};
pub use spec::layout::{GatewayLayout, Layout, LinkLayout};
pub use spec::limits::Limits;
pub use spec::place::{Direction, FaultPlace, GatewayPlace, RegionPair};
pub use spec::scenario::{JOBS, Load, Named, RANDOM, Scenario, named};
pub use sweep::{IN_FLIGHT_MIN, IN_FLIGHT_SEEDS, sweep, threads};

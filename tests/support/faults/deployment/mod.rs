//! The simulated deployment: gateways, trainers, their rendezvous, and the link between regions.

pub(super) mod control;
mod gate;
mod link;
mod pending;
mod process;
pub(super) mod rendezvous;
mod side_work;
mod store_work;
mod trainer;
pub(super) mod world;

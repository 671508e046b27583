//! The simulated deployment: gateways, trainers, their rendezvous, and the link between regions.

pub(super) mod control;
mod gate;
mod link;
mod process;
pub(super) mod rendezvous;
mod trainer;
pub(super) mod world;

//! The simulated deployment: gateways, trainers, their rendezvous, and the link between regions.

pub(super) mod control;
mod gate;
mod link;
pub(super) mod meeting;
mod process;
mod trainer;
pub(super) mod world;

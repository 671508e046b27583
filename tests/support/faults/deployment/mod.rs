//! The simulated deployment: gateways, trainers, their rendezvous, and the link between regions.

pub(super) mod gate;
pub(super) mod meeting;
pub(super) mod trainer;
pub(super) mod world;

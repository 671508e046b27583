//! The input of a run: its deployment and load, its faults, and the promised limits.

pub(super) mod fault;
pub(super) mod layout;
pub(super) mod limits;
pub(super) mod place;
pub(super) mod scenario;

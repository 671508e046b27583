//! The arms without a lab: simulated links in virtual time, and loopback for processor time.

pub mod attach;
pub mod cpu;
pub mod long;
pub mod simulated;

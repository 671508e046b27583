//! The labs that real processes run in: how they are made, entered and removed again.

pub mod congestion_control;
pub mod emulator;
pub mod link_state;
pub mod testbed;

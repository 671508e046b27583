//! The labs that real processes run in: how they are made, entered and removed again.

pub mod congestion_control;
pub mod error;
pub mod interrupt;
pub mod link_state;
pub mod processes;
pub mod program_output;
pub mod testbed;

//! The labs that real processes run in: how they are made, entered and removed again.

pub mod interrupt;
pub mod program_output;
pub mod testbed;

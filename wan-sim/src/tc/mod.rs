//! Links as `tc` commands for the hosts of a real testbed.
//!
//! Each site's host shapes what it sends, by destination: a class for each link, with netem
//! below it. What netem cannot do is refused, by name.

mod commands;
mod verify;
mod words;

pub use commands::{
    GSO_SEGMENTS_DEFAULT, HostCommands, TcError, render_tc_commands, tc_removal_commands,
    tc_segments_command,
};
pub use verify::{
    ToolOutput, VerifyError, driver_segments_max, gso_segments, verify_shaping,
    verify_that_queues_are_ours,
};

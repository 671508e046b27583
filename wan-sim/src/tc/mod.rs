//! Links as `tc` commands for the hosts of a real testbed.
//!
//! Each site's host shapes what it sends, by destination: a class for each link, with netem
//! below it. What netem cannot do is refused, by name.

mod shaping_commands;
mod verify;
mod words;

pub use shaping_commands::{
    GSO_SEGMENTS_DEFAULT, HostCommands, TcError, render_shaping_commands, shaping_removal_commands,
    shaping_segments_command,
};
pub use verify::{
    ToolOutput, VerifyError, verified_driver_segments_max, verified_gso_segments,
    verify_queues_are_ours, verify_shaping,
};

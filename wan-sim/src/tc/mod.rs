//! Links as `tc` commands for the hosts of a real testbed.
//!
//! Each site's host shapes what it sends, by destination: a class for each link, with netem
//! below it. What netem cannot do is refused, by name.

mod commands;
mod verify;
mod words;

pub use commands::{HostCommands, SEGMENTS_MOST, TcError, removal, render, set_segments};
pub use verify::{Shown, VerifyError, applied, most_segments, segments, verify};

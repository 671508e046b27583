//! Commands that find out what is wrong, or what congestion control decides and why.

mod doctor;
mod explain;
mod trace;

pub(super) use doctor::DoctorCommand;
pub(super) use explain::{DumpCommand, ExplainCommand};
pub(super) use trace::TraceCommand;

//! Commands that find out what is wrong, or what congestion control decides and why.

mod doctor;
mod dump;
mod explain;
mod trace;

pub(super) use doctor::DoctorCommand;
pub(super) use dump::DumpCommand;
pub(super) use explain::ExplainCommand;
pub(super) use trace::TraceCommand;

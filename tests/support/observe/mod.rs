//! Observers of a run: traffic on each link, and the log of one thread.

pub mod flow;
pub mod log_capture;

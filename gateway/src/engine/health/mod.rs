//! The health of the gateway: checks of paths to peers with missing lanes, links that are down, and
//! the log of problems that last.
//!
//! The event loop calls it once a second, and when a check of a path is done or connections change.

mod engine_path_checks;
mod engine_problems;
pub(super) mod link_outages;
pub(super) mod problem_log;
pub(super) mod scheduling_delay;

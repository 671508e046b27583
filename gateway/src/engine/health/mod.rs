//! The health of the gateway: checks of paths to peers with missing lanes, links that are down, and
//! the log of problems that last.
//!
//! The event loop calls it once a second, and when a check of a path is done or connections change.

pub(super) mod link_outages;
mod path_checks;
pub(super) mod problem_log;

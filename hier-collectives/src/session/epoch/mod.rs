//! The epoch: its members, the plan in force, reports about links, and the drain.
//!
//! [`epoch_state::EpochState`] owns all of it. The session calls it with events and sends the messages
//! that it emits; collectives and transfers read it and never change it. It knows neither of them:
//! numbers of collectives reach it as arguments.

mod boundary;
mod cuts;
pub(super) mod drain;
pub(super) mod drain_cutoff;
pub(super) mod epoch_boundary;
pub(super) mod epoch_membership;
pub(super) mod epoch_state;
pub(super) mod link_reports;
pub(super) mod plan_schedule;
mod replanning;

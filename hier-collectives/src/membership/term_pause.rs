//! Pauses of a term: its gateways bring their jobs to a boundary, and another term follows.

use crate::ids::GatewayId;
use crate::post::Failure;
use std::collections::BTreeSet;
use units::TimeNs;

/// The pause of the jobs of a term that this gateway is about to replace.
#[derive(Debug)]
pub(super) struct TermPause {
    /// The failure that ranks hear at the boundary.
    pub failure: Failure,
    /// When the term is replaced whether or not the jobs are at a boundary.
    pub until: TimeNs,
    /// The gateways whose jobs have come to the boundary.
    pub paused: BTreeSet<GatewayId>,
    /// Whether the next term is being proposed.
    pub is_over: bool,
}

/// The pause that a gateway of the term has asked for.
#[derive(Debug)]
pub(super) struct AskedPause {
    /// The failure that ranks hear at the boundary.
    pub failure: Failure,
    /// The gateway that replaces the term.
    pub from: GatewayId,
    /// When the time of the leave is over for which it asked first; `None` if it asked for no leave.
    pub until: Option<TimeNs>,
    /// Whether all jobs here are at a boundary.
    pub is_reached: bool,
}

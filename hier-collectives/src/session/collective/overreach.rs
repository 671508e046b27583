//! Ranks that run further ahead of their group, or ask more, than a gateway remembers.
//!
//! After a timeout a rank may go on alone: each collective that it posted fails, and is remembered
//! until the others have posted it too. Past [`MAX_AHEAD`] the epoch ends instead. That is the
//! group's own affair: connections, which other groups share, go on.

use crate::ids::{GatewayId, RankId, Sequence};
use crate::post::{Failure, FailureCode};
use crate::session::action::PeerError;
use crate::session::local_gateway::LocalGateway;

/// 1,024. Collectives that a peer or a rank may be ahead of the oldest; beyond, the epoch ends.
/// Tested by `ranks_too_far_apart_end_the_epoch`.
pub(in crate::session) const MAX_AHEAD: u64 = 1024;

/// Refuses a range of collectives that ends too far beyond the oldest one.
///
/// # Errors
/// [`PeerError::TooFarAhead`].
pub(in crate::session) fn check_end(below: Sequence, oldest: Sequence) -> Result<(), PeerError> {
    if below.0 > oldest.0 + MAX_AHEAD {
        return Err(PeerError::TooFarAhead { sequence: below, limit: MAX_AHEAD });
    }
    Ok(())
}

/// The end of an epoch in which a peer's ranks went too far, as [`PeerError::is_of_ranks`] says.
pub(in crate::session) fn of_peer(
    local: &LocalGateway,
    from: GatewayId,
    error: &PeerError,
    oldest: Sequence,
) -> Failure {
    let name = local.gateway_name(from);
    let text = match error {
        // Segments of a collective that has failed there, or of a gateway that ignores grants.
        PeerError::UnsolicitedOverrun { .. } => format!("gateway {name}: {error}"),
        _ => format!(
            "ranks of gateway {name} went too far: {error}; ranks here are at collective {oldest}"
        ),
    };
    Failure::new(FailureCode::EpochEnded, text)
}

/// The end of an epoch in which a local rank went too far; none while it may post `sequence`.
pub(in crate::session) fn of_rank(
    local: &LocalGateway,
    rank: RankId,
    sequence: Sequence,
    oldest: Sequence,
) -> Option<Failure> {
    if sequence.0 < oldest.0 + MAX_AHEAD {
        return None;
    }
    let text = format!(
        "{} is at collective {sequence}, another rank here at {oldest}: {MAX_AHEAD} apart",
        local.rank_name(rank)
    );
    Some(Failure::new(FailureCode::EpochEnded, text))
}

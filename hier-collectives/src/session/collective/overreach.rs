//! Ranks that run too far ahead of the oldest collective, or ask too much: their epoch ends.
//!
//! After a timeout a rank may go on alone: each collective that it posted fails, and is remembered
//! until the other ranks have posted it too. Past [`COLLECTIVES_AHEAD_MAX`] the epoch ends instead.
//! Connections, which other jobs share, go on.

use super::collectives::Collectives;
use super::local_rank::TAGS_MAX;
use super::recent_collectives::COLLECTIVES_AHEAD_MAX;
use crate::ids::{GatewayId, RankId, Sequence};
use crate::post::{Failure, FailureCode};
use crate::session::action::PeerError;
use crate::session::local_gateway::LocalGateway;

/// The ways in which a rank oversteps by a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Overreach {
    /// It is too far beyond another rank of this gateway.
    Apart {
        /// The oldest collective of the series that some rank here has not posted.
        oldest: Sequence,
    },
    /// It uses [`TAGS_MAX`] other tags.
    Tags,
    /// As many sends and receives as may be known have met no other end.
    Sends,
}

impl Collectives {
    /// Returns how a local rank oversteps by posting a collective; `None` where it may post.
    pub fn rank_overreach(&self, rank: RankId, sequence: Sequence) -> Option<Overreach> {
        let oldest = self.oldest_unposted_like(sequence);
        if sequence.0 >= oldest.0 + COLLECTIVES_AHEAD_MAX {
            return Some(Overreach::Apart { oldest });
        }
        let local = self.local_rank(rank)?;
        if local.has_no_room_for_series_of(sequence) {
            return Some(Overreach::Tags);
        }
        self.is_one_send_too_many(sequence).then_some(Overreach::Sends)
    }
}

/// Builds the failure that ends the epoch when a local rank oversteps by posting a collective.
pub(in crate::session) fn rank_overreach_failure(
    local: &LocalGateway,
    rank: RankId,
    sequence: Sequence,
    overreach: Overreach,
) -> Failure {
    let name = local.rank_name(rank);
    let text = match overreach {
        Overreach::Apart { oldest } => format!(
            "{name} is at collective {sequence}, another rank here at {oldest}: \
             {COLLECTIVES_AHEAD_MAX} apart"
        ),
        Overreach::Tags => format!(
            "{name} uses more than {TAGS_MAX} tags with one other rank; use tags again, or groups \
             in their place"
        ),
        Overreach::Sends => format!(
            "{name} has {COLLECTIVES_AHEAD_MAX} sends and receives with one other rank that have \
             met no other end"
        ),
    };
    Failure::new(FailureCode::EpochEnded, text)
}

/// Refuses a range of collectives that ends, at `below`, more than `COLLECTIVES_AHEAD_MAX` beyond
/// the oldest unposted collective.
///
/// # Errors
/// [`PeerError::TooFarAhead`].
pub(in crate::session) fn check_overreach(
    below: Sequence,
    oldest: Sequence,
) -> Result<(), PeerError> {
    if below.0 > oldest.0 + COLLECTIVES_AHEAD_MAX {
        return Err(PeerError::TooFarAhead { sequence: below, limit: COLLECTIVES_AHEAD_MAX });
    }
    Ok(())
}

/// Builds the failure that ends the epoch when a peer's ranks cause `error`, as
/// [`PeerError::is_caused_by_ranks`] says.
pub(in crate::session) fn peer_overreach_failure(
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

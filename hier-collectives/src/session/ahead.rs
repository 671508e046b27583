//! Ranks that run ahead of the others of their group, or ask more, than is remembered.
//!
//! Timeouts make a rank go on alone: each collective that it posted fails, and is remembered
//! until the others have posted it too. Past [`MAX_AHEAD`] the epoch ends instead, which is the
//! group's own affair: connections, which other groups share, go on.

use super::*;

impl Session {
    /// A peer's ranks went too far, as [`PeerError::is_of_ranks`] says.
    pub fn handle_overreach(&mut self, from: GatewayId, error: &PeerError, now: TimeNs) {
        let (name, oldest) = (self.gateway_name(from), self.oldest());
        let text = match error {
            // Of a collective that has failed there, or of a gateway that heeds no grant.
            PeerError::EarlyOverrun { .. } => format!("gateway {name}: {error}"),
            _ => format!(
                "ranks of gateway {name} went too far: {error}; ranks here are at collective \
                 {oldest}"
            ),
        };
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
    }

    /// Why a local rank may not post this collective; the epoch is over then.
    pub(super) fn end_if_too_far_ahead(
        &mut self,
        rank: RankId,
        sequence: Sequence,
        now: TimeNs,
    ) -> Option<String> {
        let oldest = self.oldest();
        if sequence.0 < oldest.0 + MAX_AHEAD {
            return None;
        }
        let text = format!(
            "{} is at collective {sequence}, another rank here at {oldest}: {MAX_AHEAD} apart",
            self.rank_name(rank)
        );
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text.clone()), None, now);
        Some(text)
    }
}

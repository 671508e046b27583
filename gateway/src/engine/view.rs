//! What the engine shows of itself.

use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::session::SessionStatus;
use units::{Span, TimeNs};

/// A snapshot.
#[derive(Debug, Clone)]
pub struct EngineView {
    /// The session's.
    pub session: SessionStatus,
    /// Every peer.
    pub peers: Vec<PeerView>,
    /// Attached ranks.
    pub ranks: Vec<RankView>,
    /// When it was taken.
    pub now: TimeNs,
}

/// A peer and its lanes.
#[derive(Debug, Clone)]
pub struct PeerView {
    /// The peer.
    pub gateway: GatewayId,
    /// Lanes that are up.
    pub lanes_up: u16,
    /// Round-trip time of its first lane.
    pub rtt: Option<Span>,
    /// Why the last lane was lost or could not be had.
    pub trouble: Option<String>,
    /// Payload bytes sent to it for the first time.
    pub first_sent_bytes: u64,
    /// Payload bytes sent to it again.
    pub sent_again_bytes: u64,
    /// Packets sent on the lanes that are up.
    pub packets_sent: u64,
    /// Of these, given up as lost.
    pub packets_lost: u64,
}

/// An attached rank.
#[derive(Debug, Clone, Copy)]
pub struct RankView {
    /// The rank.
    pub rank: RankId,
}

//! Errors of peers that break the protocol.

use crate::ids::{Epoch, GatewayId, Sequence, TreeIndex};
use crate::store::StoreViolation;
use crate::wire::SegmentKey;

/// A message or segment against the protocol. The engine closes the peer's connection, unless the
/// peer's ranks can cause the error ([`PeerError::is_caused_by_ranks`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The gateway is not a peer of this session.
    #[error("gateway {0} is not a peer")]
    UnknownPeer(GatewayId),
    /// The gateway may not send this message.
    #[error("{0} from a gateway that may not send it")]
    NotYours(&'static str),
    /// A collective is too far ahead of those under way.
    #[error("collective {sequence} is more than {limit} ahead")]
    TooFarAhead {
        /// The collective named.
        sequence: Sequence,
        /// The distance that is allowed.
        limit: u64,
    },
    /// The plan has no such segment.
    #[error("no segment {key:?} of {bytes} bytes is due from this peer")]
    NoSuchSegment {
        /// The segment named.
        key: SegmentKey,
        /// Its length in bytes.
        bytes: u32,
    },
    /// The peer exceeded its unsolicited window.
    #[error("{used} bytes sent ahead of grants, {room} agreed")]
    UnsolicitedOverrun {
        /// Bytes that are held.
        used: u64,
        /// Bytes that are agreed on.
        room: u64,
    },
    /// The peer asks about more commits than can wait.
    #[error("more than {limit} questions about commits")]
    TooManyAsks {
        /// The number that is allowed.
        limit: usize,
    },
    /// The message breaks a rule of the job's store.
    #[error("store: {0}")]
    Store(#[from] StoreViolation),
    /// A number is so large that nobody reaches it by counting.
    #[error("epoch {epoch}, collective {next}: nobody has come that far")]
    Uncountable {
        /// The epoch named.
        epoch: Epoch,
        /// The collective named.
        next: Sequence,
    },
    /// The plan has no such tree.
    #[error("the plan has no tree {0}")]
    NoSuchTree(TreeIndex),
    /// The plan is invalid.
    #[error("plan refused: {0}")]
    BadPlan(String),
}

impl PeerError {
    /// Whether a peer's trainers can cause this error, so that it concerns their job alone and not
    /// the connection. [`Session::handle_overreach`](crate::session::Session::handle_overreach) then ends
    /// the epoch. A peer that learns late of a failure may send segments that count as unsolicited.
    pub fn is_caused_by_ranks(&self) -> bool {
        use PeerError::{TooFarAhead, TooManyAsks, UnsolicitedOverrun};
        matches!(self, TooFarAhead { .. } | TooManyAsks { .. } | UnsolicitedOverrun { .. })
    }
}

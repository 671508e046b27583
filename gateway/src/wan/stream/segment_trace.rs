//! Log traces of single segments, for the engine and the senders. Tests read them.

use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::wire::SegmentKey;
use tracing::trace;

/// The log target of trace lines about single segments: sent, resent, granted, receipted. A log
/// filter that names the target at level trace switches the lines on.
const SEGMENT_LOG_TARGET: &str = "landbridge::segments";

/// Traces an event of a segment between this gateway and a peer: `sent`, `again`, `granted` or
/// `receipted`. `bytes` is the payload; 0 for an event without any.
pub(crate) fn trace_segment(
    what: &str,
    group: GroupId,
    peer: GatewayId,
    key: SegmentKey,
    bytes: u64,
) {
    let (sequence, tree, segment) = (key.sequence.0, key.tree.0, key.segment.0);
    let (group, peer) = (group.0, peer.0);
    trace!(target: SEGMENT_LOG_TARGET, what, group, peer, sequence, tree, segment, bytes);
}

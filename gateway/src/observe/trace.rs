//! What happens to the segments to a peer, for tests of what is under way.

use crate::wan::outbox::ConnectionId;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::wire::SegmentKey;
use tracing::trace;

/// Where that is traced.
const SEGMENTS: &str = "landbridge::segments";

/// A segment was granted, sent or receipted, as `what` has it; of one that is sent, its bytes.
pub fn segment(what: &str, (group, peer): (GroupId, GatewayId), key: SegmentKey, bytes: u64) {
    let (sequence, tree, segment) = (key.sequence.0, key.tree.0, key.segment.0);
    let (group, peer) = (group.0, peer.0);
    trace!(target: SEGMENTS, what, group, peer, sequence, tree, segment, bytes);
}

/// A lane's connection took a segment to send it.
pub fn pulled((group, peer): (GroupId, GatewayId), key: SegmentKey, connection: ConnectionId) {
    let (sequence, tree, segment) = (key.sequence.0, key.tree.0, key.segment.0);
    let (what, group, peer) = ("pulled", group.0, peer.0);
    trace!(target: SEGMENTS, what, group, peer, sequence, tree, segment, connection);
}

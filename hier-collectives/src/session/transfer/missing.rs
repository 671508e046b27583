//! Missing segments and receipts, in words and in bytes.

use super::part::TransferPart;
use super::transfer_flow::TransferFlow;
use super::transfer_state::Transfer;
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::session::local_gateway::LocalGateway;
use units::ByteCount;

/// The bytes of a collective for which a gateway waits at a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingBytes {
    /// The peer.
    pub gateway: GatewayId,
    /// Bytes of segments that are due from it and have not arrived.
    pub awaited: u64,
    /// Bytes of segments that were sent to it and have no receipt.
    pub unreceipted: u64,
}

/// A segment that is missing.
struct MissingSegment {
    tree: TreeIndex,
    segment: u32,
    bytes: u64,
}

impl Transfer {
    /// Describes the contributions of a collective that did not come from ranks here, and the
    /// segments and receipts that did not come from some peers, one text for each.
    pub fn missing_text(
        &self,
        peers: impl Iterator<Item = GatewayId>,
        sequence: Sequence,
        local: &LocalGateway,
    ) -> Vec<String> {
        let Some(flow) = self.flows.get(&sequence) else { return vec![] };
        let name = |peer| {
            let connection = local.connection_name(local.id(), peer);
            format!("{} ({connection})", local.gateway_name(peer))
        };
        let of_peer = |peer| {
            let segments = missing_count_text(missing_segments(flow, peer, local.id()));
            let segments = segments.map(|text| format!("{text} from gateway {}", name(peer)));
            let receipts = missing_count_text(missing_receipts(flow, peer));
            let receipts =
                receipts.map(|text| format!("receipts of {text} by gateway {}", name(peer)));
            [segments, receipts].into_iter().flatten()
        };
        let cut = |(rank, from): (_, u64)| {
            let (name, from) = (local.rank_name(rank), ByteCount::new(from).rounded());
            format!("the contribution of {name} behind its first {from}")
        };
        let contributions = flow.arriving.missing_contributions().map(cut);
        contributions.chain(peers.flat_map(of_peer)).collect()
    }

    /// Counts the bytes of a collective that did not come from some peers, or have no receipt of
    /// them. Peers of which nothing is missing are left out.
    pub fn missing_bytes(
        &self,
        peers: impl Iterator<Item = GatewayId>,
        sequence: Sequence,
        me: GatewayId,
    ) -> Vec<MissingBytes> {
        let Some(flow) = self.flows.get(&sequence) else { return vec![] };
        let of_peer = |gateway| MissingBytes {
            gateway,
            awaited: missing_segments(flow, gateway, me).map(|missing| missing.bytes).sum(),
            unreceipted: missing_receipts(flow, gateway).map(|missing| missing.bytes).sum(),
        };
        peers.map(of_peer).filter(|it| it.awaited > 0 || it.unreceipted > 0).collect()
    }
}

/// Iterates over the parts of a collective with their trees.
fn missing_parts_by_tree(flow: &TransferFlow) -> impl Iterator<Item = (TreeIndex, &TransferPart)> {
    (0..).map(TreeIndex).zip(&flow.parts)
}

/// Iterates over the segments that are due from a peer and have not fully arrived, whether or not
/// they were sent.
fn missing_segments(
    flow: &TransferFlow,
    peer: GatewayId,
    me: GatewayId,
) -> impl Iterator<Item = MissingSegment> {
    missing_parts_by_tree(flow).filter(move |(_, part)| part.expects_from(peer, me)).flat_map(
        move |(tree, part)| {
            let landed = move |index: u32| {
                let key = (peer, tree, SegmentIndex(index));
                flow.incoming.get(&key).is_some_and(|incoming| incoming.landed)
            };
            missing_in_part(tree, part, move |index| !landed(index))
        },
    )
}

/// Iterates over the segments that were sent to a peer and have no receipt from it.
fn missing_receipts(flow: &TransferFlow, peer: GatewayId) -> impl Iterator<Item = MissingSegment> {
    let to = missing_parts_by_tree(flow)
        .filter_map(move |(tree, part)| Some((tree, part, part.out.get(&peer)?)));
    to.flat_map(|(tree, part, out)| {
        missing_in_part(tree, part, move |index| out.due.contains(&index))
    })
}

/// Iterates over the segments of a part for which `is_missing` holds.
fn missing_in_part(
    tree: TreeIndex,
    part: &TransferPart,
    is_missing: impl Fn(u32) -> bool,
) -> impl Iterator<Item = MissingSegment> {
    (0..part.segment_count())
        .filter(move |index| is_missing(*index))
        .map(move |segment| MissingSegment { tree, segment, bytes: part.segment_bytes(segment) })
}

/// Describes segments as "12 segments (3 MiB; the first is 4 of tree 0)"; none without segments.
fn missing_count_text(mut segments: impl Iterator<Item = MissingSegment>) -> Option<String> {
    let MissingSegment { tree, segment: first, bytes } = segments.next()?;
    let (count, bytes) =
        segments.fold((1u64, bytes), |(count, sum), missing| (count + 1, sum + missing.bytes));
    let size = ByteCount::new(bytes).rounded();
    let noun = if count == 1 { "segment" } else { "segments" };
    Some(format!("{count} {noun} ({size}; the first is {first} of tree {tree})"))
}

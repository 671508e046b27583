//! Missing segments and receipts, in words.

use super::flow::Flow;
use super::segment::PartState;
use super::state::Transfer;
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::session::local_gateway::LocalGateway;

/// A segment that is missing.
struct Missing {
    tree: TreeIndex,
    segment: u32,
    bytes: u64,
}

impl Transfer {
    /// The segments and receipts of a collective that did not come from some peers, in words.
    pub fn missing_from(
        &self,
        peers: impl Iterator<Item = GatewayId>,
        sequence: Sequence,
        local: &LocalGateway,
    ) -> Vec<String> {
        let Some(flow) = self.flows.get(&sequence) else { return vec![] };
        let name = |peer| local.gateway_name(peer);
        let of_peer = |peer| {
            let segments = count(segments_due(flow, peer, local.id()));
            let segments = segments.map(|text| format!("{text} from gateway {}", name(peer)));
            let receipts = count(receipts_due(flow, peer));
            let receipts =
                receipts.map(|text| format!("receipts of {text} by gateway {}", name(peer)));
            [segments, receipts].into_iter().flatten()
        };
        peers.flat_map(of_peer).collect()
    }
}

fn parts(flow: &Flow) -> impl Iterator<Item = (TreeIndex, &PartState)> {
    (0..).map(TreeIndex).zip(&flow.parts)
}

/// The segments that a peer has not sent.
fn segments_due(flow: &Flow, peer: GatewayId, me: GatewayId) -> impl Iterator<Item = Missing> {
    parts(flow).filter(move |(_, part)| part.expects_from(peer, me)).flat_map(
        move |(tree, part)| {
            let landed = move |index: u32| {
                let key = (peer, tree, SegmentIndex(index));
                flow.incoming.get(&key).is_some_and(|incoming| incoming.landed)
            };
            missing(tree, part, move |index| !landed(index))
        },
    )
}

/// The segments that a peer has not receipted.
fn receipts_due(flow: &Flow, peer: GatewayId) -> impl Iterator<Item = Missing> {
    let to = parts(flow).filter_map(move |(tree, part)| Some((tree, part, part.out.get(&peer)?)));
    to.flat_map(|(tree, part, out)| missing(tree, part, move |index| out.due.contains(&index)))
}

/// The segments of a part for which `is_missing` holds.
fn missing(
    tree: TreeIndex,
    part: &PartState,
    is_missing: impl Fn(u32) -> bool,
) -> impl Iterator<Item = Missing> {
    (0..part.count()).filter(move |index| is_missing(*index)).map(move |segment| {
        let range = part.part.segment(segment);
        Missing { tree, segment, bytes: range.end - range.start }
    })
}

/// "12 segments (3145728 bytes; the first is 4 of tree 0)", or nothing.
fn count(mut segments: impl Iterator<Item = Missing>) -> Option<String> {
    let Missing { tree, segment: first, bytes } = segments.next()?;
    let (count, bytes) =
        segments.fold((1u64, bytes), |(count, sum), missing| (count + 1, sum + missing.bytes));
    Some(format!("{count} segments ({bytes} bytes; the first is {first} of tree {tree})"))
}

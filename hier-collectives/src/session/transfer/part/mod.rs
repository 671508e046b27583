//! The state of one part of a collective, segment by segment.

mod block_table;
mod segment_state;

use block_table::BlockTable;
pub(super) use segment_state::{
    IncomingSegmentState, OutboundSegments, SegmentPayload, SegmentState,
};

use crate::ids::{GatewayId, RankId, Sequence};
use crate::parts::{BlockRanks, OperationPart};
use crate::plan::{OperationPhases, TreeRole, TreeUpstream};
use crate::session::action::{Buffer, BufferView, ReduceInput};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One part of a collective on this gateway, while the collective runs.
#[derive(Debug)]
pub(super) struct TransferPart {
    blocks: BlockTable,
    pub role: TreeRole,
    pub phases: OperationPhases,
    /// The root's results are those of the part before this one.
    pub follows: bool,
    /// No local rank gets the bytes that come down: they wait here in gateway memory until the
    /// gateways below have them.
    pub passes_on: bool,
    pub segments: Vec<SegmentState>,
    /// The first segment whose local reduction has not begun.
    pub next_local: u32,
    /// Of a part that begins here: the first segment whose bytes have not come.
    pub next_moved: u32,
    /// The first segment whose partial, of the whole subtree, is not there yet.
    pub local_prefix: u32,
    /// The first segment without a result.
    pub result_prefix: u32,
    /// The first segment that holds memory of ours, or may come to.
    pub done_prefix: u32,
    /// The progress of sending, by receiver.
    pub out: BTreeMap<GatewayId, OutboundSegments>,
    /// Segments in place on every local rank.
    pub delivered: u32,
}

impl TransferPart {
    /// Creates the state of a part before anything has moved, with the segments to send to each
    /// peer. `ranks` are those of this gateway.
    pub fn new(part: OperationPart<'_>, me: GatewayId, ranks: &Range<u32>) -> Self {
        let OperationPart { tree, phases, follows, blocks } = part;
        // A gateway outside a pruned tree has nothing to do with the part.
        let takes_part = tree.roots.contains(&me) || tree.parents.contains_key(&me);
        let blocks = BlockTable::new(if takes_part { blocks } else { vec![] });
        let role = tree.role(me);
        let mut out = BTreeMap::new();
        let mut add = |peer, payload| {
            out.insert(peer, OutboundSegments { payload, next: 0, due: BTreeSet::new() });
        };
        match &role.upstream {
            _ if !takes_part => {}
            TreeUpstream::Parent(parent) if phases.up => add(*parent, SegmentPayload::Partial),
            TreeUpstream::RootSet(roots) if phases.up => {
                roots
                    .iter()
                    .filter(|id| **id != me)
                    .for_each(|id| add(*id, SegmentPayload::Partial));
            }
            TreeUpstream::Parent(_) | TreeUpstream::RootSet(_) => {}
        }
        if phases.down && takes_part {
            role.children.iter().for_each(|child| add(*child, SegmentPayload::Result));
        }
        let is_below = matches!(role.upstream, TreeUpstream::Parent(_));
        let passes_on = phases.down && is_below && !blocks.reaches_one_of(ranks);
        let due = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let held =
            |outbound: &&OutboundSegments| passes_on || outbound.payload == SegmentPayload::Partial;
        let (receipts_due, held_due) = (due(out.len()), due(out.values().filter(held).count()));
        let segment = SegmentState { receipts_due, held_due, ..SegmentState::default() };
        let part_segments = blocks.segment_count();
        let segments = vec![segment; usize::try_from(part_segments).unwrap_or(0)];
        Self {
            blocks,
            role,
            phases,
            follows,
            passes_on,
            // Only what goes up is reduced here.
            next_local: if phases.up { 0 } else { part_segments },
            next_moved: 0,
            segments,
            local_prefix: 0,
            result_prefix: 0,
            done_prefix: 0,
            out,
            delivered: 0,
        }
    }

    /// Whether the blocks of this part begin at this gateway, unreduced.
    pub fn is_source(&self) -> bool {
        !self.phases.up && !self.follows && self.is_at_root()
    }

    /// Whether this gateway is in the tree's root set, where the result is made.
    pub fn is_at_root(&self) -> bool {
        matches!(self.role.upstream, TreeUpstream::RootSet(_))
    }

    /// Whether the partial goes up and no result comes down along this tree.
    pub fn only_sends_partial(&self) -> bool {
        !self.phases.down && matches!(self.role.upstream, TreeUpstream::Parent(_))
    }

    /// Returns the number of segments of the part.
    pub fn segment_count(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Removes and returns the views of gateway memory of a segment that is done; empty while the
    /// segment is not.
    pub fn take_scratch_if_done(&mut self, index: u32) -> Vec<BufferView> {
        let segment = self.segment_mut(index);
        if !segment.is_done() {
            return vec![];
        }
        let scratch = std::mem::take(&mut segment.scratch);
        let more = self.segments[self.done_prefix as usize..].iter();
        let done = more.take_while(|segment| segment.is_done()).count();
        self.done_prefix += u32::try_from(done).unwrap_or(0);
        scratch
    }

    /// Returns the state of a segment, by its index in the part.
    pub fn segment_mut(&mut self, index: u32) -> &mut SegmentState {
        &mut self.segments[index as usize]
    }

    /// Returns the peers whose segments the result takes that is made here: of one of several roots
    /// the others, of a root alone its children. Empty below the roots.
    pub fn remote_operands(&self, me: GatewayId) -> Vec<GatewayId> {
        match &self.role.upstream {
            _ if !self.phases.up => vec![],
            TreeUpstream::RootSet(roots) if roots.len() > 1 => {
                roots.iter().copied().filter(|id| *id != me).collect()
            }
            TreeUpstream::RootSet(_) => self.role.children.clone(),
            TreeUpstream::Parent(_) => vec![],
        }
    }

    /// Returns the only peer whose operand the result takes, if there is one. Its bytes are
    /// combined straight into the result, since the other operand is one buffer here.
    pub fn streaming_peer(&self, me: GatewayId) -> Option<GatewayId> {
        match self.remote_operands(me)[..] {
            [peer] => Some(peer),
            _ => None,
        }
    }

    /// Whether the partial contains those of children, and needs a reduction of its own.
    pub fn needs_partial_task(&self) -> bool {
        let root = matches!(&self.role.upstream, TreeUpstream::RootSet(roots) if roots.len() == 1);
        self.phases.up && !root && !self.role.children.is_empty()
    }

    /// Returns the local operand of a segment that is combined as it arrives; none until it is
    /// here.
    pub fn streaming_operand(&self, index: u32) -> Option<&ReduceInput> {
        self.segments[index as usize].partial.as_ref()
    }

    /// Returns the peers from which segments of this part come.
    pub fn senders(&self, me: GatewayId) -> Vec<GatewayId> {
        let above: &[GatewayId] = match &self.role.upstream {
            TreeUpstream::Parent(parent) => std::slice::from_ref(parent),
            TreeUpstream::RootSet(roots) => roots,
        };
        let near = above.iter().chain(&self.role.children).copied();
        near.filter(|peer| self.expects_from(*peer, me)).collect()
    }

    /// Whether segments of this tree come from a peer.
    pub fn expects_from(&self, peer: GatewayId, me: GatewayId) -> bool {
        match &self.role.upstream {
            TreeUpstream::Parent(parent) if *parent == peer => self.phases.down,
            TreeUpstream::RootSet(roots) if peer != me && roots.contains(&peer) => self.phases.up,
            _ => self.phases.up && self.role.children.contains(&peer),
        }
    }

    /// Whether a peer's segments wait here for those of other peers. With `peer == me`: whether our
    /// partials wait for results, since they contain those of children.
    pub fn is_buffered_here(&self, peer: GatewayId, me: GatewayId) -> bool {
        if peer == me {
            return self.needs_partial_task();
        }
        self.expects_from(peer, me)
            && !self.lands_in_slot(peer)
            && self.streaming_peer(me) != Some(peer)
    }

    /// Returns the first segment of a peer that takes gateway memory here, or may come to take it: all
    /// before it are done. Grants to `peer` count from it. Partials of children are done once they are
    /// in that of the subtree. With `me` as `peer` it is for our own partials.
    pub fn first_unreleased_segment(&self, peer: GatewayId, me: GatewayId) -> u32 {
        if peer == me || self.passes_on {
            self.done_prefix
        } else if self.needs_partial_task() && self.role.children.contains(&peer) {
            self.local_prefix
        } else {
            self.result_prefix
        }
    }

    /// Whether results come down this tree from a peer.
    pub fn comes_down_from(&self, peer: GatewayId) -> bool {
        self.phases.down && self.role.upstream == TreeUpstream::Parent(peer)
    }

    /// Whether what comes down from a peer lands in the result slot of a local rank.
    pub fn lands_in_slot(&self, peer: GatewayId) -> bool {
        self.comes_down_from(peer) && !self.passes_on
    }

    /// Returns the bytes of a segment in the contributions.
    pub fn contribution_range(&self, index: u32) -> Range<u64> {
        self.blocks.contribution_range(index)
    }

    /// Returns the number of bytes of a segment.
    pub fn segment_bytes(&self, index: u32) -> u64 {
        let range = self.contribution_range(index);
        range.end - range.start
    }

    /// Returns the bytes of all segments from one on.
    pub fn bytes_from(&self, index: u32) -> u64 {
        (index..self.segment_count()).map(|index| self.segment_bytes(index)).sum()
    }

    /// Returns the ranks that contribute to a segment.
    pub fn contributors(&self, index: u32) -> BlockRanks {
        self.blocks.block_of(index).map_or(BlockRanks::All, |block| block.contributors)
    }

    /// Returns the ranks that get a segment.
    pub fn receivers(&self, index: u32) -> BlockRanks {
        self.blocks.block_of(index).map_or(BlockRanks::All, |block| block.receivers)
    }

    /// Returns the view of a segment's bytes in a rank's contribution.
    pub fn contribution_view(&self, index: u32, sequence: Sequence, rank: RankId) -> BufferView {
        let buffer = Buffer::Contribution(sequence, rank);
        BufferView { buffer, range: self.contribution_range(index) }
    }

    /// Returns the view of a segment's bytes in a rank's result.
    pub fn result_view(&self, index: u32, sequence: Sequence, rank: RankId) -> BufferView {
        let buffer = Buffer::Result(sequence, rank);
        BufferView { buffer, range: self.blocks.result_range(index) }
    }
}

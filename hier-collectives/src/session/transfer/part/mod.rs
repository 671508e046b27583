//! The state of one tree's part of a collective, segment by segment.

mod segment;

pub(super) use segment::{IncomingSegment, OutboundSegments, SegmentPayload, SegmentState};

use crate::buffer_part::BufferPart;
use crate::ids::GatewayId;
use crate::plan::{Operation, Phases, Role, Tree, Upstream};
use crate::session::action::{Buffer, BufferView, ReduceInput};
use std::collections::{BTreeMap, BTreeSet};

/// The part of a buffer that one tree carries, while the collective runs.
#[derive(Debug)]
pub(super) struct TransferPart {
    pub part: BufferPart,
    pub role: Role,
    pub phases: Phases,
    /// The root's results are those of the tree before this one.
    pub follows: bool,
    pub segments: Vec<SegmentState>,
    /// The first segment whose local reduction has not begun.
    pub next_local: u32,
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

/// The phases that a collective has along a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreeOperation {
    phases: Phases,
    follows: bool,
}

impl TreeOperation {
    /// Returns the phases that an operation has along a tree, and whether its results follow those
    /// of the tree before.
    pub fn for_tree(operation: Operation, tree: &Tree) -> Self {
        let phases = operation.phases_along(tree);
        let follows = phases.down && !phases.up && operation.has_up_phase();
        Self { phases, follows }
    }
}

impl TransferPart {
    /// Creates the state of a part before anything has moved, with the segments to send to each
    /// peer.
    pub fn new(part: BufferPart, role: Role, operation: TreeOperation, me: GatewayId) -> Self {
        let TreeOperation { phases, follows } = operation;
        let part = if phases.up || phases.down { part } else { part.without_bytes() };
        let mut out = BTreeMap::new();
        let mut add = |peer, payload| {
            out.insert(peer, OutboundSegments { payload, next: 0, due: BTreeSet::new() });
        };
        match &role.upstream {
            Upstream::Parent(parent) if phases.up => add(*parent, SegmentPayload::Partial),
            Upstream::RootSet(roots) if phases.up => {
                roots
                    .iter()
                    .filter(|id| **id != me)
                    .for_each(|id| add(*id, SegmentPayload::Partial));
            }
            Upstream::Parent(_) | Upstream::RootSet(_) => {}
        }
        if phases.down {
            role.children.iter().for_each(|child| add(*child, SegmentPayload::Result));
        }
        let due = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let partials = out.values().filter(|outbound| outbound.payload == SegmentPayload::Partial);
        let (receipts_due, partial_due) = (due(out.len()), due(partials.count()));
        let segment = SegmentState { receipts_due, partial_due, ..SegmentState::default() };
        let part_segments = part.segment_count();
        let segments = vec![segment; usize::try_from(part_segments).unwrap_or(0)];
        Self {
            part,
            role,
            phases,
            follows,
            // Results of another tree have no local contribution.
            next_local: if follows { part_segments } else { 0 },
            segments,
            local_prefix: 0,
            result_prefix: 0,
            done_prefix: 0,
            out,
            delivered: 0,
        }
    }

    /// Whether this gateway is in the tree's root set, where the result is made.
    pub fn is_at_root(&self) -> bool {
        matches!(self.role.upstream, Upstream::RootSet(_))
    }

    /// Whether the partial goes up and no result comes down along this tree.
    pub fn only_sends_partial(&self) -> bool {
        !self.phases.down && matches!(self.role.upstream, Upstream::Parent(_))
    }

    /// Returns the number of segments of the part.
    pub fn segment_count(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Takes the scratch of a segment that is done; empty while the segment is not.
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
            Upstream::RootSet(roots) if roots.len() > 1 => {
                roots.iter().copied().filter(|id| *id != me).collect()
            }
            Upstream::RootSet(_) => self.role.children.clone(),
            Upstream::Parent(_) => vec![],
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
        let root = matches!(&self.role.upstream, Upstream::RootSet(roots) if roots.len() == 1);
        self.phases.up && !root && !self.role.children.is_empty()
    }

    /// Returns the local operand of a segment that is combined as it arrives; none until it is
    /// here.
    pub fn streaming_operand(&self, index: u32) -> Option<&ReduceInput> {
        self.segments[index as usize].partial.as_ref()
    }

    /// Whether segments of this tree come from a peer.
    pub fn expects_from(&self, peer: GatewayId, me: GatewayId) -> bool {
        match &self.role.upstream {
            Upstream::Parent(parent) if *parent == peer => self.phases.down,
            Upstream::RootSet(roots) if peer != me && roots.contains(&peer) => self.phases.up,
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
            && !self.comes_down_from(peer)
            && self.streaming_peer(me) != Some(peer)
    }

    /// Returns the index of the first segment, of a peer or our own, that waits here or may come to
    /// wait.
    pub fn first_buffered_segment(&self, peer: GatewayId, me: GatewayId) -> u32 {
        if peer == me { self.done_prefix } else { self.result_prefix }
    }

    /// Whether results come down this tree from a peer.
    pub fn comes_down_from(&self, peer: GatewayId) -> bool {
        self.phases.down && self.role.upstream == Upstream::Parent(peer)
    }

    /// Returns the view of a segment's bytes in a buffer.
    pub fn segment_view(&self, index: u32, buffer: Buffer) -> BufferView {
        BufferView { buffer, range: self.part.segment_range(index) }
    }
}

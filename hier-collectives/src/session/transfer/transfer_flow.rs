//! The bytes of one collective on this gateway.

use super::part::{IncomingSegmentState, TransferPart};
use crate::descriptor::{AgreedCounts, Descriptor, KnownCounts};
use crate::ids::{Epoch, GatewayId, RankId, SegmentIndex, Sequence, TreeIndex};
use crate::parts::{BlockRanks, OperationPartSource};
use crate::plan::TreeUpstream;
use crate::session::action::BufferView;
use crate::session::epoch::epoch_state::EpochState;
use crate::size_class::SizeClass;
use crate::wire::Message;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use units::TimeNs;

/// The collective that is carried out: agreed on by all local ranks.
#[derive(Debug)]
pub(in crate::session) struct TransferFlowWork {
    pub descriptor: Descriptor,
    pub counts: KnownCounts,
    /// The local ranks, with their weights.
    pub weights: BTreeMap<RankId, f64>,
}

impl TransferFlowWork {
    /// Returns the bytes by which the collective is classed: those of its buffer, or where each
    /// pair of ranks has a count the most that a local rank sends or receives.
    pub fn bytes(&self) -> u64 {
        if self.descriptor.counts != AgreedCounts::ByPair {
            return self.descriptor.bytes();
        }
        let most = self.weights.keys().map(|rank| self.counts.elements_at(*rank)).max();
        most.unwrap_or(0).saturating_mul(self.descriptor.dtype.size())
    }

    /// Iterates over the local ones of some ranks.
    pub fn local_ranks_of(&self, ranks: BlockRanks) -> impl Iterator<Item = RankId> {
        self.weights.keys().copied().filter(move |rank| ranks.contains(*rank))
    }

    /// Returns the place of a segment in the slot in which its result is made or lands: that of the
    /// first local rank that gets it.
    pub(super) fn result_view(
        &self,
        part: &TransferPart,
        index: u32,
        sequence: Sequence,
    ) -> BufferView {
        let first = self.local_ranks_of(part.receivers(index)).next();
        part.result_view(index, sequence, first.unwrap_or_default())
    }
}

/// The contributions that have not arrived whole: the first byte of each that is missing, and the time
/// when the last bytes came. Contributions without an entry are here.
#[derive(Debug, Default)]
pub(super) struct ArrivingContributions(pub BTreeMap<RankId, (u64, TimeNs)>);

impl ArrivingContributions {
    /// Whether these bytes of a rank's contribution are here.
    pub fn has_contribution_bytes(&self, rank: RankId, range: &Range<u64>) -> bool {
        self.0.get(&rank).is_none_or(|(missing_from, _)| range.end <= *missing_from)
    }

    /// Iterates over the ranks whose contributions have not all arrived, with the first byte that is
    /// missing.
    pub fn missing_contributions(&self) -> impl Iterator<Item = (RankId, u64)> {
        self.0.iter().map(|(rank, (missing_from, _))| (*rank, *missing_from))
    }

    /// Returns the time since when bytes of some contribution have not come; `None` if all are here.
    pub fn oldest_contribution_arrival(&self) -> Option<TimeNs> {
        self.0.values().map(|(_, came)| *came).min()
    }
}

/// The stages of a collective's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FlowStage {
    /// Local ranks have not posted: peers may send segments and grants.
    #[default]
    Waiting,
    /// Segments move.
    Moving,
    /// The result is on all local ranks; receipts may be missing.
    Delivered,
    /// The result is on all local ranks, and nothing moves any more.
    Abandoned,
    /// Nothing moves, and nothing that arrives counts.
    Failed,
}

/// The segments of one collective, its grants, and the users of its memory.
#[derive(Debug, Default)]
pub(super) struct TransferFlow {
    pub stage: FlowStage,
    /// Present once it has started.
    pub work: Option<TransferFlowWork>,
    /// Its parts, once it has started.
    pub parts: Vec<TransferPart>,
    /// Contributions of local ranks that have not all arrived.
    pub arriving: ArrivingContributions,
    /// Local ranks that hear of each part of their results.
    pub reports_to: BTreeSet<RankId>,
    pub incoming: BTreeMap<(GatewayId, TreeIndex, SegmentIndex), IncomingSegmentState>,
    /// Segments that peers allow us to send.
    pub grants_in: BTreeMap<(GatewayId, TreeIndex), u32>,
    /// Segments that we allow peers, and ourselves as a relay, to send.
    pub grants_out: BTreeMap<(GatewayId, TreeIndex), u32>,
    /// Whether a peer has sent a segment, or granted some. Until then the collective may wait for other
    /// ranks, and moves nothing.
    pub has_exchanged: bool,
    /// Whether this gateway, as a relay, holds its partials in the reserve of its size class.
    pub has_reserve: bool,
    /// Tasks and leases that may touch memory.
    pub busy: u32,
    /// Streams out are being stopped, and may still read memory.
    pub cancelling: bool,
    /// The time when the first segment was ready to leave; zero before.
    pub wan_begin: TimeNs,
    /// The time when the last segment arrived; zero before.
    pub wan_end: TimeNs,
}

impl TransferFlow {
    /// Returns the size class of the collective's buffer; large until the collective has started.
    pub fn size_class(&self) -> SizeClass {
        self.work.as_ref().map_or(SizeClass::Large, |work| SizeClass::for_buffer(work.bytes()))
    }

    /// Whether several local ranks contribute, so that their partials take gateway memory.
    pub fn has_partials(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.weights.len() > 1)
    }

    /// Whether segments may be granted and sent: the collective has started, and neither failed nor
    /// been abandoned.
    pub fn is_moving(&self) -> bool {
        matches!(self.stage, FlowStage::Moving | FlowStage::Delivered)
    }

    /// Whether the collective has started, and is large.
    pub fn is_large(&self) -> bool {
        self.work.is_some() && self.size_class() == SizeClass::Large
    }

    /// Whether no task, lease or stream touches the collective's memory any more.
    pub fn is_quiescent(&self) -> bool {
        self.busy == 0 && !self.cancelling
    }

    /// Whether all parts are in every local result slot, before the collective is marked as
    /// delivered.
    pub fn is_delivered(&self) -> bool {
        self.stage == FlowStage::Moving
            && self.busy == 0
            && self
                .parts
                .iter()
                .all(|part| part.delivered == part.segment_count() || self.is_on_its_way(part))
            && !(self.ends_with_receipts() && self.awaits_receipts())
    }

    /// Whether ranks that only contribute wait until the other ranks have their results.
    pub fn ends_with_receipts(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.descriptor.pattern.ends_with_receipts())
    }

    /// Whether ranks here have done all that is theirs in a part: it only goes up from here, has been
    /// reduced, and what they get comes along other parts, if they get anything.
    fn is_on_its_way(&self, part: &TransferPart) -> bool {
        let ends = self.work.as_ref().is_some_and(|w| w.descriptor.pattern.ends_with_partials());
        ends && part.only_sends_partial() && part.next_local == part.segment_count()
    }

    /// Whether the result contains contributions of all ranks, so that all must have posted. A part
    /// that only goes up proves nothing, unless its results came along another tree.
    pub fn proves_all_posted(&self) -> bool {
        let sums =
            |part: &TransferPart| part.follows || part.phases.up && !part.only_sends_partial();
        let parts = || self.parts.iter().filter(|part| part.segment_count() > 0);
        let followed = parts().any(|part| part.follows);
        parts().next().is_some()
            && parts().all(|part| sums(part) || followed && part.only_sends_partial())
    }

    /// Whether the receipt of a segment that is passed on waits until all of its part are receipted
    /// below: that of the last one, where ranks above wait until those below have their results.
    pub fn withholds_receipt(&self, part: &TransferPart, index: u32) -> bool {
        self.ends_with_receipts()
            && part.passes_on
            && index.saturating_add(1) == part.segment_count()
            && part.done_prefix < part.segment_count()
    }

    /// Returns the bytes that this gateway has granted to the gateways above for what it passes on,
    /// and that the gateways below do not all have yet.
    pub fn passed_on_bytes(&self) -> u64 {
        let granted = |(tree, part): (TreeIndex, &TransferPart)| match part.role.upstream {
            TreeUpstream::Parent(above) if part.passes_on => {
                let granted = self.grants_out.get(&(above, tree)).copied().unwrap_or(0);
                (part.done_prefix..granted).map(|index| part.segment_bytes(index)).sum()
            }
            _ => 0,
        };
        (0..).map(TreeIndex).zip(&self.parts).map(granted).sum()
    }

    /// Whether some segment was sent that has no receipt yet.
    pub fn has_unreceipted_sends(&self) -> bool {
        self.parts.iter().flat_map(|part| part.out.values()).any(|out| !out.due.is_empty())
    }

    /// Whether some segment, sent or still to be sent, has no receipt yet.
    pub fn awaits_receipts(&self) -> bool {
        let due = |part: &TransferPart| part.segments.iter().any(|s| s.receipts_due > 0);
        self.parts.iter().any(due)
    }

    /// Returns the bytes of subtrees' partials that this gateway holds, or may come to hold.
    pub fn relayed_bytes(&self, me: GatewayId) -> u64 {
        let held = |part: &TransferPart| part.bytes_from(part.first_unreleased_segment(me, me));
        self.parts.iter().filter(|part| part.is_buffered_here(me, me)).map(held).sum()
    }

    /// Builds the grants and receipts that bring a peer up to date.
    pub fn catch_up_messages(
        &self,
        peer: GatewayId,
        epoch: Epoch,
        sequence: Sequence,
    ) -> Vec<Message> {
        let ours = self.grants_out.iter().filter(|((to, _), _)| *to == peer);
        let grants = ours.map(|((_, tree), limit)| Message::Grant {
            epoch,
            sequence,
            tree: *tree,
            limit: *limit,
        });
        let receipts = self.receipted_ranges(peer).into_iter();
        let receipt = |(tree, segments)| Message::Receipt { epoch, sequence, tree, segments };
        grants.chain(receipts.map(receipt)).collect()
    }

    /// Returns the segments of a peer that have been receipted, as a few ranges of each tree,
    /// however many.
    fn receipted_ranges(&self, peer: GatewayId) -> Vec<(TreeIndex, Range<u32>)> {
        let mut ranges: Vec<(TreeIndex, Range<u32>)> = Vec::new();
        let theirs = self.incoming.iter().filter(|((from, ..), i)| *from == peer && i.receipted);
        for ((_, tree, SegmentIndex(segment)), _) in theirs {
            match ranges.last_mut() {
                Some((last, range)) if last == tree && range.end == *segment => range.end += 1,
                _ => ranges.push((*tree, *segment..segment.saturating_add(1))),
            }
        }
        ranges
    }

    /// Returns the segments that peers send here, by peer and part: those that the collective has
    /// receipted when it is complete.
    pub fn expected_segments(&self, me: GatewayId) -> Vec<(GatewayId, TreeIndex, u32)> {
        let parts = (0..).map(TreeIndex).zip(&self.parts);
        let parts = parts.filter(|(_, part)| part.segment_count() > 0);
        let of_part = |(tree, part): (TreeIndex, &TransferPart)| {
            let count = part.segment_count();
            part.senders(me).into_iter().map(move |peer| (peer, tree, count)).collect::<Vec<_>>()
        };
        parts.flat_map(of_part).collect()
    }

    /// Returns the first peer that sent a segment whose tree, index or length the plan does not
    /// contain; `None` if all segments are valid. Segments of another descriptor were dropped
    /// before.
    pub fn sender_of_invalid_segment(&self, me: GatewayId) -> Option<GatewayId> {
        let is_due = |from: GatewayId, tree: TreeIndex, segment: SegmentIndex, bytes: u32| {
            let part = self.parts.get(usize::from(tree.0));
            part.is_some_and(|part| flow_expects_segment(part, from, me, segment, bytes))
        };
        let mut incoming = self.incoming.iter();
        let sender_of_invalid_segment = incoming.find(|((from, tree, segment), incoming)| {
            !is_due(*from, *tree, *segment, incoming.bytes)
        });
        sender_of_invalid_segment.map(|((from, ..), _)| *from)
    }
}

/// Whether a part expects a segment with this index and length, in bytes, from a peer.
pub(super) fn flow_expects_segment(
    part: &TransferPart,
    from: GatewayId,
    me: GatewayId,
    segment: SegmentIndex,
    bytes: u32,
) -> bool {
    segment.0 < part.segment_count()
        && part.expects_from(from, me)
        && part.segment_bytes(segment.0) == u64::from(bytes)
}

/// Builds the parts of a collective on this gateway; none outside an epoch.
pub(super) fn flow_parts_of_collective(
    epoch: &EpochState,
    sequence: Sequence,
    descriptor: &Descriptor,
    counts: &KnownCounts,
) -> Vec<TransferPart> {
    let Some(plans) = epoch.plans() else { return vec![] };
    let (me, fabric) = (epoch.me(), epoch.local().fabric());
    let followed = plans.plan_of(sequence);
    // A peer may announce a root that is no rank; no rank posts such a collective.
    let operation = descriptor.pattern.over_gateways(fabric);
    let plan = operation.map_or(Cow::Borrowed(&followed.plan), |operation| {
        followed.rerooted_for(fabric, operation)
    });
    let source = OperationPartSource {
        plan: &plan,
        owner_trees: &followed.owner_trees,
        fabric,
        descriptor,
        counts,
        only: Some(me),
    };
    let ranks = &fabric.gateway(me).ranks;
    source.parts().into_iter().map(|part| TransferPart::new(part, me, ranks)).collect()
}

//! Segments out: each within its grant or the peer's unsolicited window.

use super::part::{SegmentPayload, TransferPart};
use super::transfer_flow::{FlowStage, TransferFlowWork};
use super::transfer_state::Transfer;
use super::windows::unsolicited::{UnsolicitedBound, UnsolicitedWindow};
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::mutant::{self, Mutant};
use crate::session::action::{Action, ReduceInput, SegmentPriority};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::epoch_state::EpochState;
use crate::size_class::SizeClass;
use crate::tail_fec::TailParity;
use crate::tail_fec::tail_fec_parity_shards;
use crate::wire::Message;
use crate::wire::{SegmentHeader, SegmentKey};
use units::{Fraction, TimeNs};

impl Transfer {
    /// Grants credit and sends all ready segments, to all peers.
    pub fn send_to_all_peers(&mut self, cx: &mut Context<'_>) {
        self.grant_credit(cx.epoch.me(), cx);
        for peer in cx.epoch.ready_peers() {
            self.grant_credit(peer, cx);
            self.send_ready_segments(peer, cx);
        }
    }

    /// Sends a peer its ready segments: the smallest class first, and of a class the lowest
    /// collective first.
    pub(super) fn send_ready_segments(&mut self, to: GatewayId, cx: &mut Context<'_>) {
        if !cx.epoch.ready_peers().contains(&to) {
            return;
        }
        SizeClass::ALL.into_iter().for_each(|class| self.send_ready_of_class(class, to, cx));
    }

    /// Sends a peer the ready segments of one size class, within its grants and its unsolicited
    /// window.
    fn send_ready_of_class(&mut self, class: SizeClass, to: GatewayId, cx: &mut Context<'_>) {
        let window = UnsolicitedWindow::kept_by(cx.epoch, to);
        let protection = self.send_tail_protection(class, to, window.tail_bytes, cx);
        let window = class.usable_window(window.bytes);
        let charge = UnsolicitedBound::for_peer(cx.epoch, to);
        for (sequence, flow) in self.flows.iter_mut().filter(|(_, flow)| flow.is_moving()) {
            if flow.size_class() != class {
                continue;
            }
            let Some(work) = flow.work.as_ref() else { continue };
            // Most flows have nothing to send now.
            let mut digest = None;
            // Blocks may be many and short; the receiver counts each as a page.
            let charge = charge.as_ref().filter(|_| work.descriptor.pattern.has_blocks());
            for (tree, part) in flow.parts.iter_mut().enumerate() {
                let tree = TreeIndex(u16::try_from(tree).unwrap_or(u16::MAX));
                let granted = flow.grants_in.get(&(to, tree)).copied().unwrap_or(0);
                while let Some((index, source)) = next_segment_to_send(part, to, *sequence, work) {
                    let segment = SegmentIndex(index);
                    let key = SegmentKey { sequence: *sequence, tree, segment };
                    let bytes = source.view.range.end - source.view.range.start;
                    let solicited = index < granted;
                    let charged = u32::try_from(bytes).unwrap_or(u32::MAX);
                    let charged = charge.map_or(bytes, |bound| bound.charged_bytes(charged));
                    if !solicited && !self.unsolicited.reserve_window(to, key, charged, window) {
                        break;
                    }
                    let left = u64::from(part.segment_count() - index) * bytes;
                    let tail = protection.segment_tail(*sequence, left, bytes);
                    if let Some(outbound) = part.out.get_mut(&to) {
                        outbound.next += 1;
                        outbound.due.insert(index);
                    }
                    if flow.wan_begin == TimeNs::default() {
                        flow.wan_begin = cx.now;
                    }
                    let header = SegmentHeader {
                        epoch: cx.epoch.number(),
                        key,
                        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                        digest: *digest.get_or_insert_with(|| work.descriptor.digest()),
                        weight: source.weight,
                        // The sender on the lane decides, since it sees what follows.
                        parity: 0,
                    };
                    let source = source.view;
                    let priority = SegmentPriority {
                        class,
                        depth: sent_segment_depth(index, part.segment_count()),
                    };
                    cx.actions.push(Action::Send { to, header, source, priority, tail });
                }
            }
        }
    }

    /// Returns the FEC protection of the last bytes of a size class to a peer.
    fn send_tail_protection(
        &self,
        class: SizeClass,
        to: GatewayId,
        tail_bytes: u64,
        cx: &Context<'_>,
    ) -> SendTailProtection {
        let mut flows = self.flows.iter();
        let last = flows.rfind(|(_, f)| f.stage == FlowStage::Moving && f.size_class() >= class);
        SendTailProtection {
            last: last.map(|(sequence, _)| *sequence),
            bytes: tail_bytes,
            loss: cx.epoch.link_to(to).map_or(Fraction::default(), |link| link.loss),
            mtu: cx.epoch.local().fabric().mtu(),
        }
    }
}

/// The last bytes to a peer, which carry parity. Losses of earlier bytes are retransmitted while
/// later ones are under way, and so are those of a collective that another one follows.
struct SendTailProtection {
    /// The last moving collective of this class or a larger one.
    last: Option<Sequence>,
    /// Bytes at the end of that collective that carry parity.
    bytes: u64,
    loss: Fraction,
    mtu: u16,
}

impl SendTailProtection {
    /// Returns the parity of a segment of `bytes` bytes, with `left` bytes of its tree to go, its
    /// own included. None for another collective than the last, and before its tail.
    fn segment_tail(&self, sequence: Sequence, left: u64, bytes: u64) -> TailParity {
        if self.last != Some(sequence) || left > self.bytes {
            return TailParity::default();
        }
        TailParity { parity: tail_fec_parity_shards(bytes, self.loss, self.mtu), room: self.bytes }
    }
}

/// Returns the position of a segment in a part of `count` segments, in units of 1 / `u32::MAX`.
fn sent_segment_depth(index: u32, count: u32) -> u32 {
    let depth = u64::from(index) * u64::from(u32::MAX) / u64::from(count.max(1));
    u32::try_from(depth).unwrap_or(u32::MAX)
}

/// Returns the index and the bytes of the next segment for a peer; none until they are here.
fn next_segment_to_send(
    part: &TransferPart,
    to: GatewayId,
    sequence: Sequence,
    work: &TransferFlowWork,
) -> Option<(u32, ReduceInput)> {
    let outbound = part.out.get(&to)?;
    let is_relayed = !part.phases.up && !part.is_at_root();
    if is_relayed
        && outbound.next + 1 == part.segment_count()
        && mutant::is_mutant_active(Mutant::DropRelayed)
    {
        return None;
    }
    let segment = part.segments.get(outbound.next as usize)?;
    let source = match outbound.payload {
        SegmentPayload::Partial => segment.partial.clone()?,
        SegmentPayload::Result if segment.result => {
            let placed = || work.result_view(part, outbound.next, sequence);
            ReduceInput { view: segment.moved.clone().unwrap_or_else(placed), weight: 1.0 }
        }
        SegmentPayload::Result => return None,
    };
    Some((outbound.next, source))
}

/// Sends the receipt of one segment to a peer.
pub(in crate::session) fn send_receipt(
    to: GatewayId,
    key: SegmentKey,
    epoch: &EpochState,
    actions: &mut ActionQueue,
) {
    let SegmentKey { sequence, tree, segment: SegmentIndex(segment) } = key;
    let (epoch, segments) = (epoch.number(), segment..segment.saturating_add(1));
    actions.push_message(to, Message::Receipt { epoch, sequence, tree, segments });
}

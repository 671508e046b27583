//! The unsolicited window: bytes that a peer may send beyond its grants.

use crate::ids::{GatewayId, Sequence};
use crate::plan;
use crate::session::collective::recent_collectives::COLLECTIVES_AHEAD_MAX;
use crate::session::epoch::epoch_state::EpochState;
use crate::topology::{Link, LinkState};
use crate::wire::SegmentKey;
use std::collections::BTreeMap;
use std::ops::Range;

/// 4,096 bytes, one memory page: a segment without a grant takes at least so much of its sender's
/// unsolicited window. A shorter segment takes a page of memory too.
/// Tested by `unsolicited_segments_are_bounded_however_short`.
const PAGE_BYTES: u64 = 4096;

/// The bytes that may be under way to a gateway beyond its grants.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::session::transfer) struct UnsolicitedWindow {
    /// Bytes without a grant.
    pub bytes: u64,
    /// Bytes with parity, near the end of a transfer.
    pub tail_bytes: u64,
}

impl UnsolicitedWindow {
    /// Returns the window that this gateway keeps for a peer.
    pub fn kept_for(epoch: &EpochState, peer: GatewayId) -> Self {
        Self::over_link(epoch, epoch.link_to(peer))
    }

    /// Returns the window that a peer keeps for this gateway, by the link of the peer's own fabric
    /// file. Never more than this gateway would keep.
    pub fn kept_by(epoch: &EpochState, peer: GatewayId) -> Self {
        let link = epoch.link_to(peer);
        let as_reported = |LinkState { rate, rtt, loss }: LinkState| {
            link.map(|link| Link { rate, rtt, loss, ..link.clone() })
        };
        let theirs = epoch.members().reported_link(peer).and_then(as_reported);
        let ours = Self::over_link(epoch, link);
        let theirs = Self::over_link(epoch, theirs.as_ref().or(link));
        Self {
            bytes: ours.bytes.min(theirs.bytes),
            tail_bytes: ours.tail_bytes.min(theirs.tail_bytes),
        }
    }

    /// Returns the window over a link under the plan in force; empty outside an epoch.
    fn over_link(epoch: &EpochState, link: Option<&Link>) -> Self {
        let Some(plan) = epoch.plan() else { return Self::default() };
        let repair = link.map(|link| plan.tail_fec(link, epoch.local().fabric().mtu()));
        let tail_bytes = repair.map_or(0, |repair| repair.tail_bytes());
        let bytes = plan::unsolicited_window_size_of_link(link, plan).min(epoch.unsolicited_max());
        Self { bytes: bytes.get(), tail_bytes }
    }
}

/// The bound on what a peer sends without a grant.
pub(in crate::session::transfer) struct UnsolicitedBound {
    window: UnsolicitedWindow,
    /// Bytes that a segment is charged at least.
    charge_min: u64,
    trees: u64,
}

impl UnsolicitedBound {
    /// Returns the bound for a peer; none outside an epoch.
    pub fn for_peer(epoch: &EpochState, peer: GatewayId) -> Option<Self> {
        let plans = epoch.plans()?;
        Some(Self {
            window: UnsolicitedWindow::kept_for(epoch, peer),
            charge_min: PAGE_BYTES.min(plans.plan().segment.get()),
            trees: plans.plan().trees.len() as u64,
        })
    }

    /// Returns the bytes that a segment of this length is charged.
    pub fn charged_bytes(&self, bytes: u32) -> u64 {
        u64::from(bytes).max(self.charge_min)
    }

    /// Returns the bytes that a peer which keeps the rules never exceeds. Both sides give back the
    /// window of a failed collective at different times, so up to twice the window may be in use
    /// for a moment. Each tree of each collective may end with a short segment.
    pub fn max_bytes(&self) -> u64 {
        2 * (self.window.bytes + self.window.tail_bytes)
            + COLLECTIVES_AHEAD_MAX * self.trees * self.charge_min
    }
}

/// The unsolicited bytes in use, by peer.
#[derive(Debug, Default)]
pub(in crate::session::transfer) struct UnsolicitedUse {
    /// Segments sent to a peer beyond its grants that have no receipt yet, with their bytes.
    sent: BTreeMap<GatewayId, BTreeMap<SegmentKey, u64>>,
    /// Bytes from a peer beyond our grants or with parity that are not consumed yet.
    held: BTreeMap<GatewayId, u64>,
}

impl UnsolicitedUse {
    /// Frees all windows at the end of an epoch: both sides begin the next one with whole windows.
    pub fn reset(&mut self) {
        self.sent.clear();
        self.held.clear();
    }

    /// Takes room for a segment to a peer, out of a window of `window` bytes. Returns false, and
    /// takes none, when the segment does not fit.
    pub fn reserve_window(
        &mut self,
        to: GatewayId,
        key: SegmentKey,
        bytes: u64,
        window: u64,
    ) -> bool {
        let sent = self.sent.entry(to).or_default();
        let used: u64 = sent.values().sum();
        if used + bytes > window {
            return false;
        }
        sent.insert(key, bytes);
        true
    }

    /// Frees the window of the segments that a peer has receipted, a range of keys.
    pub fn release_receipted(&mut self, from: GatewayId, keys: Range<SegmentKey>) {
        let Some(sent) = self.sent.get_mut(&from) else { return };
        let theirs: Vec<SegmentKey> = sent.range(keys).map(|(key, _)| *key).collect();
        for key in &theirs {
            sent.remove(key);
        }
    }

    /// Frees the window of all segments of a collective that were sent to any peer.
    pub fn forget_collective(&mut self, sequence: Sequence) {
        for sent in self.sent.values_mut() {
            sent.retain(|key, _| key.sequence != sequence);
        }
    }

    /// Charges a peer for a segment that is held here. Returns the bytes charged to the peer in
    /// total.
    pub fn charge_peer(&mut self, from: GatewayId, bytes: u64) -> u64 {
        let held = self.held.entry(from).or_default();
        *held += bytes;
        *held
    }

    /// Gives a peer back the charge of a segment, in bytes.
    pub fn refund_peer(&mut self, from: GatewayId, bytes: u64) {
        if let Some(held) = self.held.get_mut(&from) {
            *held = held.saturating_sub(bytes);
        }
    }

    /// Returns the bytes of the window in use towards a peer.
    #[cfg(test)]
    pub fn sent_bytes(&self, to: GatewayId) -> u64 {
        self.sent.get(&to).map_or(0, |sent| sent.values().sum())
    }

    /// Whether no window is in use, in either direction.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.sent.values().all(BTreeMap::is_empty) && self.held.values().all(|held| *held == 0)
    }
}

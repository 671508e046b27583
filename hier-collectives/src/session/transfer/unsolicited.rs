//! The unsolicited window: bytes that a peer may send beyond its grants.

use crate::ids::{GatewayId, Sequence};
use crate::plan;
use crate::session::collective::overreach::MAX_AHEAD;
use crate::session::epoch::state::EpochState;
use crate::topology::{Link, LinkState};
use crate::wire::SegmentKey;
use std::collections::BTreeMap;
use std::ops::Range;

/// 4 KiB. An unsolicited segment is charged at least a page, since memory comes in pages.
/// Tested by `unsolicited_segments_are_bounded_however_short`.
const PAGE_BYTES: u64 = 4096;

/// The bytes that may be under way to a gateway beyond its grants.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnsolicitedWindow {
    /// Bytes without a grant.
    pub bytes: u64,
    /// Bytes with parity, near the end of a transfer.
    pub tail_bytes: u64,
}

impl UnsolicitedWindow {
    /// The window that this gateway keeps for a peer.
    pub fn kept_for(epoch: &EpochState, peer: GatewayId) -> Self {
        Self::over(epoch, epoch.link_to(peer))
    }

    /// The window that a peer keeps for this gateway, by its own fabric's link, which need not be
    /// ours; never more than we would keep.
    pub fn at(epoch: &EpochState, peer: GatewayId) -> Self {
        let link = epoch.link_to(peer);
        let as_reported = |LinkState { rate, rtt, loss }: LinkState| {
            link.map(|link| Link { rate, rtt, loss, ..link.clone() })
        };
        let theirs = epoch.members().link_of(peer).and_then(as_reported);
        let ours = Self::over(epoch, link);
        let theirs = Self::over(epoch, theirs.as_ref().or(link));
        Self {
            bytes: ours.bytes.min(theirs.bytes),
            tail_bytes: ours.tail_bytes.min(theirs.tail_bytes),
        }
    }

    fn over(epoch: &EpochState, link: Option<&Link>) -> Self {
        let Some(plan) = epoch.plan() else { return Self::default() };
        let repair = link.map(|link| plan.fec(link, epoch.local().fabric().mtu()));
        let tail_bytes = repair.map_or(0, |repair| repair.tail_bytes());
        Self { bytes: plan::unsolicited_window_bytes(link, plan).get(), tail_bytes }
    }
}

/// The bound on what a peer sends without a grant.
pub(super) struct UnsolicitedBound {
    window: UnsolicitedWindow,
    /// Bytes that a segment is charged at least.
    charge_min: u64,
    trees: u64,
}

impl UnsolicitedBound {
    /// The bound for a peer; none outside an epoch.
    pub fn of(epoch: &EpochState, peer: GatewayId) -> Option<Self> {
        let plans = epoch.plans()?;
        Some(Self {
            window: UnsolicitedWindow::kept_for(epoch, peer),
            charge_min: PAGE_BYTES.min(plans.plan().segment.get()),
            trees: plans.roles().len() as u64,
        })
    }

    /// The charge of a segment of so many bytes.
    pub fn charge(&self, bytes: u32) -> u64 {
        u64::from(bytes).max(self.charge_min)
    }

    /// Bytes that a peer which keeps the rules never exceeds. Both sides give back the window of a
    /// failed collective at different times, so up to twice the window may be in use for a moment.
    /// Each tree of each collective may end with a short segment.
    pub fn limit(&self) -> u64 {
        2 * (self.window.bytes + self.window.tail_bytes) + MAX_AHEAD * self.trees * self.charge_min
    }
}

/// The unsolicited bytes in use, by peer.
#[derive(Debug, Default)]
pub(super) struct UnsolicitedUse {
    /// Segments sent to a peer beyond its grants that have no receipt yet, with their bytes.
    sent: BTreeMap<GatewayId, BTreeMap<SegmentKey, u64>>,
    /// Bytes from a peer beyond our grants or with parity that are not consumed yet.
    held: BTreeMap<GatewayId, u64>,
}

impl UnsolicitedUse {
    /// An epoch ends: both sides begin the next one with whole windows.
    pub fn reset(&mut self) {
        self.sent.clear();
        self.held.clear();
    }

    /// Takes room for a segment to a peer, out of a window of `window` bytes; false when it is full.
    pub fn send(&mut self, to: GatewayId, key: SegmentKey, bytes: u64, window: u64) -> bool {
        let sent = self.sent.entry(to).or_default();
        let used: u64 = sent.values().sum();
        if used + bytes > window {
            return false;
        }
        sent.insert(key, bytes);
        true
    }

    /// Receipts for a range of segments came from a peer.
    pub fn receipted(&mut self, from: GatewayId, keys: Range<SegmentKey>) {
        let Some(sent) = self.sent.get_mut(&from) else { return };
        let theirs: Vec<SegmentKey> = sent.range(keys).map(|(key, _)| *key).collect();
        for key in &theirs {
            sent.remove(key);
        }
    }

    /// Forgets the segments of a collective that were sent to anybody.
    pub fn forget(&mut self, sequence: Sequence) {
        for sent in self.sent.values_mut() {
            sent.retain(|key, _| key.sequence != sequence);
        }
    }

    /// Charges a peer for a segment here; returns the bytes in use.
    pub fn hold(&mut self, from: GatewayId, bytes: u64) -> u64 {
        let held = self.held.entry(from).or_default();
        *held += bytes;
        *held
    }

    /// Gives back the charge of a segment.
    pub fn give_back(&mut self, from: GatewayId, bytes: u64) {
        if let Some(held) = self.held.get_mut(&from) {
            *held = held.saturating_sub(bytes);
        }
    }

    #[cfg(test)]
    pub fn sent_bytes(&self, to: GatewayId) -> u64 {
        self.sent.get(&to).map_or(0, |sent| sent.values().sum())
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.sent.values().all(BTreeMap::is_empty) && self.held.values().all(|held| *held == 0)
    }
}

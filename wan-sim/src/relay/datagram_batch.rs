//! Datagrams that leave the relay in one send.

use super::relay_socket::Datagrams;
use crate::PacketName;
use quinn_udp::EcnCodepoint;
use units::{Span, TimeNs};

/// One client of one forward. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId(pub(super) u64);

/// A datagram of a batch, and when it arrives.
pub(super) type BatchMember = (PacketName, TimeNs);

/// Datagrams of one flow and one size, the last one perhaps shorter.
#[derive(Debug)]
pub(super) struct DatagramBatch {
    pub(super) flow: FlowId,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) segment_bytes: usize,
    pub(super) data: Vec<u8>,
    /// Each of them, in order of arrival: the first at most [`BATCH_SPAN_MAX`] before the last.
    pub(super) members: Vec<BatchMember>,
    /// A shorter datagram ends it.
    pub(super) closed: bool,
}

impl DatagramBatch {
    /// Returns the datagrams of the batch as one send takes them.
    pub(super) fn as_datagrams(&self) -> Datagrams<'_> {
        Datagrams { data: &self.data, segment_bytes: self.segment_bytes, ecn: self.ecn }
    }

    /// Returns when the batch is due: the arrival of its last datagram.
    pub(super) fn due(&self) -> TimeNs {
        self.members.last().map(|(_, at)| *at).unwrap_or_default()
    }

    /// Returns when the first datagram of the batch arrives.
    fn first_due(&self) -> TimeNs {
        self.members.first().map(|(_, at)| *at).unwrap_or_default()
    }

    /// Returns the name of the first datagram of the batch.
    pub(super) fn first_name(&self) -> Option<PacketName> {
        self.members.first().map(|(name, _)| *name)
    }

    /// Splits off the datagrams that do not arrive together with the first; `None` when all do.
    pub(super) fn split_off_late(&mut self) -> Option<Self> {
        let first_due = self.first_due();
        let apart = self.members.windows(2).position(|pair| {
            pair[1].1 < pair[0].1 || pair[1].1.since(first_due) > BATCH_SPAN_MAX
        })?;
        let members = self.members.split_off(apart + 1);
        // All but the last have the same length.
        let data = self.data.split_off((apart + 1) * self.segment_bytes);
        let closed = std::mem::replace(&mut self.closed, true);
        Some(Self { members, data, closed, ..*self })
    }

    /// Returns whether a datagram of `bytes` that arrives at `at` fits at the end of the batch. It
    /// must have the same flow and ECN mark, be no longer than the first datagram, and keep the
    /// limits of one send.
    pub(super) fn can_append(
        &self,
        flow: FlowId,
        ecn: Option<EcnCodepoint>,
        bytes: usize,
        at: TimeNs,
    ) -> bool {
        !self.closed
            && self.flow == flow
            && self.ecn == ecn
            && (1..=self.segment_bytes).contains(&bytes)
            && self.data.len() + bytes <= BATCH_BYTES_MAX
            && self.members.len() < BATCH_DATAGRAMS_MAX
            && at >= self.due()
            && at.since(self.first_due()) <= BATCH_SPAN_MAX
    }
}

/// Appends `datagram` to `data`, with bit `corrupt_bit` of the datagram flipped, modulo its bits.
pub(super) fn append_to_datagram_batch(
    data: &mut Vec<u8>,
    datagram: &[u8],
    corrupt_bit: Option<u32>,
) {
    let from = data.len();
    data.extend_from_slice(datagram);
    if let Some(bit) = corrupt_bit
        && !datagram.is_empty()
    {
        let bit = bit as usize % (datagram.len() * 8);
        data[from + bit / 8] ^= 1 << (bit % 8);
    }
}

/// 100 us: datagrams of a flow leave in one send if the last is due at most this long after the
/// first. The send is made when the last is due. The time is chosen: a wake-up for each would take
/// too much processor time.
pub(super) const BATCH_SPAN_MAX: Span = Span::from_ns(100_000);

/// 65,507 bytes: the longest UDP payload, hence the most bytes of datagrams that the relay joins
/// for one send.
pub(super) const BATCH_BYTES_MAX: usize = 65_507;
/// 64 datagrams: the most that the relay joins for one send, as the kernel's UDP segmentation
/// offload (GSO) allows.
pub(super) const BATCH_DATAGRAMS_MAX: usize = 64;

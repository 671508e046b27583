//! The packets of a lane that wait to leave in one send call.
//!
//! The kernel takes several packets in one call (UDP GSO). They have one destination, one source
//! address, one ECN mark and one length; only the last may be shorter. Formulas:
//!
//! ```text
//! call packets     = min(segments that the socket takes, SEND_CALL_BYTES_MAX / packet), at least 1
//! transmit packets = call packets / ceil(call packets / TRANSMIT_PACKETS_MAX)
//! ```
//!
//! So a full call consists of whole transmits of quinn.

use quinn::udp::{EcnCodepoint, Transmit};
use std::net::{IpAddr, SocketAddr};

/// 65,507 bytes: the most that one send call takes, all its packets together; further packets leave
/// in the next call. It is the largest payload of a UDP datagram over IPv4.
const SEND_CALL_BYTES_MAX: usize = 65_507;
/// 10 packets: the most that quinn makes before it hands them to the socket, even if the socket
/// takes more in one call. Full calls are therefore gathered from several of quinn's transmits.
const TRANSMIT_PACKETS_MAX: usize = 10;

/// The packets that wait to leave in one send call, in a buffer that is used again.
#[derive(Debug)]
pub(super) struct PacketBatch {
    /// The packets without gaps.
    bytes: Vec<u8>,
    /// The form of the packets; `None` while none wait.
    form: Option<PacketForm>,
}

/// The properties that all packets of one send call share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PacketForm {
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    /// The length of each packet but the last, which may be shorter.
    packet_bytes: usize,
}

impl PacketBatch {
    /// Makes an empty batch with room for the largest send call.
    pub fn new() -> Self {
        Self { bytes: Vec::with_capacity(SEND_CALL_BYTES_MAX), form: None }
    }

    /// Returns whether the batch holds no packet.
    pub fn is_empty(&self) -> bool {
        self.form.is_none()
    }

    /// Appends a copy of the packets of `transmit` if they can leave in one call with those that
    /// wait; returns whether it did. The socket takes `segments_max` packets in one call.
    ///
    /// An empty batch takes only several packets of one length, with room for more. All others
    /// gain nothing by waiting. Among them are probes of the MTU, which the kernel may refuse alone.
    pub fn append(&mut self, transmit: &Transmit<'_>, segments_max: usize) -> bool {
        let form = PacketForm::of(transmit);
        let packets = batch_packet_count(transmit);
        let total = self.packets() + packets;
        let fits = match self.form {
            Some(waiting) => {
                let room = total <= batch_packets_per_call(waiting.packet_bytes, segments_max);
                room && self.has_whole_packets() && waiting.admits(form, packets)
            }
            None => {
                let is_whole = transmit.contents.len().is_multiple_of(form.packet_bytes);
                let room = total < batch_packets_per_call(form.packet_bytes, segments_max);
                packets > 1 && is_whole && room
            }
        };
        if fits {
            self.form.get_or_insert(form);
            self.bytes.extend_from_slice(transmit.contents);
        }
        fits
    }

    /// Returns whether no further packet can leave in the same call as those that wait.
    pub fn is_complete(&self, segments_max: usize) -> bool {
        self.form.is_some_and(|form| {
            let full = self.packets() >= batch_packets_per_call(form.packet_bytes, segments_max);
            full || !self.has_whole_packets()
        })
    }

    /// Returns the waiting packets as one call takes them; `None` when none wait.
    pub fn as_transmit(&self) -> Option<Transmit<'_>> {
        let form = self.form?;
        Some(Transmit {
            destination: form.destination,
            ecn: form.ecn,
            contents: &self.bytes,
            segment_size: Some(form.packet_bytes),
            src_ip: form.source,
        })
    }

    /// Forgets all packets of the batch, after they were sent or lost.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.form = None;
    }

    /// Returns the number of packets that wait.
    fn packets(&self) -> usize {
        self.form.map_or(0, |form| self.bytes.len().div_ceil(form.packet_bytes))
    }

    /// Returns whether the last packet is as long as the others.
    fn has_whole_packets(&self) -> bool {
        self.form.is_none_or(|form| self.bytes.len().is_multiple_of(form.packet_bytes))
    }
}

impl PacketForm {
    /// Returns the form of the packets of `transmit`: address, length and marks, by which packets
    /// may share a call.
    fn of(transmit: &Transmit<'_>) -> Self {
        Self {
            destination: transmit.destination,
            source: transmit.src_ip,
            ecn: transmit.ecn,
            packet_bytes: transmit.segment_size.unwrap_or(transmit.contents.len()).max(1),
        }
    }

    /// Returns whether `packets` packets of the form `next` may follow packets of this form in one
    /// call. Where it is only one packet, it may be shorter.
    fn admits(self, next: Self, packets: usize) -> bool {
        let is_last = packets == 1 && next.packet_bytes < self.packet_bytes;
        let packet_bytes = if is_last { self.packet_bytes } else { next.packet_bytes };
        self == Self { packet_bytes, ..next }
    }
}

/// Returns the number of packets that `transmit` holds in one buffer.
pub(super) fn batch_packet_count(transmit: &Transmit<'_>) -> usize {
    transmit.contents.len().div_ceil(PacketForm::of(transmit).packet_bytes)
}

/// Returns how many packets of `packet_bytes` one call takes, by a socket that takes at most
/// `segments_max`.
fn batch_packets_per_call(packet_bytes: usize, segments_max: usize) -> usize {
    segments_max.min(SEND_CALL_BYTES_MAX / packet_bytes).max(1)
}

/// Returns how many packets of `packet_bytes` quinn should make at a time, for a socket that takes
/// at most `segments_max` in one call.
pub(super) fn batch_packets_per_transmit(packet_bytes: usize, segments_max: usize) -> usize {
    let call = batch_packets_per_call(packet_bytes, segments_max);
    call / call.div_ceil(TRANSMIT_PACKETS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_call_consists_of_whole_transmits() {
        for (packet_bytes, segments_max, transmit, call) in [
            (1200, 64, 9, 54),
            (1452, 64, 9, 45),
            (1472, 64, 8, 44),
            (4052, 64, 8, 16),
            (8972, 64, 7, 7),
            (65_507, 64, 1, 1),
            (1472, 1, 1, 1),
        ] {
            assert_eq!(
                batch_packets_per_transmit(packet_bytes, segments_max),
                transmit,
                "{packet_bytes}"
            );
            assert_eq!(batch_packets_per_call(packet_bytes, segments_max), call, "{packet_bytes}");
            assert!(
                (call / transmit) * transmit * 10 >= 9 * call,
                "{packet_bytes}: calls not full"
            );
        }
    }

    /// The system says so only once such a call has failed.
    #[test]
    fn a_card_without_offload_gets_single_packets() {
        let transmit = Transmit {
            destination: SocketAddr::from(([10, 0, 0, 2], 7400)),
            ecn: None,
            contents: &[7; 2 * 1472],
            segment_size: Some(1472),
            src_ip: None,
        };
        let mut batch = PacketBatch::new();
        assert!(batch.append(&transmit, 64) && !batch.is_complete(64));
        assert!(batch.is_complete(1) && !batch.append(&transmit, 1));
        batch.clear();
        assert!(!batch.append(&transmit, 1));
        assert_eq!(batch_packets_per_transmit(1472, 1), 1);
    }

    #[test]
    fn a_batch_of_any_packet_size_fits_one_call() {
        let contents = vec![7; SEND_CALL_BYTES_MAX];
        let mut batch = PacketBatch::new();
        for packet_bytes in 1200..=SEND_CALL_BYTES_MAX {
            let packets = batch_packets_per_transmit(packet_bytes, 64);
            assert!((1..=TRANSMIT_PACKETS_MAX).contains(&packets), "{packet_bytes}");
            assert!(packets * packet_bytes <= SEND_CALL_BYTES_MAX, "{packet_bytes}");
            let transmit = Transmit {
                destination: SocketAddr::from(([10, 0, 0, 2], 7400)),
                ecn: None,
                contents: &contents[..packets * packet_bytes],
                segment_size: (packets > 1).then_some(packet_bytes),
                src_ip: None,
            };
            while batch.append(&transmit, 64) {
                let whole = batch.as_transmit().expect("packets wait");
                assert!(whole.contents.len() <= SEND_CALL_BYTES_MAX, "{packet_bytes}");
                assert!(batch_packet_count(&whole) <= 64, "{packet_bytes}");
            }
            // Whatever fills a call alone does not wait.
            let fills_alone = 2 * packets > batch_packets_per_call(packet_bytes, 64);
            assert_eq!(batch.is_empty(), fills_alone, "{packet_bytes}");
            batch.clear();
        }
    }
}

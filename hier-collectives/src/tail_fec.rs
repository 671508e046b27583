//! Forward error correction (FEC) of the tail: how much parity follows the last segments.
//!
//! A packet that is lost in the last round trip of a collective costs one more round trip. Parity
//! right behind a tail segment, on the same stream, restores the loss instead. A segment of `k`
//! shards and `m` parity shards is whole once any `k` of them have arrived. The gateway's
//! `wan/stream/fec_shards.rs` encodes and decodes; this file only decides.

use crate::bound::PACKET_OVERHEAD_BYTES;
use crate::plan::Plan;
use crate::topology::Link;
use units::{Fraction, Span};

/// 704 bytes: the length of an FEC shard, the unit into which a segment is cut and which parity
/// restores. A shard is about half of a full packet's payload, so a lost packet damages three
/// shards on average.
pub const SHARD_BYTES: u64 = 704;

/// 4 standard deviations of the number of lost packets of a segment: parity restores the mean
/// number, 4 deviations more, and one packet more. A normal distribution exceeds this in 3 of
/// 100,000 segments.
/// Tested by `lost_packets_are_restored`.
const PARITY_SIGMAS: f64 = 4.0;

/// 32,768 shards of 704 bytes (22 MiB): a longer segment gets no parity, and its lost packets are
/// only retransmitted. The limit is that of the Reed-Solomon code.
const PAYLOAD_SHARDS_MAX: u64 = 32_768;

/// 0.02 packets of one BDP: while more are expected to be lost in every sending so far, the tail
/// grows by 1.5 BDP. The tail is the end of a collective that has parity. Of n packets, n x loss^2
/// are lost twice. The limit is chosen.
const LOST_AGAIN_PER_BDP_MAX: f64 = 0.02;

/// 4 rounds of 1.5 BDP each: the tail, the end of a collective that has parity, grows to no more;
/// bytes before it have no parity. Each round stands for one more loss of the same packet. The
/// limit is chosen, to bound the parity on links with high loss.
const TAIL_ROUNDS_MAX: u64 = 4;

/// 4 segments: the shortest tail, which is the end of a collective that may have parity. The number
/// is chosen, for links whose BDP is less than a segment.
const TAIL_SEGMENTS_MIN: u64 = 4;

/// 2 ms: a lost packet without parity costs one round trip and 2 ms more, since timers at both ends
/// delay its detection. Parity is used only where it takes less time than that saves on average.
const DETECTION_DELAY: Span = Span::from_ms(2);

/// FEC of the tail over one link: its length, its benefit and its cost.
///
/// It is computed from one fabric file. Where the files of both ends differ, the shorter tail
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailFec {
    /// Bytes at the end of a collective that have parity where it pays.
    tail: u64,
    /// Mean time that a lost packet in the tail of a collective costs without parity.
    pub expected_saving: Span,
    /// Time that the tail's parity takes on the link.
    pub parity_time: Span,
}

impl TailFec {
    /// Returns the FEC over `link` for packets of `mtu` bytes and segments of `segment` bytes.
    ///
    /// A loss in the last BDP costs a round trip and `DETECTION_DELAY`. An earlier loss costs
    /// nothing, since more follows.
    pub fn for_link(link: &Link, mtu: u16, segment: u64) -> Self {
        let (bdp, loss) = (link.bdp().get() as f64, link.loss.as_f64());
        let some_lost = 1.0 - (1.0 - loss).powf(bdp / tail_fec_packet_payload(mtu));
        let tail = tail_fec_bytes(link, mtu, segment);
        let parity = u64::from(tail_fec_parity_shards(segment, link.loss, mtu)) * SHARD_BYTES;
        let parity = tail as f64 / segment as f64 * parity as f64;
        Self {
            tail,
            expected_saving: tail_fec_span(some_lost * (link.rtt + DETECTION_DELAY).as_secs_f64()),
            parity_time: tail_fec_span(parity / link.rate.bytes_per_second()),
        }
    }

    /// Whether parity behind the tail takes less time on the link than it saves on average.
    pub fn saves_time(&self) -> bool {
        self.expected_saving > self.parity_time
    }

    /// Returns the bytes at the end of a collective that have parity; 0 where parity saves no time.
    pub fn tail_bytes(&self) -> u64 {
        if self.saves_time() { self.tail } else { 0 }
    }
}

impl Plan {
    /// Returns the FEC over `link` for the segments of this plan and packets of `mtu` bytes.
    pub fn tail_fec(&self, link: &Link, mtu: u16) -> TailFec {
        TailFec::for_link(link, mtu, self.segment.get())
    }
}

/// Converts seconds to a [`Span`], rounded down to a nanosecond.
fn tail_fec_span(seconds: f64) -> Span {
    Span::from_ns((seconds * 1e9) as u64)
}

/// Returns the bytes of a collective's tail: those sent while a loss is detected and retransmitted.
///
/// tail = max(1.5 BDP x rounds in which a packet is likely to be lost again, 4 segments).
fn tail_fec_bytes(link: &Link, mtu: u16, segment: u64) -> u64 {
    let bdp = link.bdp().get();
    let packets = bdp as f64 / tail_fec_packet_payload(mtu);
    let mut lost_again = packets * link.loss.as_f64() * link.loss.as_f64();
    let mut rounds = 1;
    while lost_again > LOST_AGAIN_PER_BDP_MAX && rounds < TAIL_ROUNDS_MAX {
        lost_again *= link.loss.as_f64();
        rounds += 1;
    }
    bdp.saturating_add(bdp / 2).saturating_mul(rounds).max(TAIL_SEGMENTS_MIN * segment)
}

/// Returns the payload bytes of a full packet of `mtu` bytes.
fn tail_fec_packet_payload(mtu: u16) -> f64 {
    f64::from(mtu - PACKET_OVERHEAD_BYTES)
}

/// Returns the number of FEC shards of a payload of `bytes` bytes; the last shard is padded with
/// zeros.
pub const fn tail_fec_shard_count(bytes: u64) -> u64 {
    bytes.div_ceil(SHARD_BYTES)
}

/// Returns the number of parity shards for a payload of `bytes` bytes over a link with `loss`; 0
/// without loss, and at most [`tail_fec_parity_max`].
pub fn tail_fec_parity_shards(bytes: u64, loss: Fraction, mtu: u16) -> u16 {
    if loss == Fraction::default() {
        return 0;
    }
    let mean = bytes as f64 / tail_fec_packet_payload(mtu) * loss.as_f64();
    // One more, since small counts are not normally distributed.
    let lost = (mean + PARITY_SIGMAS * mean.sqrt() + 1.0).ceil();
    let wanted = tail_fec_shards_damaged(mtu) * lost;
    tail_fec_parity_max(bytes).min(wanted as u16)
}

/// Returns the number of FEC shards that a lost packet damages on average: one more than its length
/// in shards.
fn tail_fec_shards_damaged(mtu: u16) -> f64 {
    (1.0 + (tail_fec_packet_payload(mtu) - 1.0) / SHARD_BYTES as f64).round()
}

/// Returns the most parity shards of a payload of `bytes` bytes: an eighth of its shards and 12
/// more. Returns 0 for an empty payload, and for one of more than `PAYLOAD_SHARDS_MAX` shards.
pub fn tail_fec_parity_max(bytes: u64) -> u16 {
    match tail_fec_shard_count(bytes) {
        1..=PAYLOAD_SHARDS_MAX => {
            u16::try_from(tail_fec_shard_count(bytes) / 8 + 12).unwrap_or(u16::MAX)
        }
        _ => 0,
    }
}

/// The parity of a segment near the end of a transfer. It is sent unless later segments hide the
/// time that a retransmission takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailParity {
    /// Parity shards; 0 for none.
    pub parity: u16,
    /// Bytes. No parity is sent where so many bytes wait behind the segment, or where more bytes
    /// with parity would be under way without a receipt.
    pub room: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;
    use units::BitRate;

    fn ppm(parts: u32) -> Fraction {
        Fraction::from_ppb(parts * 1000).expect("at most one")
    }

    #[test]
    fn parity_grows_with_loss_and_is_zero_without_loss() {
        let of = |parts| tail_fec_parity_shards(1 << 20, ppm(parts), 1500);
        assert_eq!([of(0), of(100), of(1000), of(10_000)], [0, 9, 18, 60]);
        assert_eq!(tail_fec_parity_shards(0, ppm(1000), 1500), 0);
        assert_eq!(tail_fec_parity_shards(64 << 20, ppm(1000), 1500), 0);
    }

    #[test]
    fn parity_covers_a_lost_packet_of_any_size() {
        assert_eq!([1280, 1500, 9000].map(tail_fec_shards_damaged), [3.0, 3.0, 14.0]);
        for mtu in [1280, 1500, 9000] {
            for (segment, parts) in [(256 << 10, 100), (1 << 20, 1000), (1 << 20, 10_000)] {
                let mean = segment as f64 / tail_fec_packet_payload(mtu) * f64::from(parts) / 1e6;
                let covered = f64::from(tail_fec_parity_shards(segment, ppm(parts), mtu))
                    / tail_fec_shards_damaged(mtu);
                let wanted = (mean + 3.0 * mean.sqrt()).max(1.0);
                assert!(covered >= wanted, "{mtu}, {segment}, {parts}: {covered} of {wanted}");
            }
        }
    }

    /// Whether parity pays at 1 Gbit/s.
    fn pays(rtt_ms: u64, parts: u32) -> bool {
        let link = Link {
            a: RegionId(0),
            b: RegionId(1),
            rate: BitRate::from_bits_per_second(1_000_000_000),
            rtt: Span::from_ms(rtt_ms),
            loss: ppm(parts),
        };
        let fec = TailFec::for_link(&link, 1500, 256 << 10);
        assert_eq!(fec.saves_time(), fec.tail_bytes() > 0, "{fec:?}");
        fec.saves_time()
    }

    #[test]
    fn parity_is_sent_where_a_loss_costs_more() {
        let losses = [0, 100, 1000, 10_000];
        assert_eq!(losses.map(|loss| pays(80, loss)), [false, true, true, true]);
        assert_eq!(losses.map(|loss| pays(2, loss)), [false, false, true, true]);
        assert_eq!([3, 4].map(|rtt_ms| pays(rtt_ms, 100)), [false, true]);
    }

    #[test]
    fn parity_never_exceeds_its_limit() {
        for bytes in [0, 1, 703, 704, 705, 4096, 256 << 10, 4 << 20] {
            for parts in [1, 1000, 100_000, 500_000] {
                let (parity, most) =
                    (tail_fec_parity_shards(bytes, ppm(parts), 1500), tail_fec_parity_max(bytes));
                assert!(parity <= most, "{bytes} bytes at {parts} ppm: {parity} > {most}");
            }
        }
    }
}

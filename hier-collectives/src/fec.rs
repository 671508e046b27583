//! Tail repair: how much parity follows a segment whose losses nothing after it would hide.
//!
//! A packet that is lost in the last round trip of a collective costs one more round trip.
//! Parity right behind a tail segment, on the same stream, replaces what was lost instead: a
//! segment of `k` shards and `m` of parity is whole once any `k` of them are here.

use crate::bound::PACKET_OVERHEAD_BYTES;
use crate::plan::Plan;
use crate::topology::Link;
use units::{Fraction, Span};

/// Bytes of a shard: about half a packet of 1,500 bytes, which damages three when it is lost.
pub const SHARD_BYTES: u64 = 704;

/// Standard deviations of the number of lost packets that parity covers.
const SIGMAS: f64 = 4.0;

/// More shards of payload than this are not encoded.
const SHARDS_MAX: u64 = 32_768;

/// Whether the tail of what crosses a link is repaired: part of the choice of a plan, from one fabric
/// file alone. Where those of both ends differ, less of it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fec {
    /// The last bytes of a collective that have parity if it pays.
    tail: u64,
    /// What a lost packet among the last of a collective costs, on average.
    pub expected_saving: Span,
    /// What parity of the tail takes on the link.
    pub parity_time: Span,
}

impl Fec {
    /// Weighs both for segments of `segment` bytes. A loss costs nothing while more follows; among
    /// what is in flight last it costs a round trip and the time until it is noticed.
    pub fn of(link: &Link, mtu: u16, segment: u64) -> Self {
        let (bdp, loss) = (link.bdp().get() as f64, link.loss.as_f64());
        let some_lost = 1.0 - (1.0 - loss).powf(bdp / packet_bytes(mtu));
        let tail = tail_bytes(link, mtu, segment);
        let parity = u64::from(parity_shards(segment, link.loss, mtu)) * SHARD_BYTES;
        let parity = tail as f64 / segment as f64 * parity as f64;
        Self {
            tail,
            expected_saving: span(some_lost * (link.rtt + NOTICED).as_secs_f64()),
            parity_time: span(parity / link.rate.bytes_per_second()),
        }
    }

    /// Whether parity costs less than what it saves.
    pub fn pays(&self) -> bool {
        self.expected_saving > self.parity_time
    }

    /// The last bytes that have parity: none where it does not pay.
    pub fn tail_bytes(&self) -> u64 {
        if self.pays() { self.tail } else { 0 }
    }
}

impl Plan {
    /// Whether the tail of what crosses a link is repaired.
    pub fn fec(&self, link: &Link, mtu: u16) -> Fec {
        Fec::of(link, mtu, self.segment.get())
    }
}

fn span(seconds: f64) -> Span {
    Span::from_ns((seconds * 1e9) as u64)
}

/// What is sent while a loss is noticed and made good, as often as one packet is likely to be lost
/// again. That much may land before it is added. At least four segments of `segment` bytes.
fn tail_bytes(link: &Link, mtu: u16, segment: u64) -> u64 {
    let bdp = link.bdp().get();
    let packets = bdp as f64 / packet_bytes(mtu);
    let mut lost_again = packets * link.loss.as_f64() * link.loss.as_f64();
    let mut rounds = 1;
    while lost_again > LOST_AGAIN && rounds < ROUNDS_MAX {
        lost_again *= link.loss.as_f64();
        rounds += 1;
    }
    bdp.saturating_add(bdp / 2).saturating_mul(rounds).max(4 * segment)
}

fn packet_bytes(mtu: u16) -> f64 {
    f64::from(mtu - PACKET_OVERHEAD_BYTES)
}

/// Packets of a bandwidth-delay product that are lost in every round, at most.
const LOST_AGAIN: f64 = 0.02;
const ROUNDS_MAX: u64 = 4;

/// Beside a round trip: timers of both ends.
const NOTICED: Span = Span::from_ms(2);

/// Shards of a payload, the last one filled up with zeros.
pub const fn shards(bytes: u64) -> u64 {
    bytes.div_ceil(SHARD_BYTES)
}

/// Shards of parity for a payload over a link of this loss; 0 without loss.
pub fn parity_shards(bytes: u64, loss: Fraction, mtu: u16) -> u16 {
    if loss == Fraction::default() {
        return 0;
    }
    let mean = bytes as f64 / packet_bytes(mtu) * loss.as_f64();
    // One more, since the counts are small and not normal.
    let lost = (mean + SIGMAS * mean.sqrt() + 1.0).ceil();
    let wanted = damaged(mtu) * lost;
    parity_max(bytes).min(wanted as u16)
}

/// Shards that a lost packet damages on average: wherever it begins in one, one more than it is long.
fn damaged(mtu: u16) -> f64 {
    (1.0 + (packet_bytes(mtu) - 1.0) / SHARD_BYTES as f64).round()
}

/// The most parity that a segment may have: an eighth of its payload, and a little.
pub fn parity_max(bytes: u64) -> u16 {
    match shards(bytes) {
        1..=SHARDS_MAX => u16::try_from(shards(bytes) / 8 + 12).unwrap_or(u16::MAX),
        _ => 0,
    }
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
    fn parity_grows_with_loss_and_is_nothing_without() {
        let of = |parts| parity_shards(1 << 20, ppm(parts), 1500);
        assert_eq!([of(0), of(100), of(1000), of(10_000)], [0, 9, 18, 60]);
        assert_eq!(parity_shards(0, ppm(1000), 1500), 0);
        assert_eq!(parity_shards(64 << 20, ppm(1000), 1500), 0);
    }

    #[test]
    fn a_large_packet_that_is_lost_is_covered_as_a_small_one_is() {
        assert_eq!([1280, 1500, 9000].map(damaged), [3.0, 3.0, 14.0]);
        for mtu in [1280, 1500, 9000] {
            for (segment, parts) in [(256 << 10, 100), (1 << 20, 1000), (1 << 20, 10_000)] {
                let mean = segment as f64 / packet_bytes(mtu) * f64::from(parts) / 1e6;
                let covered = f64::from(parity_shards(segment, ppm(parts), mtu)) / damaged(mtu);
                let wanted = (mean + 3.0 * mean.sqrt()).max(1.0);
                assert!(covered >= wanted, "{mtu}, {segment}, {parts}: {covered} of {wanted}");
            }
        }
    }

    /// Whether tail repair pays at 1 Gbit/s.
    fn pays(rtt_ms: u64, parts: u32) -> bool {
        let link = Link {
            a: RegionId(0),
            b: RegionId(1),
            rate: BitRate::from_bits_per_second(1_000_000_000),
            rtt: Span::from_ms(rtt_ms),
            loss: ppm(parts),
        };
        let repair = Fec::of(&link, 1500, 256 << 10);
        assert_eq!(repair.pays(), repair.tail_bytes() > 0, "{repair:?}");
        repair.pays()
    }

    #[test]
    fn parity_is_sent_where_a_lost_packet_costs_more() {
        let losses = [0, 100, 1000, 10_000];
        assert_eq!(losses.map(|loss| pays(80, loss)), [false, true, true, true]);
        assert_eq!(losses.map(|loss| pays(2, loss)), [false, false, true, true]);
        assert_eq!([3, 4].map(|rtt_ms| pays(rtt_ms, 100)), [false, true]);
    }

    #[test]
    fn parity_never_exceeds_its_limit() {
        for bytes in [0, 1, 703, 704, 705, 4096, 256 << 10, 4 << 20] {
            for parts in [1, 1000, 100_000, 500_000] {
                let (parity, most) = (parity_shards(bytes, ppm(parts), 1500), parity_max(bytes));
                assert!(parity <= most, "{bytes} bytes at {parts} ppm: {parity} > {most}");
            }
        }
    }
}

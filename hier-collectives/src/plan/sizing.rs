//! Sizes that follow from the fabric: lanes, windows, segments and the number of trees.
//!
//! Every gateway computes them from the fabric and the plan, so that all agree without a message.

use super::plan_data::Plan;
use super::trees::packing::SPREAD_TREES_MAX;
use crate::ids::GatewayId;
use crate::topology::{Fabric, Link};
use units::ByteCount;

/// 8 Gbit/s: a link may have one lane for each 8 Gbit/s of the fastest link. One core moves as much
/// over one QUIC connection with packets of 1,500 bytes.
/// Tested by `lanes_follow_the_rate_of_the_fastest_link_and_mtu`.
const LANE_BITS_PER_SECOND: u64 = 8_000_000_000;

/// 20 Gbit/s: with jumbo packets a link may have one lane for each 20 Gbit/s of the fastest link.
/// Jumbo packets cost a core less for each byte.
const JUMBO_LANE_BITS_PER_SECOND: u64 = 20_000_000_000;

/// 8,000 bytes: the IP MTU from which packets count as jumbo when lanes are counted.
const JUMBO_MTU_MIN: u16 = 8_000;

/// 4 lanes (QUIC connections): every link may have as many, so that traffic can spread over
/// equal-cost network paths.
const LANES_OF_SLOW_LINK: u64 = 4;

/// 16 lanes (QUIC connections): the most of any link, since each lane costs the time of a thread.
const LANES_MAX: u64 = 16;

/// 4 segments: the smallest unsolicited window, which is the bytes that may be sent without a
/// grant. Pipelining then works on short paths too.
const WINDOW_SEGMENTS_MIN: u64 = 4;

/// 2 unsolicited windows, about 2 BDP: how far beyond its results a gateway grants a peer to send
/// partials. One window waits for other peers' partials, one is in flight.
const RESULT_WINDOW_BDP: u64 = 2;

/// 4 MiB: the longest segment of any plan. With longer segments, the lanes of a link would end a
/// collective at more different times.
pub const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// 256 KiB: the shortest segment for fast paths. The header and the receipt of a segment are small
/// beside so much payload.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;

/// 128 KiB: the shortest segment for slow paths, where 256 KiB take more than 10 ms at each hop.
const SLOW_SEGMENT_BYTES_MIN: u64 = 128 << 10;

/// 2 MiB: the longest segment that is chosen to last [`SEGMENT_SECONDS_MIN`]. Only a large BDP
/// gives longer segments.
const TIMED_SEGMENT_BYTES_MAX: u64 = 2 << 20;

/// 2 ms: least time that a segment should take on the slowest port or link, since each segment has
/// a fixed cost.
const SEGMENT_SECONDS_MIN: f64 = 0.002;

/// 40 ms: the longest time that a segment should take between two gateways that have only a small
/// share of their ports.
/// Tested by `a_pair_with_a_small_port_share_gets_short_segments`.
const PAIR_SEGMENT_SECONDS_MAX: f64 = 0.040;

/// 64 KiB: the shortest segment that is chosen for the sake of a slow pair of gateways.
const PAIR_SEGMENT_BYTES_MIN: f64 = 65_536.0;

/// 4: a slow pair of gateways shortens the segments of a plan to a quarter at most, so that similar
/// fabric files give similar segments.
const PAIR_SEGMENT_DIVISOR_MAX: u64 = 4;

/// 32: a pair of gateways that carries less than 1/32 of the payload of the busiest pair does not
/// shorten segments.
const SMALL_FLOW_DIVISOR: u64 = 32;

/// Returns the most QUIC connections over which each link may be striped. Gateways reserve ports,
/// memory and descriptors for so many, and use as many as are needed.
///
/// lanes = clamp(max(rate of the fastest link / rate of a lane, [`Fabric::lanes_min`]),
///               `LANES_OF_SLOW_LINK`, `LANES_MAX`).
pub fn lane_count(fabric: &Fabric) -> u16 {
    let is_jumbo = fabric.mtu() >= JUMBO_MTU_MIN;
    let per_lane = if is_jumbo { JUMBO_LANE_BITS_PER_SECOND } else { LANE_BITS_PER_SECOND };
    let fastest = fabric.links().iter().map(|link| link.rate.bits_per_second()).max().unwrap_or(0);
    let wanted = fastest.div_ceil(per_lane).max(fabric.lanes_min().into());
    let lanes = wanted.clamp(LANES_OF_SLOW_LINK, LANES_MAX);
    u16::try_from(lanes).unwrap_or(u16::MAX)
}

/// Returns the unsolicited window between two gateways: bytes that one may send beyond the other's
/// grants.
///
/// It is one BDP of the link, so that distance costs nothing when ranks do not post at once, and at
/// least `WINDOW_SEGMENTS_MIN` segments. The receiver keeps that much memory free.
pub fn unsolicited_window(
    fabric: &Fabric,
    one: GatewayId,
    other: GatewayId,
    plan: &Plan,
) -> ByteCount {
    let (from, to) = (fabric.gateway(one).region, fabric.gateway(other).region);
    unsolicited_window_bytes(fabric.link(from, to), plan)
}

/// Returns the bytes that one side may send over `link` without a grant: one BDP, at least
/// `WINDOW_SEGMENTS_MIN` segments.
///
/// `None` stands for a pair of gateways inside one region.
pub fn unsolicited_window_bytes(link: Option<&Link>, plan: &Plan) -> ByteCount {
    let window = link.map_or(0, |link| link.bdp().get());
    ByteCount::new(window.max(WINDOW_SEGMENTS_MIN * plan.segment.get()))
}

/// Returns the result window between two gateways: bytes that one grants the other ahead of its
/// results.
///
/// It applies where partials of several peers come together.
pub fn result_window(fabric: &Fabric, one: GatewayId, other: GatewayId, plan: &Plan) -> ByteCount {
    ByteCount::new(RESULT_WINDOW_BDP * unsolicited_window(fabric, one, other, plan).get())
}

/// Returns the segment size that suits a fabric, in bytes: a power of two.
///
/// segment = clamp(max(largest BDP / (4 x lanes), bytes of the narrowest port or link in
/// `SEGMENT_SECONDS_MIN`), least, [`SEGMENT_BYTES_MAX`]), rounded down to a power of two.
pub fn segment_bytes(fabric: &Fabric) -> ByteCount {
    let largest = fabric.links().iter().map(|link| link.bdp().get()).max().unwrap_or(0);
    let links = fabric.links().iter().map(|link| link.rate);
    let ports = fabric.gateways().iter().filter_map(|gateway| gateway.wan);
    let rates = links.chain(ports.map(|wan| wan.egress.min(wan.ingress)));
    let narrowest = rates.min().map(|rate| (rate.bytes_per_second() * SEGMENT_SECONDS_MIN) as u64);
    // Five times 2 ms are the 10 ms of `SLOW_SEGMENT_BYTES_MIN`.
    let is_slow = narrowest.is_some_and(|bytes| 5 * bytes < SEGMENT_BYTES_MIN);
    let least = if is_slow { SLOW_SEGMENT_BYTES_MIN } else { SEGMENT_BYTES_MIN };
    let of_bdp = largest / (4 * u64::from(lane_count(fabric)));
    let timed = narrowest.unwrap_or(0).min(TIMED_SEGMENT_BYTES_MAX);
    ByteCount::new(1 << of_bdp.max(timed).clamp(least, SEGMENT_BYTES_MAX).ilog2())
}

/// Returns the segment size of a plan, in bytes.
///
/// It is that of the fabric, or less where the plan leaves a pair of gateways a small part of its
/// ports. A long segment would be the last of its tree, at each hop.
pub(super) fn segment_bytes_for_pairs(fabric: &Fabric, plan: &Plan) -> ByteCount {
    let shares = plan.pair_shares(fabric);
    let largest = shares.values().map(|share| share.flow).max().unwrap_or(0);
    let narrowed = shares.iter().filter_map(|((from, to), share)| {
        let (from, to) = (fabric.gateway(*from), fabric.gateway(*to));
        let link = fabric.link(from.region, to.region)?.rate;
        let alone = link.min(from.wan?.egress).min(to.wan?.ingress);
        let shared = share.rate_over(link);
        let counts = share.flow > 0 && share.flow >= largest / SMALL_FLOW_DIVISOR;
        (counts && shared < alone).then(|| shared.bytes_per_second())
    });
    let shortest = (plan.segment.get() / PAIR_SEGMENT_DIVISOR_MAX) as f64;
    let narrowest = narrowed.fold(f64::INFINITY, f64::min);
    let wanted = narrowest * PAIR_SEGMENT_SECONDS_MAX;
    let wanted = wanted.clamp(PAIR_SEGMENT_BYTES_MIN.max(shortest), 1e9) as u64;
    ByteCount::new(plan.segment.get().min(1 << wanted.ilog2()))
}

/// Returns the most trees that a plan for this fabric can have, whatever its rates.
///
/// A packing has one tree for each port and pair that can be full, or `SPREAD_TREES_MAX` if that is
/// less. Separate packings for partials and results cut each other, which doubles the trees. Each
/// gateway of a region with several cuts one more tree. Each tree then has two directions, and the
/// express tree adds one. So a peer's plan can make a gateway keep no more state than this.
pub fn trees_max(fabric: &Fabric) -> usize {
    let full = fabric.regions().len() + fabric.links().len();
    2 * (2 * full.min(SPREAD_TREES_MAX) + fabric.gateways().len()) + 1
}

#[cfg(test)]
mod tests {
    use super::{lane_count, segment_bytes};
    use crate::plan::make_plan;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use units::BitRate;

    /// KiB of a segment, for regions whose gateways have ports of these Mbit/s, all pairs linked.
    fn segment_kib(regions: &[&[u64]]) -> u64 {
        let mut builder = FabricBuilder::default();
        for (index, ports) in regions.iter().enumerate() {
            let gateways = ports.iter().map(|rate| (1, Some(symmetric_port(mbit(*rate)))));
            builder = builder.region(&format!("r{index}"), gateways);
        }
        let fabric = builder.all_pairs(lossless_link(mbit(1000), 60)).build();
        make_plan(&fabric).expect("a plan").segment.get() >> 10
    }

    /// One lane for each 8 Gbit/s at 1,500 bytes, and for each 20 Gbit/s at 9,000.
    #[test]
    fn lanes_follow_the_rate_of_the_fastest_link_and_mtu() {
        let of = |mtu: u16, [near, far]: [u64; 2]| {
            let builder = regions(&["a", "b", "c"]).mtu(mtu);
            let builder = builder.link("a", "b", lossless_link(gbit(near), 60));
            lane_count(&builder.link("a", "c", lossless_link(gbit(far), 60)).build())
        };
        for (rate, at_1500, at_9000) in
            [(1, 4, 4), (32, 4, 4), (33, 5, 4), (80, 10, 4), (100, 13, 5), (400, 16, 16)]
        {
            assert_eq!((of(1500, [1, rate]), of(9000, [rate, 1])), (at_1500, at_9000), "{rate}");
        }
        assert_eq!(of(9000, [1, 300]), 15);
        let slow = || regions(&["a", "b"]).all_pairs(lossless_link(gbit(1), 60)).build();
        let pinned = [1, 4, 6, 40].map(|least| lane_count(&slow().with_lanes_min(least)));
        assert_eq!(pinned, [4, 4, 6, 16], "a fabric file may ask for more");
    }

    /// Regions with one gateway each, whose ports limit nothing.
    fn regions(names: &[&str]) -> FabricBuilder {
        let wide = Some(symmetric_port(gbit(400)));
        names
            .iter()
            .fold(FabricBuilder::default(), |builder, name| builder.region(name, [(1, wide)]))
    }

    fn gbit(rate: u64) -> BitRate {
        mbit(1000 * rate)
    }

    #[test]
    fn a_pair_with_a_small_port_share_gets_short_segments() {
        // The first gateway has a seventh of the last port, 14 Mbit/s.
        assert_eq!(segment_kib(&[&[300, 150], &[300], &[100, 100]]), 64);
        assert_eq!(segment_kib(&[&[450], &[300], &[200]]), 256);
        // A narrow port that is not shared does not shorten segments.
        assert_eq!(segment_kib(&[&[100], &[100]]), 256);
    }

    #[test]
    fn segments_last_up_to_two_milliseconds_on_short_paths() {
        for (rate, kib) in [(1, 256), (2, 256), (10, 2048), (30, 2048), (100, 2048)] {
            let fabric = regions(&["a", "b"]).all_pairs(lossless_link(gbit(rate), 1)).build();
            assert_eq!(segment_bytes(&fabric).get() >> 10, kib, "{rate} Gbit/s");
        }
    }
}

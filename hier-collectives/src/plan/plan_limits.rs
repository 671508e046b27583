//! Numbers that follow from the fabric: lanes of a link and trees of a plan.
//!
//! Every gateway computes them from the fabric and the plan, so that all agree without a message.

use super::trees::packing::SPREAD_TREES_MAX;
use crate::topology::Fabric;
/// 8 Gbit/s: a link may have one lane (QUIC connection) for each 8 Gbit/s of the fastest link, from
/// 4 to 16. One core moves as much over one lane with packets of 1,500 bytes.
/// Tested by `lanes_follow_the_rate_of_the_fastest_link_and_mtu`.
const LANE_BITS_PER_SECOND: u64 = 8_000_000_000;

/// 20 Gbit/s: with jumbo packets, a link may have one lane (QUIC connection) for each 20 Gbit/s of
/// the fastest link, from 4 to 16. Jumbo packets cost a core less for each byte.
const JUMBO_LANE_BITS_PER_SECOND: u64 = 20_000_000_000;

/// 8,000 bytes: from this IP MTU on, packets count as jumbo. A lane (QUIC connection) is then
/// expected to carry 20 Gbit/s in place of 8 Gbit/s, so that links get fewer lanes.
const JUMBO_MTU_MIN: u16 = 8_000;

/// 4 lanes (QUIC connections): every link may have as many, however slow, so that traffic can
/// spread over equal-cost network paths. The number is chosen.
const LANES_OF_SLOW_LINK: u64 = 4;

/// 16 lanes (QUIC connections): no link has more, however fast it is and whatever the fabric asks
/// for. The limit is chosen, since each lane costs the time of a thread.
const LANES_MAX: u64 = 16;

/// 8 trees: the blocks of one region that all ranks get take no more. The number is chosen; the
/// planner seldom needs three.
pub(in crate::plan) const BLOCK_TREES_OF_REGION_MAX: usize = 8;

/// Returns the most QUIC connections over which each link may be striped. Gateways reserve ports,
/// memory and descriptors for so many, and use as many as are needed.
///
/// lanes = clamp(max(rate of the fastest link / rate of a lane, [`Fabric::lanes_min`]),
///               `LANES_OF_SLOW_LINK`, `LANES_MAX`).
pub fn plan_lanes_limit(fabric: &Fabric) -> u16 {
    let is_jumbo = fabric.mtu() >= JUMBO_MTU_MIN;
    let per_lane = if is_jumbo { JUMBO_LANE_BITS_PER_SECOND } else { LANE_BITS_PER_SECOND };
    let fastest = fabric.links().iter().map(|link| link.rate.bits_per_second()).max().unwrap_or(0);
    let wanted = fastest.div_ceil(per_lane).max(fabric.lanes_min().into());
    let lanes = wanted.clamp(LANES_OF_SLOW_LINK, LANES_MAX);
    u16::try_from(lanes).unwrap_or(u16::MAX)
}

/// Returns the most trees that a plan for this fabric can have, whatever its rates.
///
/// A packing has at most one tree for each region and each link, or `SPREAD_TREES_MAX` if that is
/// less. There are two packings, for partials and for results. Each gateway may split one tree more.
/// Each tree then has two directions, and the express tree adds one. So a peer's plan can make a
/// gateway keep no more state than this.
pub fn plan_trees_limit(fabric: &Fabric) -> usize {
    let full = fabric.regions().len() + fabric.links().len();
    2 * (2 * full.min(SPREAD_TREES_MAX) + fabric.gateways().len()) + 1
}

#[cfg(test)]
mod tests {
    use super::plan_lanes_limit;
    use crate::plan::make_plan;
    use crate::plan::segment_size::segment_size_of_fabric;
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
            plan_lanes_limit(&builder.link("a", "c", lossless_link(gbit(far), 60)).build())
        };
        for (rate, at_1500, at_9000) in
            [(1, 4, 4), (32, 4, 4), (33, 5, 4), (80, 10, 4), (100, 13, 5), (400, 16, 16)]
        {
            assert_eq!((of(1500, [1, rate]), of(9000, [rate, 1])), (at_1500, at_9000), "{rate}");
        }
        assert_eq!(of(9000, [1, 300]), 15);
        let slow = || regions(&["a", "b"]).all_pairs(lossless_link(gbit(1), 60)).build();
        let pinned = [1, 4, 6, 40].map(|least| plan_lanes_limit(&slow().with_lanes_min(least)));
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
            assert_eq!(segment_size_of_fabric(&fabric).get() >> 10, kib, "{rate} Gbit/s");
        }
    }
}

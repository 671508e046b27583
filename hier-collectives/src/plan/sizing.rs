//! Lanes, windows and segments, from the fabric alone.

use super::tree::Plan;
use super::trees::packing::SPREAD_TREES;
use crate::ids::GatewayId;
use crate::topology::{Fabric, Link};
use units::ByteCount;

/// QUIC connections a link is striped over: one per 8 Gbit/s (20 with jumbo frames), at
/// least four so that equal-cost paths are all used, at most sixteen.
pub fn lanes(fabric: &Fabric) -> u16 {
    let per_lane = if fabric.mtu() >= 8_000 { 20_000_000_000 } else { 8_000_000_000 };
    let fastest = fabric.links().iter().map(|link| link.rate.bits_per_second()).max().unwrap_or(0);
    u16::try_from(fastest.div_ceil(per_lane).clamp(4, 16)).unwrap_or(16)
}

/// Bytes a gateway may send to a peer beyond its grants, and that the peer keeps room for:
/// one BDP, so that distance costs nothing when posts are not simultaneous; at least four
/// segments.
pub fn unsolicited_window(
    fabric: &Fabric,
    one: GatewayId,
    other: GatewayId,
    plan: &Plan,
) -> ByteCount {
    let (from, to) = (fabric.gateway(one).region, fabric.gateway(other).region);
    unsolicited_window_over(fabric.link(from, to), plan)
}

/// The same, over a link of this kind, or inside a region.
pub fn unsolicited_window_over(link: Option<&Link>, plan: &Plan) -> ByteCount {
    let window = link.map_or(0, |link| link.bdp().get());
    ByteCount::new(window.max(4 * plan.segment.get()))
}

/// Bytes that a gateway grants a peer ahead of its results, where several come together: two BDP,
/// since what has arrived from one waits for the others.
pub fn result_window(fabric: &Fabric, one: GatewayId, other: GatewayId, plan: &Plan) -> ByteCount {
    ByteCount::new(2 * unsolicited_window(fabric, one, other, plan).get())
}

/// A quarter of the largest BDP per lane, as a power of two from 256 KiB to 4 MiB: small
/// enough that the last segments of all lanes end together, large enough that a header and
/// a receipt cost nothing. No less, up to 2 MiB, than the power of two below what the narrowest
/// port or link carries in 2 ms: on short paths each is some events, whatever its length. 128 KiB
/// where 256 KiB take more than 10 ms: each segment is whole before it is added or passed on, which
/// costs its time once for each hop.
pub fn segment_bytes(fabric: &Fabric) -> ByteCount {
    let largest = fabric.links().iter().map(|link| link.bdp().get()).max().unwrap_or(0);
    let links = fabric.links().iter().map(|link| link.rate);
    let ports = fabric.gateways().iter().filter_map(|gateway| gateway.wan);
    let rates = links.chain(ports.map(|wan| wan.egress.min(wan.ingress)));
    // Bytes in 2 ms.
    let narrowest = rates.min().map(|rate| (rate.bytes_per_second() * 0.002) as u64);
    let slow = narrowest.is_some_and(|bytes| 5 * bytes < 256 << 10);
    let least = if slow { 128 << 10 } else { 256 << 10 };
    let wanted = largest / (4 * u64::from(lanes(fabric)));
    let wanted = wanted.max(narrowest.unwrap_or(0).min(2 << 20)).clamp(least, SEGMENT_BYTES_MAX);
    ByteCount::new(1 << wanted.ilog2())
}

/// The longest segment of any plan.
pub const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// As [`segment_bytes`] has it, and less where the plan leaves a pair of gateways so little of their
/// ports that one segment would take it more than 40 ms: it is the last of its tree for as long, at
/// each hop.
pub(super) fn segment_for_pairs(fabric: &Fabric, plan: &Plan) -> ByteCount {
    let rates = plan.pair_shares(fabric);
    let largest = rates.values().map(|rate| rate.flow).max().unwrap_or(0);
    let shared = rates.iter().filter_map(|((from, to), rate)| {
        let (from, to) = (fabric.gateway(*from), fabric.gateway(*to));
        let link = fabric.link(from.region, to.region)?.rate;
        let alone = link.min(from.wan?.egress).min(to.wan?.ingress);
        let part = rate.rate_over(link);
        let counts = rate.flow > 0 && rate.flow >= largest / SLIVER;
        (counts && part < alone).then(|| part.bytes_per_second())
    });
    let least = SHARED_MIN.max((plan.segment.get() / SHORTER_MAX) as f64);
    let wanted = (shared.fold(f64::INFINITY, f64::min) * 0.040).clamp(least, 1e9) as u64;
    ByteCount::new(plan.segment.get().min(1 << wanted.ilog2()))
}

/// Of a pair that has little, in bytes,
const SHARED_MIN: f64 = 65_536.0;
/// and as a part: fabric files that differ by little must have segments that do.
const SHORTER_MAX: u64 = 4;
/// A pair with less than this part of the largest flow has too little to hold others up.
const SLIVER: u64 = 32;

/// Trees that a plan for this fabric has at most, whatever its rates. A packing has no more than
/// what can be full in it (ports and pairs), or than are spread by load; where partials and results
/// have packings of their own, the one cuts the other; a gateway of a region with several cuts one
/// of them in two; of each there are two then; and there is the express tree. One tree for each
/// gateway, as in one region, is less.
pub fn trees_max(fabric: &Fabric) -> usize {
    let full = fabric.regions().len() + fabric.links().len();
    2 * (2 * full.min(SPREAD_TREES) + fabric.gateways().len()) + 1
}

#[cfg(test)]
mod tests {
    use super::{lanes, segment_bytes};
    use crate::plan::plan;
    use crate::topology::{Fabric, LinkSpec, RegionSpec, WanPort};
    use units::{BitRate, Fraction, Span};

    /// Regions whose gateways have ports of so many Mbit/s, all pairs linked.
    fn segment_kib(regions: &[&[u64]]) -> u64 {
        let mbit = |rate: u64| BitRate::from_bits_per_second(rate * 1_000_000);
        let region = |(index, ports): (usize, &&[u64])| RegionSpec {
            name: format!("r{index}"),
            speeds: vec![1.0; ports.len()],
            gateways: ports
                .iter()
                .enumerate()
                .map(|(seat, port)| {
                    let wan = WanPort { egress: mbit(*port), ingress: mbit(*port) };
                    (format!("g{index}-{seat}"), 1, Some(wan))
                })
                .collect(),
        };
        let mut links = Vec::new();
        for one in 0..regions.len() {
            for other in one + 1..regions.len() {
                let between = (format!("r{one}"), format!("r{other}"));
                let (rate, rtt, loss) = (mbit(1000), Span::from_ms(60), Fraction::default());
                links.push(LinkSpec { between, rate, rtt, loss });
            }
        }
        let regions = regions.iter().enumerate().map(region).collect();
        let fabric = Fabric::new("t", 1500, regions, links).expect("valid");
        plan(&fabric).expect("a plan").segment.get() >> 10
    }

    /// One for each 8 Gbit/s at 1,500 bytes, for each 20 at 9,000.
    #[test]
    fn lanes_follow_the_rate_of_the_fastest_link_and_the_mtu() {
        let of = |mtu: u16, gbit: [u64; 2]| {
            let link = |(other, gbit): (&str, u64)| LinkSpec {
                between: ("a".to_owned(), other.to_owned()),
                rate: port(gbit).egress,
                rtt: Span::from_ms(60),
                loss: Fraction::default(),
            };
            let links = ["b", "c"].into_iter().zip(gbit).map(link).collect();
            lanes(
                &Fabric::new("t", mtu, ["a", "b", "c"].map(region_of_one).into(), links)
                    .expect("valid"),
            )
        };
        for (gbit, at_1500, at_9000) in
            [(1, 4, 4), (32, 4, 4), (33, 5, 4), (80, 10, 4), (100, 13, 5), (400, 16, 16)]
        {
            assert_eq!((of(1500, [1, gbit]), of(9000, [gbit, 1])), (at_1500, at_9000), "{gbit}");
        }
        assert_eq!(of(9000, [1, 300]), 15);
    }

    /// A gateway whose port limits nothing.
    fn region_of_one(name: &str) -> RegionSpec {
        let gateways = vec![(format!("{name}-0"), 1, Some(port(400)))];
        RegionSpec { name: name.to_owned(), speeds: vec![1.0], gateways }
    }

    fn port(gbit: u64) -> WanPort {
        let rate = BitRate::from_bits_per_second(gbit * 1_000_000_000);
        WanPort { egress: rate, ingress: rate }
    }

    #[test]
    fn a_pair_that_has_little_of_its_ports_gets_short_segments() {
        // Of the last port the first gateway has a seventh, 14 Mbit/s.
        assert_eq!(segment_kib(&[&[300, 150], &[300], &[100, 100]]), 64);
        assert_eq!(segment_kib(&[&[450], &[300], &[200]]), 256);
        // A port that is narrow as a whole is no reason.
        assert_eq!(segment_kib(&[&[100], &[100]]), 256);
    }

    #[test]
    fn segments_take_up_to_two_milliseconds_where_the_path_is_short() {
        for (gbit, kib) in [(1, 256), (2, 256), (10, 2048), (30, 2048), (100, 2048)] {
            let between = ("a".to_owned(), "b".to_owned());
            let (rate, loss) = (port(gbit).egress, Fraction::default());
            let link = LinkSpec { between, rate, rtt: Span::from_ms(1), loss };
            let fabric = Fabric::new("t", 1500, ["a", "b"].map(region_of_one).into(), vec![link]);
            assert_eq!(segment_bytes(&fabric.expect("valid")).get() >> 10, kib, "{gbit} Gbit/s");
        }
    }
}

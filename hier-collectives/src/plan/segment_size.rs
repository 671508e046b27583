//! The segment size of a plan, which follows from the fabric and the shares of pairs.
//!
//! Every gateway computes it from the fabric and the plan, so that all agree without a message.

use super::plan_data::Plan;
use super::plan_limits::plan_lanes_limit;
use crate::topology::Fabric;
use units::ByteCount;

/// 4 MiB: the longest segment of a plan that a gateway makes, a chosen limit; a longer computed
/// size is cut to 4 MiB. With longer segments, the lanes of a link would end a collective at more
/// different times.
pub const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// 256 KiB: the shortest segment that suits a fabric without slow ports or links; a shorter
/// computed size is raised to 256 KiB. Header and receipt of a segment are less than a thousandth
/// of so much payload.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;

/// 128 KiB: the shortest segment that suits a fabric whose slowest port or link needs more than
/// 10 ms for 256 KiB. A shorter computed size is raised to 128 KiB. A long segment delays the end
/// of a collective by its time at each hop.
const SLOW_SEGMENT_BYTES_MIN: u64 = 128 << 10;

/// 2 MiB: segments that are made to last 2 ms on the slowest port or link are cut to this length.
/// Only a large BDP gives longer segments, up to 4 MiB.
const TIMED_SEGMENT_BYTES_MAX: u64 = 2 << 20;

/// 0.002 s: segments of up to 2 MiB are made so long that the slowest port or link needs 2 ms for
/// each. Each segment has a fixed cost. The time is chosen.
const SEGMENT_SECONDS_MIN: f64 = 0.002;

/// 0.040 s: segments that take longer between two gateways with a small share of their ports are
/// shortened, to a quarter at most. The time is chosen; a segment delays the end of a collective by
/// its time at each hop.
/// Tested by `a_pair_with_a_small_port_share_gets_short_segments`.
const PAIR_SEGMENT_SECONDS_MAX: f64 = 0.040;

/// 65,536 bytes (64 KiB): for a slow pair of gateways, segments are shortened to no less, since
/// each segment has a fixed cost. The length is chosen.
const PAIR_SEGMENT_BYTES_MIN: f64 = 65_536.0;

/// 4: for a slow pair of gateways, segments are shortened to no less than a quarter of the size
/// that suits the fabric. So a small change of a fabric file cannot shorten them much.
const PAIR_SEGMENT_DIVISOR_MAX: u64 = 4;

/// 32: a pair of gateways with less than 1/32 of the busiest pair's payload shortens no segments,
/// however slow it is. The divisor is chosen, so that pairs with little to carry do not decide.
const SMALL_FLOW_DIVISOR: u64 = 32;

/// Returns the segment size that suits a fabric, in bytes: a power of two.
///
/// segment = clamp(max(largest BDP / (4 x lanes), min(bytes of the narrowest port or link in
/// `SEGMENT_SECONDS_MIN`, `TIMED_SEGMENT_BYTES_MAX`)), least, [`SEGMENT_BYTES_MAX`]), rounded down to
/// a power of two. `least` is `SEGMENT_BYTES_MIN`, and on slow links or ports
/// `SLOW_SEGMENT_BYTES_MIN`.
pub fn segment_size_of_fabric(fabric: &Fabric) -> ByteCount {
    let largest = fabric.links().iter().map(|link| link.bdp().get()).max().unwrap_or(0);
    let links = fabric.links().iter().map(|link| link.rate);
    let ports = fabric.gateways().iter().filter_map(|gateway| gateway.wan);
    let rates = links.chain(ports.map(|wan| wan.egress.min(wan.ingress)));
    let narrowest = rates.min().map(|rate| (rate.bytes_per_second() * SEGMENT_SECONDS_MIN) as u64);
    // Five times 2 ms are the 10 ms of `SLOW_SEGMENT_BYTES_MIN`.
    let is_slow = narrowest.is_some_and(|bytes| 5 * bytes < SEGMENT_BYTES_MIN);
    let least = if is_slow { SLOW_SEGMENT_BYTES_MIN } else { SEGMENT_BYTES_MIN };
    let of_bdp = largest / (4 * u64::from(plan_lanes_limit(fabric)));
    let timed = narrowest.unwrap_or(0).min(TIMED_SEGMENT_BYTES_MAX);
    ByteCount::new(1 << of_bdp.max(timed).clamp(least, SEGMENT_BYTES_MAX).ilog2())
}

/// Returns the segment size of a plan, in bytes.
///
/// It is that of the fabric, or less where the plan leaves a pair of gateways a small part of its
/// ports. A long segment would be the last of its tree, at each hop.
pub(super) fn segment_size_for_pairs(fabric: &Fabric, plan: &Plan) -> ByteCount {
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

//! The lower bound T* of an operation: the least time that any algorithm needs.

use super::min_cut::{HubFlows, narrowest_min_cut};
use super::payload_rate::payload_rate;
use super::port_bits::PortBits;
use crate::ids::GatewayId;
use crate::operation::Operation;
use crate::topology::Fabric;
use units::{BitRate, ByteCount, Span};

/// Returns T*, the least time of an all-reduce of `bytes` over all regions; zero for one region.
///
/// T* is the largest of these, for N regions and S bytes:
/// * S / egress of a region + delay to the farthest region,
/// * S / ingress of a region + delay from the nearest region,
/// * 2(N-1)S / sum of all egress rates, and as much for ingress rates,
/// * S / rate of the narrowest cut.
///
/// The egress of a region is the sum of its gateways' ports, and at most the sum of its links.
pub fn all_reduce_lower_bound(fabric: &Fabric, bytes: ByteCount) -> Span {
    operation_lower_bound(fabric, Operation::AllReduce, bytes)
}

/// Returns T*, the least time of any operation on `bytes`, by the terms of [`all_reduce_lower_bound`].
///
/// A reduction moves every region's bytes to one region and a broadcast one region's bytes to all:
/// (N-1)S in all. A barrier takes the delay between the two farthest regions. In operations on
/// blocks a region emits and absorbs the blocks of ranks that must cross, (N-1)S in all for an
/// all-gather and a reduce-scatter; S is the buffer of all blocks, or one rank's in an all-to-all.
pub fn operation_lower_bound(fabric: &Fabric, operation: Operation, bytes: ByteCount) -> Span {
    LowerBound::new(fabric, operation).span(bytes)
}

/// The lower bound T* of one operation on a fabric, for any number of bytes. To make one takes up
/// to two maximum flows for each region but one; to ask it takes next to nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct LowerBound {
    /// Each term is a least time; T* is the largest. There are none for one region.
    terms: Vec<BoundTerm>,
}

/// One least time: `copies` of the buffer at `rate`, and the `delay` before.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BoundTerm {
    copies: f64,
    /// Payload in bytes per second.
    rate: f64,
    /// One-way delay in seconds.
    delay: f64,
}

impl LowerBound {
    /// Makes the bound of an operation on a fabric. It has terms for the ports of each region that
    /// emits or absorbs data, for all ports together, and for the narrowest cut. One region has no
    /// terms.
    pub fn new(fabric: &Fabric, operation: Operation) -> Self {
        let regions = fabric.regions().len();
        if regions < 2 {
            return Self { terms: Vec::new() };
        }
        let demand = LowerBoundDemand::of_operation(fabric, operation);
        let delays = lower_bound_region_delays(fabric);
        let mut terms = Vec::new();
        let (mut out_sum, mut in_sum) = (0.0, 0.0);
        for (region, away) in delays.iter().enumerate() {
            let (out, inward) = lower_bound_port_rates(fabric, region);
            let others = || (0..regions).filter(|other| *other != region);
            if demand.emits[region] > 0.0 {
                let to = others().filter(|other| demand.absorbs[*other] > 0.0);
                let to = to.map(|other| away[other]);
                // Only where all others get the same bytes must the last byte go farthest.
                let far = if demand.reaches_all { to.max() } else { to.min() };
                let delay = lower_bound_seconds(far.unwrap_or(0));
                terms.push(BoundTerm { copies: demand.emits[region], rate: out, delay });
            }
            if demand.absorbs[region] > 0.0 {
                let near = others().filter(|other| demand.emits[*other] > 0.0);
                let near = near.map(|other| delays[other][region]).min().unwrap_or(0);
                let delay = lower_bound_seconds(near);
                terms.push(BoundTerm { copies: demand.absorbs[region], rate: inward, delay });
            }
            (out_sum, in_sum) = (out_sum + out, in_sum + inward);
        }
        terms.push(BoundTerm { copies: demand.copies, rate: out_sum, delay: 0.0 });
        terms.push(BoundTerm { copies: demand.copies, rate: in_sum, delay: 0.0 });
        let (to, from) = (demand.only_to, demand.only_from);
        let flows = HubFlows { from_hub: to.is_none(), to_hub: from.is_none() };
        let cut = narrowest_min_cut(fabric, from.or(to), flows);
        let rate = payload_rate(cut, fabric.mtu());
        terms.push(BoundTerm { copies: demand.across_any_cut(), rate, delay: 0.0 });
        Self { terms }
    }

    /// Returns T* for a buffer of `bytes` bytes; zero for one region.
    pub fn span(&self, bytes: ByteCount) -> Span {
        let size = bytes.get() as f64;
        let seconds = |term: &BoundTerm| term.copies * size / term.rate + term.delay;
        let least = self.terms.iter().map(seconds).fold(0.0, f64::max);
        Span::from_ns((least * 1e9).round() as u64)
    }
}

/// The bytes that an operation moves between regions at least, in copies of the buffer.
struct LowerBoundDemand {
    /// Copies that leave each region.
    emits: Vec<f64>,
    /// Copies that enter each region.
    absorbs: Vec<f64>,
    /// Copies that cross between regions, all together.
    copies: f64,
    /// The only region that data leave, if there is one.
    only_from: Option<usize>,
    /// The only region that data enter, if there is one.
    only_to: Option<usize>,
    /// Whether all that leaves a region is meant for all regions that data enter.
    reaches_all: bool,
}

impl LowerBoundDemand {
    /// Returns what an operation moves on a buffer of even blocks. The buffer of an all-to-all is
    /// that of one rank.
    fn of_operation(fabric: &Fabric, operation: Operation) -> Self {
        let ranks: Vec<f64> =
            fabric.regions().iter().map(|region| region.ranks.len() as f64).collect();
        let (all, others): (f64, f64) = (ranks.iter().sum(), ranks.len() as f64 - 1.0);
        let region_of = |gateway: GatewayId| Some(usize::from(fabric.gateway(gateway).region.0));
        let (only_from, only_to) = match operation {
            Operation::Reduce { to } | Operation::Gather { to } => (None, region_of(to)),
            Operation::Broadcast { from }
            | Operation::Scatter { from }
            | Operation::Send { from, .. } => (region_of(from), None),
            _ => (None, None),
        };
        let share = |region: usize| ranks[region] / all;
        let rest = |region: usize| 1.0 - share(region);
        let one = |_: usize| 1.0;
        let pairs = |region: usize| ranks[region] * rest(region);
        let receiver = match operation {
            Operation::Send { to, .. } => region_of(to),
            _ => None,
        };
        let to_receiver = |region: usize| if Some(region) == receiver { 1.0 } else { 0.0 };
        let to_another = |region: usize| 1.0 - to_receiver(region);
        let (emits, absorbs): (&dyn Fn(usize) -> f64, &dyn Fn(usize) -> f64) = match operation {
            Operation::AllReduce
            | Operation::Barrier
            | Operation::Reduce { .. }
            | Operation::Broadcast { .. } => (&one, &one),
            Operation::AllGather | Operation::Gather { .. } => (&share, &rest),
            Operation::ReduceScatter | Operation::Scatter { .. } => (&rest, &share),
            Operation::AllToAll => (&pairs, &pairs),
            Operation::Send { .. } => (&to_another, &to_receiver),
        };
        let of = |only: Option<usize>, not: Option<usize>, copies: &dyn Fn(usize) -> f64| {
            let takes_part =
                |region: usize| only.is_none_or(|only| only == region) && not != Some(region);
            let copies = |region| if takes_part(region) { copies(region) } else { 0.0 };
            (0..ranks.len()).map(copies).collect::<Vec<f64>>()
        };
        let (emits, absorbs) = (of(only_from, only_to, emits), of(only_to, only_from, absorbs));
        let copies = match operation {
            Operation::AllReduce | Operation::Barrier => 2.0 * others,
            Operation::Gather { .. }
            | Operation::Scatter { .. }
            | Operation::AllToAll
            | Operation::Send { .. } => f64::max(emits.iter().sum(), absorbs.iter().sum()),
            _ => others,
        };
        let reaches_all = !matches!(
            operation,
            Operation::ReduceScatter
                | Operation::Scatter { .. }
                | Operation::AllToAll
                | Operation::Send { .. }
        );
        Self { emits, absorbs, copies, only_from, only_to, reaches_all }
    }

    /// Returns the fewest copies of the buffer that a region emits or absorbs, of regions that do.
    /// So many at least cross every cut that data cross; 0 where no region does.
    fn across_any_cut(&self) -> f64 {
        let some = |copies: &&f64| **copies > 0.0;
        let least =
            |copies: &[f64]| copies.iter().filter(some).copied().fold(f64::INFINITY, f64::min);
        let least = least(&self.emits).min(least(&self.absorbs));
        if least.is_finite() { least } else { 0.0 }
    }
}

/// Returns the payload rates out of and into a region, in bytes per second: those of its ports, or
/// of all its links if less.
fn lower_bound_port_rates(fabric: &Fabric, region: usize) -> (f64, f64) {
    let PortBits { egress, ingress, links } = PortBits::of_region(fabric, region);
    let rate =
        |bits: u64| payload_rate(BitRate::from_bits_per_second(bits.min(links)), fabric.mtu());
    (rate(egress), rate(ingress))
}

/// Returns the least one-way delays in nanoseconds from each region to each other, over relays
/// where that is shorter; `u64::MAX` without a path.
fn lower_bound_region_delays(fabric: &Fabric) -> Vec<Vec<u64>> {
    let regions = fabric.regions().len();
    let mut delays = vec![vec![u64::MAX; regions]; regions];
    for link in fabric.links() {
        let (a, b) = (usize::from(link.a.0), usize::from(link.b.0));
        (delays[a][b], delays[b][a]) = (link.rtt.ns() / 2, link.rtt.ns() / 2);
    }
    for relay in 0..regions {
        for from in 0..regions {
            for to in 0..regions {
                let over = delays[from][relay].saturating_add(delays[relay][to]);
                delays[from][to] = delays[from][to].min(over);
            }
        }
    }
    delays
}

/// Converts nanoseconds to seconds.
fn lower_bound_seconds(ns: u64) -> f64 {
    Span::from_ns(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FabricBuilder, lossless_link, symmetric_port};

    /// Regions with one gateway each, with ports of these bits per second; all pairs have a link.
    fn fabric(ports: &[u64], rtt_ms: u64) -> Fabric {
        let rate = |region: usize| BitRate::from_bits_per_second(ports[region]);
        let name = |region: usize| format!("r{region}");
        let mut builder = FabricBuilder::default();
        for region in 0..ports.len() {
            builder = builder.region(&name(region), [(1, Some(symmetric_port(rate(region))))]);
        }
        for one in 0..ports.len() {
            for other in one + 1..ports.len() {
                let state = lossless_link(rate(one).min(rate(other)), rtt_ms);
                builder = builder.link(&name(one), &name(other), state);
            }
        }
        builder.build()
    }

    #[test]
    fn a_bound_for_any_size_needs_no_fabric() {
        let even = fabric(&[500_000_000; 3], 80);
        let bound = LowerBound::new(&even, Operation::AllReduce);
        for bytes in [0, 1, 1 << 20, 64 << 20] {
            let bytes = ByteCount::new(bytes);
            assert_eq!(bound.span(bytes), all_reduce_lower_bound(&even, bytes));
        }
        let alone = LowerBound::new(&fabric(&[500_000_000], 80), Operation::AllReduce);
        assert_eq!(alone.span(ByteCount::new(1 << 30)), Span::ZERO);
    }

    #[test]
    fn two_regions_need_one_crossing() {
        let bound =
            all_reduce_lower_bound(&fabric(&[500_000_000; 2], 80), ByteCount::new(64 << 20));
        let payload = 62.5e6 * 1433.0 / 1500.0;
        let want = f64::from(64 << 20) / payload + 0.04;
        assert!((bound.as_secs_f64() - want).abs() < 1e-6, "{bound}");
    }

    #[test]
    fn the_slowest_port_or_the_sum_bounds_three_regions() {
        let gigabyte = ByteCount::new(1_000_000_000);
        let share = 1433.0 / 1500.0;
        let uneven = all_reduce_lower_bound(
            &fabric(&[1_000_000_000, 600_000_000, 300_000_000], 60),
            gigabyte,
        );
        assert!((uneven.as_secs_f64() - (1e9 / (37.5e6 * share) + 0.03)).abs() < 1e-3);
        let even = all_reduce_lower_bound(&fabric(&[800_000_000; 3], 60), gigabyte);
        assert!((even.as_secs_f64() - 4e9 / (300e6 * share)).abs() < 1e-3);
    }
}

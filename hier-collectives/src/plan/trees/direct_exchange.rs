//! Direct exchange: every region owns a share, receives all partials of it and sends the result to
//! all others.

use super::packing::Packing;
use super::region_tree::RegionTree;
use crate::plan::fabric_capacity::FabricCapacity;

/// 0.005 of a plan's predicted time or rate: of two plans that differ by no more, the simpler one
/// with fewer hops is taken. The fraction is chosen.
/// Tested by `symmetric_ports_are_planned_near_the_bound`.
pub(crate) const TIE_FRACTION: f64 = 0.005;

/// Returns the fraction of a buffer that each region owns in a direct exchange that takes the least
/// time at the ports.
///
/// A region that owns the fraction x of a buffer of S bytes carries (1 + (N-2)x)S each way. The
/// least time is T = max(S / min b, 2(N-1)S / sum b). A region with port rate b then owns (T b/S -
/// 1)/(N-2).
fn direct_exchange_owner_shares(ports: &[f64]) -> Vec<f64> {
    let regions = ports.len() as f64;
    let least = ports.iter().copied().fold(f64::INFINITY, f64::min);
    let all: f64 = ports.iter().sum();
    let rate = least.min(all / (2.0 * (regions - 1.0)));
    let spare: Vec<f64> = ports.iter().map(|port| (port / rate - 1.0).max(0.0)).collect();
    let total: f64 = spare.iter().sum();
    spare.iter().map(|spare| spare / total).collect()
}

/// Returns the rate that a direct exchange with these owner shares reaches over ports and pairs, in
/// payload bytes per second.
///
/// A pair of owners of x and y carries (x + y)S each way.
fn direct_exchange_rate(shares: &[f64], capacity: &FabricCapacity) -> f64 {
    let others = shares.len() as f64 - 2.0;
    let port = |region: usize| capacity.ports[region] / (1.0 + others * shares[region]);
    let pair = |(a, b): (usize, usize)| match shares[a] + shares[b] {
        0.0 => f64::INFINITY,
        load => capacity.pair_rate(a, b) / load,
    };
    let ports = (0..shares.len()).map(port);
    ports.chain(capacity.all_pairs().map(pair)).fold(f64::INFINITY, f64::min)
}

/// Returns the stars around the owners, each with its share of the rate. `None` where the links
/// make them slower than the rate bound of the ports by over 0.5 %.
pub(crate) fn direct_exchange_packing(capacity: &FabricCapacity) -> Option<Packing> {
    let shares = direct_exchange_owner_shares(&capacity.ports);
    let rate = direct_exchange_rate(&shares, capacity);
    (rate >= capacity.rate_upper_bound() * (1.0 - TIE_FRACTION))
        .then(|| direct_exchange_stars(&shares, rate))
}

/// Returns the packing in which each owner's share takes the star around that owner.
fn direct_exchange_stars(shares: &[f64], rate: f64) -> Packing {
    let regions = shares.len();
    let owners = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
    let trees = owners.map(|(owner, share)| (RegionTree::star(regions, owner), share * rate));
    Packing { trees: trees.collect(), rate, limit: rate }
}

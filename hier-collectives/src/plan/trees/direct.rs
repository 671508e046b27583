//! Direct exchange: every region owns a share, gets all others' partials of it and sends the
//! result to all.

use super::packing::Packing;
use super::region_tree::RegionTree;
use crate::plan::capacity::Capacity;

/// Two algorithms whose times differ by less than this part take the same time: then the one
/// with fewer hops is better.
pub(in crate::plan) const TIE: f64 = 0.005;

/// Owner shares that need the least time for the ports, and the rate they reach in buffers
/// per second times bytes.
///
/// A region that owns `x` carries (1 + (N-2)x)S each way. The least time is
/// max(S / min b, 2(N-1)S / sum b), and then a region can own (T b/S - 1)/(N-2).
pub(in crate::plan) fn owner_shares(ports: &[f64]) -> (Vec<f64>, f64) {
    let regions = ports.len() as f64;
    let least = ports.iter().copied().fold(f64::INFINITY, f64::min);
    let all: f64 = ports.iter().sum();
    let rate = least.min(all / (2.0 * (regions - 1.0)));
    let room: Vec<f64> = ports.iter().map(|port| (port / rate - 1.0).max(0.0)).collect();
    let total: f64 = room.iter().sum();
    (room.iter().map(|room| room / total).collect(), rate)
}

/// The rate that owner shares reach when pairs count too: a pair carries (x + y)S each way.
pub(in crate::plan) fn rate_of(shares: &[f64], capacity: &Capacity) -> f64 {
    let others = shares.len() as f64 - 2.0;
    let port = |region: usize| capacity.ports[region] / (1.0 + others * shares[region]);
    let pair = |(a, b): (usize, usize)| match shares[a] + shares[b] {
        0.0 => f64::INFINITY,
        load => capacity.pair(a, b) / load,
    };
    let ports = (0..shares.len()).map(port);
    ports.chain(capacity.all_pairs().map(pair)).fold(f64::INFINITY, f64::min)
}

/// Owners' shares by ports alone, where links carry that.
pub(in crate::plan) fn owners(capacity: &Capacity) -> Option<Packing> {
    let (shares, _) = owner_shares(&capacity.ports);
    let rate = rate_of(&shares, capacity);
    (rate >= capacity.rate_limit() * (1.0 - TIE)).then(|| stars(&shares, rate))
}

fn stars(shares: &[f64], rate: f64) -> Packing {
    let regions = shares.len();
    let owners = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
    let trees = owners.map(|(owner, share)| (RegionTree::star(regions, owner), share * rate));
    Packing { trees: trees.collect(), rate, limit: rate }
}

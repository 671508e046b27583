//! Small buffers: hops count, not rates.

use super::gateway_tree;
use super::region_tree::{RegionTree, RootedTree, grow};
use crate::plan::capacity::{Capacity, PortDirection};
use crate::plan::pair_shares::PairShares;
use crate::plan::sizing::unsolicited_window;
use crate::plan::tree::{Algorithm, Plan};
use crate::size_class::{MEDIUM_BYTES, SizeClass};
use crate::topology::Fabric;
use units::ByteCount;

/// The largest buffer that may take the express tree. Forecasts are of one buffer alone. The buckets
/// of a training step are larger than this, come in a row and fill links: then distance is paid once
/// for all of them, and the bytes that a tree of fewer hops sends more are paid for each.
pub const EXPRESS_MAX: ByteCount = ByteCount::new(GRAIN << DOUBLINGS);

/// Sizes are told apart to this many bytes,
const GRAIN: u64 = 1 << 10;
/// and candidates are compared at none, at this, and at so many times twice as much.
const DOUBLINGS: usize = 12;
/// What a tree must save of the time, on the mean of these sizes, to be worth having.
const WORTH: f64 = 0.001;
/// Times that differ by less than this part are the same.
const SAME: f64 = 1e-9;

/// Adds the tree that saves the most time in small buffers, and the size up to which it does.
pub(in crate::plan) fn add(fabric: &Fabric, plan: &mut Plan) {
    if matches!(plan.algorithm, Algorithm::Local | Algorithm::Swap) {
        return;
    }
    let rates = plan.pair_shares(fabric);
    let bulk = |bytes: u64| plan.seconds(fabric, bytes, &PairShares::new());
    let sizes = std::iter::once(0).chain((0..=DOUBLINGS).map(|doublings| GRAIN << doublings));
    let sizes: Vec<(u64, f64)> = sizes.map(|bytes| (bytes, bulk(bytes))).collect();
    let mut best: Option<(f64, usize, RootedTree)> = None;
    for rooted in candidates(&Capacity::of(fabric, PortDirection::Both)) {
        let alone = Alone::new((fabric, &rates), plan, &rooted);
        let saved = sizes.iter().map(|(bytes, bulk)| alone.saves(*bytes, *bulk));
        let saved: Vec<f64> = saved.collect();
        // Up to the first at which it is later: where relays pass on whole segments, it may be sooner
        // again beyond.
        let taken = saved.iter().position(|part| *part < -SAME).unwrap_or(saved.len());
        let mean = saved[..taken].iter().sum::<f64>() / sizes.len() as f64;
        if mean > WORTH && best.as_ref().is_none_or(|(most, ..)| mean > *most) {
            best = Some((mean, taken, rooted));
        }
    }
    let Some((_, taken, rooted)) = best else { return };
    let alone = Alone::new((fabric, &rates), plan, &rooted);
    let low = sizes[taken - 1].0;
    let high = sizes.get(taken).map_or(low + GRAIN, |(bytes, _)| *bytes);
    let most = bisect(low, high, |bytes| alone.saves(bytes, bulk(bytes)) >= -SAME);
    plan.express_bytes = ByteCount::new(most);
    plan.reason.push_str(&reason(fabric, &rooted, plan.express_bytes));
    plan.trees.push(gateway_tree::on_widest(fabric, &rooted));
}

/// A candidate, by itself.
struct Alone<'f> {
    fabric: &'f Fabric,
    /// What pairs are held to: the parts that the trees for large buffers give them.
    rates: &'f PairShares,
    plan: Plan,
    /// What a gateway may send to any of its peers beyond their grants. What fits meets memory
    /// that they keep free in any case, and never waits a round trip for leave to go on, which the
    /// forecast does not count.
    room: u64,
}

impl<'f> Alone<'f> {
    fn new(
        (fabric, rates): (&'f Fabric, &'f PairShares),
        bulk: &Plan,
        rooted: &RootedTree,
    ) -> Self {
        let plan = Plan {
            algorithm: bulk.algorithm,
            reason: String::new(),
            segment: bulk.segment,
            express_bytes: EXPRESS_MAX,
            trees: vec![gateway_tree::on_widest(fabric, rooted)],
        };
        let room = plan.express_room(fabric).unwrap_or(0);
        Self { fabric, rates, plan, room }
    }

    /// The part of `bulk` seconds that it saves; less than nothing where it takes longer, or may not
    /// be taken.
    fn saves(&self, bytes: u64, bulk: f64) -> f64 {
        if bytes > self.room {
            return f64::NEG_INFINITY;
        }
        let seconds = self.plan.seconds(self.fabric, bytes, self.rates);
        (bulk - seconds) / bulk.max(f64::MIN_POSITIVE)
    }
}

/// The greatest size for which `holds`, which it does for `low` and not for `high`.
fn bisect(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while high - low > GRAIN {
        let middle = (low + high) / 2 / GRAIN * GRAIN;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Everybody swaps; each region as the hub of its shortest paths.
fn candidates(capacity: &Capacity) -> impl Iterator<Item = RootedTree> {
    let everybody = capacity.is_complete().then(|| RootedTree::everybody(capacity));
    let nearest = (0..capacity.regions()).map(|root| grow(capacity, root, |_, _| 0.0, 1.0));
    let mut trees: Vec<RegionTree> = nearest.collect();
    trees.sort_unstable();
    trees.dedup();
    everybody.into_iter().chain(trees.into_iter().map(|tree| tree.rooted_at_center(capacity)))
}

fn reason(fabric: &Fabric, rooted: &RootedTree, most: ByteCount) -> String {
    let names: Vec<&str> =
        rooted.roots.iter().map(|region| fabric.regions()[*region].name.as_str()).collect();
    let how = match names[..] {
        [one] => format!("meet in {one}, which takes the fewest hops"),
        [one, other] if rooted.parents.len() > 2 => {
            format!("meet in {one} and {other}, which takes the fewest hops")
        }
        _ => "are swapped by all regions, which takes one hop".to_owned(),
    };
    let which = match most.get() {
        0 => "empty buffers".to_owned(),
        _ => format!("buffers up to {most}, for which that is sooner,"),
    };
    format!("; {which} {how}")
}

impl Plan {
    /// With no larger buffers on the express tree than have room at gateways of this fabric.
    pub fn with_express_limit(self, fabric: &Fabric) -> Self {
        let room = ByteCount::new(self.express_room(fabric).unwrap_or(0));
        Self { express_bytes: self.express_bytes.min(room), ..self }
    }

    /// The largest buffer that the early room along the express tree always holds.
    fn express_room(&self, fabric: &Fabric) -> Option<u64> {
        let region = |id| fabric.gateway(id).region;
        let edges = self.trees.iter().find(|tree| tree.is_express())?.edges();
        let far = edges.filter(|(one, other)| region(*one) != region(*other));
        let room = |(one, other)| unsolicited_window(fabric, one, other, self).get();
        let fits =
            |room| SizeClass::Large.room(room).max(SizeClass::Medium.room(room).min(MEDIUM_BYTES));
        far.map(room).map(fits).min()
    }
}

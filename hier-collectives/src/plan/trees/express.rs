//! The express tree: a tree of few hops that takes small buffers whole.
//!
//! For a small buffer the number of hops counts, and not the rates. The planner calls this after it
//! has chosen the trees for large buffers.

use super::gateway_tree;
use super::region_tree::{RegionTree, RootedRegionTree, grow_region_tree};
use crate::plan::analysis::pair_shares::PairShares;
use crate::plan::fabric_capacity::{FabricCapacity, PortDirection};
use crate::plan::plan_data::{Plan, PlanAlgorithm};
use crate::plan::tree::Tree;
use crate::plan::window_size::unsolicited_window_size;
use crate::size_class::{MEDIUM_BYTES, SizeClass};
use crate::topology::Fabric;
use units::ByteCount;

/// 1 KiB: the size of the largest buffer that takes the express tree is found in steps of 1 KiB,
/// and rounded down. The express tree has the fewest hops and takes small buffers whole.
const SIZE_STEP_BYTES: u64 = 1 << 10;

/// 12 doublings of 1 KiB: candidates for the express tree are compared at buffers of 0 bytes and of
/// 1 KiB, 2 KiB and so on to 4 MiB.
const SIZE_DOUBLINGS: usize = 12;

/// 4 MiB: the largest buffer that may take the express tree, the tree with the fewest hops. Larger
/// buffers are divided among the other trees; a plan with a higher limit is refused as invalid.
///
/// Buckets of a training step are larger, follow each other and fill links: delay is then paid
/// once, and extra bytes are paid each time.
/// Tested by `a_plan_has_at_most_one_express_tree`.
pub const EXPRESS_MAX: ByteCount = ByteCount::new(SIZE_STEP_BYTES << SIZE_DOUBLINGS);

/// 0.001 of the predicted time of an all-reduce over the other trees: an express tree that saves no
/// more is not added to the plan. The saving is a mean over the compared buffer sizes. The fraction
/// is chosen, so that a tree is worth its state.
/// Tested by `a_barrier_over_a_thin_mesh_takes_one_hop`.
const SAVED_FRACTION_MIN: f64 = 0.001;

/// 1e-9 of the predicted time of an all-reduce: an express tree that is later by no more counts as
/// equally fast as the other trees. The fraction is far above the rounding of `f64`.
const EQUAL_TIMES_FRACTION: f64 = 1e-9;

/// Adds to `plan` the tree that saves the most time for small buffers, and the size of the largest
/// buffer that takes it.
///
/// A plan of one or two regions, and a plan for which no tree saves enough, stay as they are.
pub(crate) fn add_express_tree(fabric: &Fabric, plan: &mut Plan) {
    if matches!(plan.algorithm, PlanAlgorithm::Local | PlanAlgorithm::Swap) {
        return;
    }
    let shares = plan.pair_shares(fabric);
    let bulk = |bytes: u64| plan.forecast_all_reduce_seconds(fabric, bytes, &PairShares::new());
    let sizes = std::iter::once(0)
        .chain((0..=SIZE_DOUBLINGS).map(|doublings| SIZE_STEP_BYTES << doublings));
    let sizes: Vec<(u64, f64)> = sizes.map(|bytes| (bytes, bulk(bytes))).collect();
    let mut best: Option<(f64, usize, RootedRegionTree)> = None;
    for rooted in express_candidates(&FabricCapacity::of_fabric(fabric, PortDirection::Both)) {
        let candidate = ExpressCandidate::new(fabric, &shares, plan, &rooted);
        let saved = sizes.iter().map(|(bytes, bulk)| candidate.saved_fraction(*bytes, *bulk));
        let saved: Vec<f64> = saved.collect();
        // Counts the sizes below the first at which it is later. It may be sooner again beyond,
        // where relays pass on whole segments.
        let taken =
            saved.iter().position(|part| *part < -EQUAL_TIMES_FRACTION).unwrap_or(saved.len());
        let mean = saved[..taken].iter().sum::<f64>() / sizes.len() as f64;
        if mean > SAVED_FRACTION_MIN && best.as_ref().is_none_or(|(most, ..)| mean > *most) {
            best = Some((mean, taken, rooted));
        }
    }
    let Some((_, taken, rooted)) = best else { return };
    let candidate = ExpressCandidate::new(fabric, &shares, plan, &rooted);
    let low = sizes[taken - 1].0;
    let high = sizes.get(taken).map_or(low + SIZE_STEP_BYTES, |(bytes, _)| *bytes);
    let most = bisect_express_buffer_size(low, high, |bytes| {
        candidate.saved_fraction(bytes, bulk(bytes)) >= -EQUAL_TIMES_FRACTION
    });
    plan.express_bytes = ByteCount::new(most);
    plan.reason.push_str(&express_reason(fabric, &rooted, plan.express_bytes));
    plan.trees.push(gateway_tree::gateway_tree_on_fastest_ports(fabric, &rooted));
}

/// A candidate for the express tree, as a plan of that tree alone.
struct ExpressCandidate<'f> {
    fabric: &'f Fabric,
    /// Shares that the trees for large buffers give to pairs of gateways.
    shares: &'f PairShares,
    plan: Plan,
    /// The largest buffer in bytes that fits the unsolicited windows along the tree. It never waits
    /// a round trip for a grant, which the forecast does not count.
    window: u64,
}

impl<'f> ExpressCandidate<'f> {
    /// Makes a candidate of the region tree `rooted` beside the plan `bulk` for large buffers.
    fn new(
        fabric: &'f Fabric,
        shares: &'f PairShares,
        bulk: &Plan,
        rooted: &RootedRegionTree,
    ) -> Self {
        let plan = Plan {
            algorithm: bulk.algorithm,
            reason: String::new(),
            segment: bulk.segment,
            express_bytes: EXPRESS_MAX,
            trees: vec![gateway_tree::gateway_tree_on_fastest_ports(fabric, rooted)],
            block_trees: vec![],
            block_bytes_min: ByteCount::default(),
        };
        let window = plan.express_tree_buffer_max(fabric).unwrap_or(0);
        Self { fabric, shares, plan, window }
    }

    /// Returns the fraction that the candidate saves of `bulk_seconds`, the time of a buffer of
    /// `bytes` bytes over the other trees.
    ///
    /// It is negative where the tree takes longer, and minus infinity where the buffer does not
    /// fit.
    fn saved_fraction(&self, bytes: u64, bulk_seconds: f64) -> f64 {
        if bytes > self.window {
            return f64::NEG_INFINITY;
        }
        let seconds = self.plan.forecast_all_reduce_seconds(self.fabric, bytes, self.shares);
        (bulk_seconds - seconds) / bulk_seconds.max(f64::MIN_POSITIVE)
    }
}

/// Finds the largest buffer size, in steps of 1 KiB, for which `holds` is true.
///
/// `holds` is true for `low` and false for `high`.
fn bisect_express_buffer_size(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while high - low > SIZE_STEP_BYTES {
        let middle = (low + high) / 2 / SIZE_STEP_BYTES * SIZE_STEP_BYTES;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the candidates for the express tree. In one, if the fabric is complete, all regions are
/// roots and exchange directly. Further ones are the trees of the shortest paths from each region.
fn express_candidates(capacity: &FabricCapacity) -> impl Iterator<Item = RootedRegionTree> {
    let all_roots = capacity.is_complete().then(|| RootedRegionTree::all_roots(capacity));
    let nearest =
        (0..capacity.region_count()).map(|root| grow_region_tree(capacity, root, |_, _| 0.0, 1.0));
    let mut trees: Vec<RegionTree> = nearest.collect();
    trees.sort_unstable();
    trees.dedup();
    all_roots.into_iter().chain(trees.into_iter().map(|tree| tree.rooted_at_center(capacity)))
}

/// Returns the sentence that the express tree adds to the plan's reason.
fn express_reason(fabric: &Fabric, rooted: &RootedRegionTree, limit: ByteCount) -> String {
    let names: Vec<&str> =
        rooted.roots.iter().map(|region| fabric.regions()[*region].name.as_str()).collect();
    let how = match names[..] {
        [one] => format!("meet in {one}, which takes the fewest hops"),
        [one, other] if rooted.parents.len() > 2 => {
            format!("meet in {one} and {other}, which takes the fewest hops")
        }
        _ => "are exchanged by all regions directly, which takes one hop".to_owned(),
    };
    let buffers = match limit.get() {
        0 => "empty buffers".to_owned(),
        _ => format!("buffers up to {limit}, for which that is sooner,"),
    };
    format!("; {buffers} {how}")
}

impl Plan {
    /// Returns the plan with its express limit lowered to what fits the unsolicited windows of
    /// `fabric`.
    pub fn with_express_limit(self, fabric: &Fabric) -> Self {
        let window = ByteCount::new(self.express_tree_buffer_max(fabric).unwrap_or(0));
        Self { express_bytes: self.express_bytes.min(window), ..self }
    }

    /// Returns the largest buffer in bytes that fits into the unsolicited windows of all links of the
    /// express tree, without what smaller size classes reserve. `None` without an express tree, or
    /// for one that crosses no link.
    fn express_tree_buffer_max(&self, fabric: &Fabric) -> Option<u64> {
        let region = |id| fabric.gateway(id).region;
        let edges = self.trees.iter().find(|tree| tree.is_express())?.edges();
        let far = edges.filter(|(one, other)| region(*one) != region(*other));
        let windows =
            far.map(|(one, other)| unsolicited_window_size(fabric, one, other, self).get());
        let largest = |window| {
            let medium = SizeClass::Medium.usable_window(window).min(MEDIUM_BYTES);
            SizeClass::Large.usable_window(window).max(medium)
        };
        windows.map(largest).min()
    }

    /// Returns the size of the largest buffer that takes the express tree; `None` without an
    /// express tree.
    pub fn express_limit(&self) -> Option<ByteCount> {
        self.trees.iter().any(Tree::is_express).then_some(self.express_bytes)
    }

    /// Whether a buffer of `bytes` bytes takes the express tree.
    pub fn uses_express(&self, bytes: u64) -> bool {
        self.express_limit().is_some_and(|most| bytes <= most.get())
    }
}

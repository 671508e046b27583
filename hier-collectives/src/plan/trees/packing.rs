//! Tree packing: weighted spanning trees that together fill ports and pairs.
//!
//! The highest rate is a linear program with a variable for each tree. Its dual has a price for
//! each port and pair, at which every tree costs at least one. The cheapest tree at given prices is
//! a minimum spanning tree. So trees are found by column generation, until the prices prove that
//! no other trees carry noticeably more.

use super::region_tree::{RegionTree, grow_region_tree};
use crate::plan::fabric_capacity::FabricCapacity;
use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, Variable};
use std::collections::BTreeSet;

/// 0.001 of the rate of the trees found so far: the search for better trees ends when no trees can
/// exceed that rate by more. The precision is chosen.
/// Tested by `narrow_pairs_are_planned_near_the_best_packing`.
const PACKING_GAP_MAX: f64 = 0.001;

/// 0.001 of the highest rate of a plan's trees together: the planner gives up at most so much to
/// use trees with less delay. The fraction is chosen.
pub(super) const DEPTH_RATE_LOSS_MAX: f64 = 0.001;

/// 400 iterations: after so many, the planner's linear program stops its search for better trees
/// and uses those found so far. 60 were the most ever needed.
const PRICING_ROUNDS_MAX: usize = 400;

/// 16 trees: one iteration of the planner's linear program considers at most the 16 cheapest trees
/// that it found, and drops the others. More trees were mostly known already.
const TREES_PER_ROUND_MAX: usize = 16;

/// 160 constraints, one for each port and pair of regions that can be full: the most for the
/// planner's linear program. More would take seconds, and trees are then spread by load instead.
/// Tested by `many_narrow_pairs_are_planned_without_pricing`.
pub(super) const PRICED_CONSTRAINTS_MAX: usize = 160;

/// 256 trees: the planner grows so many when it spreads trees by load, without the linear program;
/// equal trees count once. The number was found by trial on 24 to 64 regions.
pub(crate) const SPREAD_TREES_MAX: usize = 256;

/// 20: while the planner spreads trees by load, the port or pair of regions with the highest load
/// costs e^20 times its price when idle. So the next tree avoids it. The exponent is chosen.
const SPREAD_PRICE_EXPONENT: f64 = 20.0;

/// A tree packing: trees and the rate of each.
#[derive(Debug, Clone)]
pub(crate) struct Packing {
    /// The trees and their rates, in payload bytes per second.
    pub trees: Vec<(RegionTree, f64)>,
    /// The sum of their rates.
    pub rate: f64,
    /// A proved upper bound of the rate of any packing.
    pub limit: f64,
}

/// Packs trees of any shape, found by pricing or, for many constraints, spread by load.
pub(crate) fn pack_any_trees(capacity: &FabricCapacity) -> Packing {
    let constraints = PackingConstraints::of_capacity(capacity);
    let (pool, limit) = if constraints.constraint_count() > PRICED_CONSTRAINTS_MAX {
        (constraints.spread_trees_by_load(), constraints.unit)
    } else {
        constraints.find_trees_by_price()
    };
    constraints.solve_tree_rates(pool, limit)
}

/// Packs the trees of `pool` only.
pub(crate) fn pack_pool(capacity: &FabricCapacity, pool: Vec<RegionTree>) -> Packing {
    let constraints = PackingConstraints::of_capacity(capacity);
    let limit = constraints.unit;
    constraints.solve_tree_rates(pool, limit)
}

/// The ports and pairs that can be bottlenecks; rates are relative to `unit`.
struct PackingConstraints<'a> {
    capacity: &'a FabricCapacity,
    /// A rate that no packing exceeds, in payload bytes per second.
    unit: f64,
    /// Regions whose ports can be bottlenecks.
    ports: Vec<usize>,
    /// Pairs of regions whose link can be a bottleneck.
    pairs: Vec<(usize, usize)>,
}

/// A price for each constraint.
#[derive(Debug, Clone)]
struct PackingPrices {
    ports: Vec<f64>,
    pairs: Vec<f64>,
}

impl<'a> PackingConstraints<'a> {
    /// Finds the ports and pairs that can be bottlenecks of a packing.
    fn of_capacity(capacity: &'a FabricCapacity) -> Self {
        let (ports, pairs) = (capacity.narrow_ports(), capacity.narrow_pairs());
        Self { capacity, unit: capacity.rate_upper_bound(), ports, pairs }
    }

    /// Returns the number of ports and pairs that can be bottlenecks.
    fn constraint_count(&self) -> usize {
        self.ports.len() + self.pairs.len()
    }

    /// Returns the rate of a region's ports, relative to the unit.
    fn port_rate(&self, region: usize) -> f64 {
        self.capacity.ports[region] / self.unit
    }

    /// Returns the rate of a pair of regions, relative to the unit.
    fn pair_rate(&self, (a, b): (usize, usize)) -> f64 {
        self.capacity.pair_rate(a, b) / self.unit
    }

    /// Solves for the rates of the trees of `pool` with the largest sum, and prefers shallow trees.
    ///
    /// `limit` is the proved upper bound of the rate.
    fn solve_tree_rates(&self, pool: Vec<RegionTree>, limit: f64) -> Packing {
        let latencies: Vec<u64> =
            pool.iter().map(|tree| tree.rooted_at_center(self.capacity).latency_ns).collect();
        let longest = latencies.iter().copied().max().unwrap_or(0).max(1) as f64;
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let gain = |latency: &u64| 1.0 - DEPTH_RATE_LOSS_MAX * (*latency as f64 / longest);
        let weights: Vec<Variable> = latencies
            .iter()
            .map(|latency| problem.add_var(gain(latency), (0.0, f64::INFINITY)))
            .collect();
        let degrees: Vec<Vec<u32>> = pool.iter().map(RegionTree::degrees).collect();
        for &region in &self.ports {
            let load = weights.iter().zip(&degrees);
            let load: Vec<_> = load.map(|(w, degree)| (*w, f64::from(degree[region]))).collect();
            problem.add_constraint(load, ComparisonOp::Le, self.port_rate(region));
        }
        for pair in &self.pairs {
            let through = weights.iter().zip(&pool);
            let through = through.filter(|(_, tree)| tree.edges().binary_search(pair).is_ok());
            let load: Vec<_> = through.map(|(weight, _)| (*weight, 1.0)).collect();
            if !load.is_empty() {
                problem.add_constraint(load, ComparisonOp::Le, self.pair_rate(*pair));
            }
        }
        let solution = solve_packing_program(&problem);
        let value = |(weight, tree): (&Variable, RegionTree)| {
            (tree, solution.as_ref().map_or(0.0, |solution| solution.var_value(*weight)))
        };
        let trees: Vec<(RegionTree, f64)> = weights.iter().zip(pool).map(value).collect();
        self.scale_trees(trees, limit)
    }

    /// Drops trees of negligible weight, then scales the rest until the tightest port or link is
    /// full. Keeps one tree if the solver found none.
    fn scale_trees(&self, mut trees: Vec<(RegionTree, f64)>, limit: f64) -> Packing {
        if trees.iter().all(|(_, weight)| *weight <= 1e-9) {
            // The solver gave up. One tree alone is valid, if slow.
            trees.truncate(1);
            trees.iter_mut().for_each(|(_, weight)| *weight = 1.0);
        }
        let total: f64 = trees.iter().map(|(_, weight)| weight).sum();
        trees.retain(|(_, weight)| *weight > 1e-5 * total);
        let (ports, pairs) =
            self.port_and_pair_loads(trees.iter().map(|(tree, weight)| (tree, *weight)));
        let ports = self.ports.iter().map(|region| self.port_rate(*region) / ports[*region]);
        let pairs = self.pairs.iter().zip(pairs).map(|(pair, load)| self.pair_rate(*pair) / load);
        let scale = self.unit * ports.chain(pairs).fold(f64::INFINITY, f64::min);
        trees.iter_mut().for_each(|(_, weight)| *weight *= scale);
        let rate = trees.iter().map(|(_, weight)| weight).sum();
        Packing { trees, rate, limit }
    }

    /// Returns the load of trees with these weights: on ports by region, and on pairs in the order
    /// of `self.pairs`.
    fn port_and_pair_loads<'b>(
        &self,
        trees: impl Iterator<Item = (&'b RegionTree, f64)>,
    ) -> (Vec<f64>, Vec<f64>) {
        let regions = self.capacity.region_count();
        let (mut ports, mut all) = (vec![0.0; regions], vec![0.0; regions * regions]);
        for (tree, weight) in trees {
            for (a, b) in tree.edges() {
                ports[*a] += weight;
                ports[*b] += weight;
                all[a * regions + b] += weight;
            }
        }
        (ports, self.pairs.iter().map(|(a, b)| all[a * regions + b]).collect())
    }

    /// Finds trees by pricing; returns them and the proved upper bound of the rate.
    fn find_trees_by_price(&self) -> (Vec<RegionTree>, f64) {
        let mut pool: BTreeSet<RegionTree> = BTreeSet::new();
        let mut limit = 1.0f64;
        let mut current = self.first_prices();
        let mut best: Option<(f64, PackingPrices)> = None;
        let mut pull = 0.5;
        for _ in 0..PRICING_ROUNDS_MAX {
            // Half-way to the prices with the best proof, since vertices alone oscillate.
            let asked = match &best {
                Some((_, best)) => current.moved_towards(best, pull),
                None => current.clone(),
            };
            let (found, cheapest) = self.cheap_trees(&asked);
            let proof = self.cost_of_all(&asked) / cheapest;
            if best.as_ref().is_none_or(|(least, _)| proof < *least) {
                best = Some((proof, asked.scaled_by(1.0 / cheapest)));
                limit = limit.min(proof);
            }
            let before = pool.len();
            let first = pool.is_empty();
            let new = |tree: &RegionTree| first || self.tree_price(tree, &current) < 1.0 - 1e-7;
            pool.extend(found.into_iter().filter(new));
            if pool.len() == before {
                if pull == 0.0 {
                    break;
                }
                // The mixed prices found no new tree: the next round uses the current prices alone.
                pull = 0.0;
                continue;
            }
            pull = 0.5;
            let Some((rate, prices)) = self.best_prices(&pool) else { break };
            current = prices;
            if limit <= rate * (1.0 + PACKING_GAP_MAX) {
                break;
            }
        }
        (pool.into_iter().collect(), limit * self.unit)
    }

    /// Returns at most `TREES_PER_ROUND_MAX` trees at these prices, cheapest first, and the price of
    /// the cheapest of all trees.
    fn cheap_trees(&self, prices: &PackingPrices) -> (Vec<RegionTree>, f64) {
        let matrix = self.edge_prices(prices);
        let regions = self.capacity.region_count();
        let price = |a: usize, b: usize| matrix[a * regions + b];
        let cost = |tree: &RegionTree| tree.edges().iter().map(|(a, b)| price(*a, *b)).sum::<f64>();
        let cheapest = grow_region_tree(self.capacity, 0, price, 0.0);
        let least = cost(&cheapest);
        let slowest = self.capacity.all_pairs().map(|(a, b)| self.capacity.delay_ns(a, b)).max();
        let depth = slowest.unwrap_or(0).max(1) as f64 * regions as f64 * 2.0;
        let grown = (0..regions).map(|root| {
            grow_region_tree(self.capacity, root, price, DEPTH_RATE_LOSS_MAX * least / depth)
        });
        let mut found: Vec<(f64, RegionTree)> = grown.map(|tree| (cost(&tree), tree)).collect();
        found.push((least, cheapest));
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        found.dedup();
        (found.into_iter().map(|(_, tree)| tree).take(TREES_PER_ROUND_MAX).collect(), least)
    }

    /// Returns the rate that the trees of `pool` reach, and the prices that prove it; `None` where
    /// the solver fails.
    ///
    /// At these prices every tree of the pool costs at least one, and all constraints together cost
    /// the rate.
    fn best_prices(&self, pool: &BTreeSet<RegionTree>) -> Option<(f64, PackingPrices)> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut add = |cost: f64| problem.add_var(cost, (0.0, f64::INFINITY));
        let ports: Vec<Variable> =
            self.ports.iter().map(|region| add(self.port_rate(*region))).collect();
        let pairs: Vec<Variable> =
            self.pairs.iter().map(|pair| add(self.pair_rate(*pair))).collect();
        for tree in pool {
            let degrees = tree.degrees();
            let at_ports = self.ports.iter().zip(&ports);
            let at_ports = at_ports.map(|(region, price)| (*price, f64::from(degrees[*region])));
            let at_pairs = self.pairs.iter().zip(&pairs);
            let at_pairs = at_pairs.filter(|(pair, _)| tree.edges().binary_search(pair).is_ok());
            let terms: Vec<_> = at_ports.chain(at_pairs.map(|(_, price)| (*price, 1.0))).collect();
            problem.add_constraint(terms, ComparisonOp::Ge, 1.0);
        }
        let solution = solve_packing_program(&problem)?;
        let values = |prices: &[Variable]| {
            prices.iter().map(|price| solution.var_value(*price).max(0.0)).collect()
        };
        let prices = PackingPrices { ports: values(&ports), pairs: values(&pairs) };
        Some((solution.objective(), prices))
    }

    /// Returns trees that each avoid the constraints with the highest load so far. Nothing is
    /// proved about them.
    fn spread_trees_by_load(&self) -> Vec<RegionTree> {
        let mut pool = BTreeSet::new();
        let mut trees: Vec<RegionTree> = Vec::new();
        let mut prices = self.first_prices();
        for round in 0..SPREAD_TREES_MAX {
            let matrix = self.edge_prices(&prices);
            let regions = self.capacity.region_count();
            let root = round % regions;
            let tree = grow_region_tree(self.capacity, root, |a, b| matrix[a * regions + b], 0.0);
            trees.push(tree.clone());
            pool.insert(tree);
            let (ports, pairs) = self.port_and_pair_loads(trees.iter().map(|tree| (tree, 1.0)));
            let ports: Vec<f64> =
                self.ports.iter().map(|region| ports[*region] / self.port_rate(*region)).collect();
            let pairs: Vec<f64> = self
                .pairs
                .iter()
                .zip(pairs)
                .map(|(pair, load)| load / self.pair_rate(*pair))
                .collect();
            let fullest = ports.iter().chain(&pairs).copied().fold(0.0, f64::max);
            let steep = |load: &f64| (SPREAD_PRICE_EXPONENT * (load / fullest - 1.0)).exp();
            let first = self.first_prices();
            let rise = |prices: &[f64], loads: &[f64]| {
                prices.iter().zip(loads).map(|(price, load)| price * steep(load)).collect()
            };
            prices = PackingPrices {
                ports: rise(&first.ports, &ports),
                pairs: rise(&first.pairs, &pairs),
            };
        }
        pool.into_iter().collect()
    }

    /// Returns prices in inverse proportion to the rates of the constraints.
    fn first_prices(&self) -> PackingPrices {
        PackingPrices {
            ports: self.ports.iter().map(|region| 1.0 / self.port_rate(*region)).collect(),
            pairs: self.pairs.iter().map(|pair| 1.0 / self.pair_rate(*pair)).collect(),
        }
    }

    /// Returns the cost of all constraints at their full rates.
    fn cost_of_all(&self, prices: &PackingPrices) -> f64 {
        let ports =
            self.ports.iter().zip(&prices.ports).map(|(region, p)| self.port_rate(*region) * p);
        let pairs = self.pairs.iter().zip(&prices.pairs).map(|(pair, p)| self.pair_rate(*pair) * p);
        ports.chain(pairs).sum()
    }

    /// Returns the price of a tree: the sum over its ports and pairs.
    fn tree_price(&self, tree: &RegionTree, prices: &PackingPrices) -> f64 {
        let degrees = tree.degrees();
        let ports = self.ports.iter().zip(&prices.ports);
        let ports = ports.map(|(region, price)| f64::from(degrees[*region]) * price);
        let pairs = self.pairs.iter().zip(&prices.pairs);
        let pairs = pairs.filter(|(pair, _)| tree.edges().binary_search(pair).is_ok());
        ports.chain(pairs.map(|(_, price)| *price)).sum()
    }

    /// Returns the price of each edge between regions, row by row: the pair's price and those of
    /// the ports at both ends.
    fn edge_prices(&self, prices: &PackingPrices) -> Vec<f64> {
        let regions = self.capacity.region_count();
        let mut ends = vec![0.0; regions];
        self.ports.iter().zip(&prices.ports).for_each(|(region, price)| ends[*region] = *price);
        let mut matrix = vec![0.0; regions * regions];
        for a in 0..regions {
            for b in 0..regions {
                matrix[a * regions + b] = ends[a] + ends[b];
            }
        }
        for ((a, b), price) in self.pairs.iter().zip(&prices.pairs) {
            matrix[a * regions + b] += price;
            matrix[b * regions + a] += price;
        }
        matrix
    }
}

impl PackingPrices {
    /// Returns the prices moved towards `other` by the fraction `part`.
    fn moved_towards(&self, other: &Self, part: f64) -> Self {
        let mix = |mine: &[f64], theirs: &[f64]| {
            let both = mine.iter().zip(theirs);
            both.map(|(mine, theirs)| mine + part * (theirs - mine)).collect()
        };
        Self { ports: mix(&self.ports, &other.ports), pairs: mix(&self.pairs, &other.pairs) }
    }

    /// Returns the prices multiplied by `factor`.
    fn scaled_by(&self, factor: f64) -> Self {
        let times = |prices: &[f64]| prices.iter().map(|price| price * factor).collect();
        Self { ports: times(&self.ports), pairs: times(&self.pairs) }
    }
}

/// Solves a linear program; `None` where the solver fails.
pub(super) fn solve_packing_program(problem: &Problem) -> Option<Solution> {
    problem.solve().ok()?.into_solution().ok()
}

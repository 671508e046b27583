//! The schedule of a plan, simulated segment by segment within its memory bound.
//!
//! Gateways stop at random; none may hold more than the bound, and none may wait for ever.

use hier_collectives::buffer_part::{self, CUT_BYTES};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, MemoryBound, Plan, TreeDirection, TreeRole, TreeUpstream};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use units::ByteCount;

/// 300 segments, the approximate length of the buffer.
const BUFFER_SEGMENTS: u64 = 300;
/// 3 segments, the memory for partials of own ranks.
const PARTIALS_SEGMENTS: u64 = 3;

/// The most memory that gateways held, as fractions of the bound.
#[derive(Debug, Clone, Copy, Default)]
pub struct UsedMemory {
    pub partials: f64,
    pub ahead: f64,
    pub relayed: f64,
}

impl UsedMemory {
    pub fn max(self, other: Self) -> Self {
        Self {
            partials: self.partials.max(other.partials),
            ahead: self.ahead.max(other.ahead),
            relayed: self.relayed.max(other.relayed),
        }
    }
}

/// Progress of one tree at one gateway, as numbers of segments from the first on.
#[derive(Debug, Clone, Default)]
struct Progress {
    local: u64,
    partial: u64,
    result: u64,
    /// Segments that arrived from children and from other roots.
    arrived: BTreeMap<GatewayId, u64>,
    /// Result windows of the peers whose segments wait here, and our own for subtrees.
    ahead: BTreeMap<GatewayId, u64>,
}

struct Simulation<'a> {
    fabric: &'a Fabric,
    plan: &'a Plan,
    roles: Vec<Vec<TreeRole>>,
    /// Receivers of a partial, by gateway and tree.
    upstream: Vec<Vec<Vec<GatewayId>>>,
    /// Peers whose segments wait for those of others, by gateway and tree.
    waiting: Vec<Vec<Vec<GatewayId>>>,
    counts: Vec<u64>,
    /// Trees of the local reductions, in order.
    order: Vec<usize>,
    /// The memory bound of each gateway.
    bounds: Vec<MemoryBound>,
    /// Number of local reductions that each gateway with several ranks has begun.
    begun: Vec<usize>,
    /// Progress by gateway and tree.
    progress: Vec<Vec<Progress>>,
}

/// Simulates an all-reduce in a random order, in which gateways stop at random, and checks the
/// memory of each against the bound.
///
/// # Panics
/// When a gateway holds more, or is stuck.
pub fn assert_within_memory(fabric: &Fabric, plan: &Plan, dice: &mut SplitMix64) -> UsedMemory {
    let mut simulation = Simulation::new(fabric, plan);
    let mut used = UsedMemory::default();
    loop {
        // In every other round no gateway stops, so that the end is seen.
        for may_stop in [true, false] {
            let mut moved = false;
            for gateway in fabric.gateway_ids() {
                if !(may_stop && dice.chance(50)) {
                    moved |= simulation.take_possible_steps(gateway);
                }
            }
            used = used.max(simulation.check_against_bound());
            if !may_stop && !moved {
                simulation.assert_done();
                return used;
            }
        }
    }
}

impl<'a> Simulation<'a> {
    fn new(fabric: &'a Fabric, plan: &'a Plan) -> Self {
        let segment = plan.segment.get().next_multiple_of(CUT_BYTES);
        let parts = buffer_part::divide_into_buffer_parts(plan, BUFFER_SEGMENTS * segment);
        let counts: Vec<u64> = parts.iter().map(|part| u64::from(part.segment_count())).collect();
        let each = |(tree, count): (usize, &u64)| (0..*count).map(move |index| (index, tree));
        let partials = |(tree, _): &(usize, &u64)| plan.trees[*tree].direction.has_partials();
        let order = counts.iter().enumerate().filter(partials);
        let mut order: Vec<(u64, usize)> = order.flat_map(each).collect();
        order.sort_by_key(|(index, tree)| ((index << 32) / counts[*tree], *tree));
        let owner_trees = plan.owner_trees(fabric);
        let partials = ByteCount::new(PARTIALS_SEGMENTS * segment);
        let bound = |id| plan.memory_bound(fabric, &owner_trees, id, partials);
        let roles: Vec<_> = fabric.gateway_ids().map(|id| plan.roles(id)).collect();
        let mut simulation = Self {
            fabric,
            plan,
            upstream: peers_of_roles(&roles, upstream),
            waiting: peers_of_roles(&roles, waiting),
            roles,
            order: order.into_iter().map(|(_, tree)| tree).collect(),
            bounds: fabric.gateway_ids().map(bound).collect(),
            begun: vec![0; fabric.gateways().len()],
            progress: vec![vec![Progress::default(); counts.len()]; fabric.gateways().len()],
            counts,
        };
        for gateway in fabric.gateway_ids() {
            simulation.open_windows(gateway);
            if fabric.gateway(gateway).ranks.len() < 2 {
                simulation.give_all_contributions(gateway);
            }
        }
        simulation
    }

    /// Marks all partials of a gateway with one rank as ready: its contribution is the partial.
    fn give_all_contributions(&mut self, me: GatewayId) {
        self.begun[usize::from(me.0)] = self.order.len();
        for (progress, count) in self.progress[usize::from(me.0)].iter_mut().zip(&self.counts) {
            progress.local = *count;
        }
    }

    /// Divides each window among the trees whose segments wait in it.
    fn open_windows(&mut self, me: GatewayId) {
        for peer in self.fabric.gateway_ids() {
            let window = if peer == me {
                plan::relay_memory_bound(self.fabric, me, self.plan)
            } else {
                plan::result_window_size(self.fabric, me, peer, self.plan)
            };
            let window = window.get() / self.plan.segment.get();
            let roles = self.roles[usize::from(me.0)].iter();
            let partials = |(tree, _): &(usize, _)| self.plan.trees[*tree].direction.has_partials();
            let trees = roles.enumerate().filter(partials);
            let trees = trees.filter(|(_, role)| waits(role, peer, me));
            let trees: Vec<usize> = trees.map(|(tree, _)| tree).collect();
            let all: u64 = trees.iter().map(|tree| self.counts[*tree]).sum();
            for tree in trees {
                let share = (window * self.counts[tree]).div_ceil(all.max(1));
                self.progress[usize::from(me.0)][tree].ahead.insert(peer, share);
            }
        }
    }

    fn progress(&self, gateway: GatewayId, tree: usize) -> &Progress {
        &self.progress[usize::from(gateway.0)][tree]
    }

    fn progress_mut(&mut self, gateway: GatewayId, tree: usize) -> &mut Progress {
        &mut self.progress[usize::from(gateway.0)][tree]
    }

    /// Number of segments that hold no memory: the result is here, and all receivers have the
    /// partial.
    fn done(&self, me: GatewayId, tree: usize) -> u64 {
        let receivers = self.upstream[usize::from(me.0)][tree].iter();
        let with = receivers.map(|to| self.arrived(*to, me, tree));
        with.fold(self.progress(me, tree).result, u64::min)
    }

    fn arrived(&self, at: GatewayId, from: GatewayId, tree: usize) -> u64 {
        self.progress(at, tree).arrived.get(&from).copied().unwrap_or(0)
    }

    /// Performs all steps that a gateway can take now.
    fn take_possible_steps(&mut self, me: GatewayId) -> bool {
        let mut moved = false;
        loop {
            let mut again = self.begin_locals(me);
            for tree in 0..self.counts.len() {
                if self.plan.trees[tree].direction.has_partials() {
                    again |= self.make_partial(me, tree);
                    for receiver in 0..self.upstream[usize::from(me.0)][tree].len() {
                        let to = self.upstream[usize::from(me.0)][tree][receiver];
                        again |= self.send(me, to, tree);
                    }
                }
                again |= self.make_result(me, tree);
            }
            if !again {
                return moved;
            }
            moved = true;
        }
    }

    /// Begins as many local reductions, in order, as the memory holds.
    fn begin_locals(&mut self, me: GatewayId) -> bool {
        let begun = self.begun[usize::from(me.0)];
        if begun == self.order.len() {
            return false;
        }
        let room = PARTIALS_SEGMENTS.saturating_sub(self.local_held(me));
        let until = self.order.len().min(begun + usize::try_from(room).expect("small"));
        for index in begun..until {
            let tree = self.order[index];
            self.progress_mut(me, tree).local += 1;
        }
        self.begun[usize::from(me.0)] = until;
        until > begun
    }

    fn make_partial(&mut self, me: GatewayId, tree: usize) -> bool {
        let (progress, role) = (self.progress(me, tree), &self.roles[usize::from(me.0)][tree]);
        let mut most = progress.local;
        if is_relay(role) {
            let children = role.children.iter().map(|child| self.arrived(me, *child, tree));
            most = children.fold(most, u64::min);
            most = most.min(self.done(me, tree) + progress.ahead.get(&me).copied().unwrap_or(0));
        }
        let moved = most > progress.partial;
        let partial = progress.partial.max(most);
        self.progress_mut(me, tree).partial = partial;
        moved
    }

    fn send(&mut self, me: GatewayId, to: GatewayId, tree: usize) -> bool {
        let (there, before) = (self.progress(to, tree), self.arrived(to, me, tree));
        let granted = match there.ahead.get(&me) {
            Some(ahead) => there.result + ahead,
            // Added as it comes.
            None => there.partial,
        };
        let most = self.progress(me, tree).partial.min(granted).max(before);
        self.progress_mut(to, tree).arrived.insert(me, most);
        most > before
    }

    fn make_result(&mut self, me: GatewayId, tree: usize) -> bool {
        let role = &self.roles[usize::from(me.0)][tree];
        let progress = self.progress(me, tree);
        let most = match (&role.upstream, self.plan.trees[tree].direction) {
            (TreeUpstream::Parent(parent), TreeDirection::Partials) => {
                self.arrived(*parent, me, tree)
            }
            (TreeUpstream::Parent(parent), _) => self.progress(*parent, tree).result,
            (TreeUpstream::RootSet(_), TreeDirection::Results) => {
                self.progress(me, tree - 1).result
            }
            (TreeUpstream::RootSet(_), _) => {
                let operands = operands(role, me).into_iter();
                let here = operands.map(|peer| self.arrived(me, peer, tree));
                here.fold(progress.partial, u64::min)
            }
        };
        let moved = most > progress.result;
        self.progress_mut(me, tree).result = most;
        moved
    }

    fn local_held(&self, me: GatewayId) -> u64 {
        let partials = |tree: &usize| self.plan.trees[*tree].direction.has_partials();
        let trees = (0..self.counts.len()).filter(partials);
        trees.map(|tree| self.progress(me, tree).local - self.done(me, tree)).sum()
    }

    fn check_against_bound(&self) -> UsedMemory {
        let segment = self.plan.segment.get().next_multiple_of(CUT_BYTES);
        let of = |me: GatewayId| {
            let bound = self.bounds[usize::from(me.0)];
            let several = self.fabric.gateway(me).ranks.len() > 1;
            let partials = if several { self.local_held(me) } else { 0 };
            let (ahead, relayed) = self.others_held(me);
            let part = |held: u64, of: ByteCount, kind: &str| {
                let held = held * segment;
                assert!(held <= of.get(), "{me} holds {held} bytes {kind}, of {of}");
                if held == 0 { 0.0 } else { held as f64 / of.get() as f64 }
            };
            UsedMemory {
                partials: part(partials, bound.partials, "of partials"),
                ahead: part(ahead, bound.result_windows, "that wait"),
                relayed: part(relayed, bound.relayed, "of subtrees"),
            }
        };
        self.fabric.gateway_ids().map(of).fold(UsedMemory::default(), UsedMemory::max)
    }

    /// Segments that arrived and were not added, and subtrees' partials without a result.
    fn others_held(&self, me: GatewayId) -> (u64, u64) {
        let (mut ahead, mut relayed) = (0, 0);
        for (tree, role) in self.roles[usize::from(me.0)].iter().enumerate() {
            let progress = self.progress(me, tree);
            for peer in &self.waiting[usize::from(me.0)][tree] {
                let Some(arrived) = progress.arrived.get(peer) else { continue };
                let is_below = is_relay(role) && role.children.contains(peer);
                let added = if is_below { progress.partial } else { progress.result };
                ahead += arrived - added;
            }
            if is_relay(role) {
                relayed += progress.partial - self.done(me, tree);
            }
        }
        (ahead, relayed)
    }

    fn assert_done(&self) {
        for (gateway, progress) in self.progress.iter().enumerate() {
            for (tree, (progress, count)) in progress.iter().zip(&self.counts).enumerate() {
                assert_eq!(progress.result, *count, "gateway {gateway} is stuck in tree {tree}");
            }
        }
    }
}

/// Returns the peers that `peers` gives for each role, by gateway and tree.
fn peers_of_roles(
    roles: &[Vec<TreeRole>],
    peers: impl Fn(&TreeRole, GatewayId) -> Vec<GatewayId>,
) -> Vec<Vec<Vec<GatewayId>>> {
    let of_gateway = |(id, roles): (u16, &Vec<TreeRole>)| {
        roles.iter().map(|role| peers(role, GatewayId(id))).collect()
    };
    (0..).zip(roles).map(of_gateway).collect()
}

/// Receivers of a partial.
fn upstream(role: &TreeRole, me: GatewayId) -> Vec<GatewayId> {
    match &role.upstream {
        TreeUpstream::Parent(parent) => vec![*parent],
        TreeUpstream::RootSet(roots) => roots.iter().copied().filter(|id| *id != me).collect(),
    }
}

/// Peers whose segments wait here for the segments of others.
fn waiting(role: &TreeRole, me: GatewayId) -> Vec<GatewayId> {
    let mut peers = operands(role, me);
    peers.extend(&role.children);
    peers.sort_unstable();
    peers.dedup();
    peers.retain(|peer| waits(role, *peer, me));
    peers
}

/// Whether a gateway in this role is a relay.
fn is_relay(role: &TreeRole) -> bool {
    let root = matches!(&role.upstream, TreeUpstream::RootSet(roots) if roots.len() == 1);
    !root && !role.children.is_empty()
}

/// Gateways whose partials a result consists of, beside our own.
fn operands(role: &TreeRole, me: GatewayId) -> Vec<GatewayId> {
    match &role.upstream {
        TreeUpstream::RootSet(roots) if roots.len() > 1 => {
            roots.iter().copied().filter(|id| *id != me).collect()
        }
        TreeUpstream::RootSet(_) => role.children.clone(),
        TreeUpstream::Parent(_) => vec![],
    }
}

/// Whether segments of a peer, or our own of subtrees, wait here for the segments of others.
fn waits(role: &TreeRole, peer: GatewayId, me: GatewayId) -> bool {
    if peer == me {
        return is_relay(role);
    }
    let operands = operands(role, me);
    let comes = operands.contains(&peer) || role.children.contains(&peer);
    comes && operands != [peer]
}

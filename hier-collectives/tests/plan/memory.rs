//! The schedule of a plan, played segment by segment within the memory that it says it takes:
//! whoever is slow, nobody holds more, and nobody waits for ever.

use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, MemoryBound, Plan, Role, TreeDirection, Upstream};
use hier_collectives::shard::{self, CUT_BYTES};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use units::ByteCount;

/// Segments of the buffer, about.
const SEGMENTS: u64 = 300;
/// Memory for partials of several local ranks, in segments.
const PARTIALS: u64 = 3;

/// The most that gateways held, as parts of what they may hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    pub partials: f64,
    pub ahead: f64,
    pub relayed: f64,
}

impl Used {
    pub fn max(self, other: Self) -> Self {
        Self {
            partials: self.partials.max(other.partials),
            ahead: self.ahead.max(other.ahead),
            relayed: self.relayed.max(other.relayed),
        }
    }
}

/// One tree at one gateway: how many segments, from the first on, are so far.
#[derive(Debug, Clone, Default)]
struct Seat {
    local: u64,
    partial: u64,
    result: u64,
    /// What came from children and from others of the root set.
    arrived: BTreeMap<GatewayId, u64>,
    /// What those that wait here may send ahead of results, and so may we of subtrees.
    ahead: BTreeMap<GatewayId, u64>,
}

struct Play<'a> {
    fabric: &'a Fabric,
    plan: &'a Plan,
    roles: Vec<Vec<Role>>,
    counts: Vec<u64>,
    /// The trees of local reductions, one after the other.
    order: Vec<usize>,
    /// What each gateway may hold.
    may: Vec<MemoryBound>,
    /// How many of them each gateway with several ranks has begun.
    begun: Vec<usize>,
    /// By gateway and tree.
    seats: Vec<Vec<Seat>>,
}

/// Plays an all-reduce in a random order, in which gateways stand still at random, and holds what
/// each has in memory against what the plan says.
///
/// # Panics
/// When a gateway holds more, or is stuck.
pub fn assert_within_memory(fabric: &Fabric, plan: &Plan, dice: &mut SplitMix64) -> Used {
    let mut play = Play::new(fabric, plan);
    let mut used = Used::default();
    loop {
        // Every other time all go on that can, so that the end is seen.
        for stand in [true, false] {
            let mut moved = false;
            for gateway in fabric.gateway_ids() {
                if !(stand && dice.chance(50)) {
                    moved |= play.go_on(gateway);
                }
            }
            used = used.max(play.hold_against_plan());
            if !stand && !moved {
                play.assert_done();
                return used;
            }
        }
    }
}

impl<'a> Play<'a> {
    fn new(fabric: &'a Fabric, plan: &'a Plan) -> Self {
        let segment = plan.segment.get().next_multiple_of(CUT_BYTES);
        let parts = shard::parts(plan, SEGMENTS * segment);
        let counts: Vec<u64> = parts.iter().map(|part| u64::from(part.segments())).collect();
        let each = |(tree, count): (usize, &u64)| (0..*count).map(move |index| (index, tree));
        let partials = |(tree, _): &(usize, &u64)| plan.trees[*tree].direction.has_partials();
        let order = counts.iter().enumerate().filter(partials);
        let mut order: Vec<(u64, usize)> = order.flat_map(each).collect();
        order.sort_by_key(|(index, tree)| ((index << 32) / counts[*tree], *tree));
        let may = |id| plan.memory(fabric, id, ByteCount::new(PARTIALS * segment));
        let mut play = Self {
            fabric,
            plan,
            roles: fabric.gateway_ids().map(|id| plan.roles(id)).collect(),
            order: order.into_iter().map(|(_, tree)| tree).collect(),
            may: fabric.gateway_ids().map(may).collect(),
            begun: vec![0; fabric.gateways().len()],
            seats: vec![vec![Seat::default(); counts.len()]; fabric.gateways().len()],
            counts,
        };
        for gateway in fabric.gateway_ids() {
            play.open_windows(gateway);
            if fabric.gateway(gateway).ranks.len() < 2 {
                play.give_all(gateway);
            }
        }
        play
    }

    /// The contribution of a single rank is the partial.
    fn give_all(&mut self, me: GatewayId) {
        self.begun[usize::from(me.0)] = self.order.len();
        for (seat, count) in self.seats[usize::from(me.0)].iter_mut().zip(&self.counts) {
            seat.local = *count;
        }
    }

    /// Divides each window among the trees whose segments wait in it.
    fn open_windows(&mut self, me: GatewayId) {
        for peer in self.fabric.gateway_ids() {
            let window = if peer == me {
                plan::relay_bytes(self.fabric, me, self.plan)
            } else {
                plan::result_window(self.fabric, me, peer, self.plan)
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
                self.seats[usize::from(me.0)][tree].ahead.insert(peer, share);
            }
        }
    }

    fn seat(&self, gateway: GatewayId, tree: usize) -> &Seat {
        &self.seats[usize::from(gateway.0)][tree]
    }

    fn seat_mut(&mut self, gateway: GatewayId, tree: usize) -> &mut Seat {
        &mut self.seats[usize::from(gateway.0)][tree]
    }

    /// To whom a partial goes.
    fn upstream(&self, me: GatewayId, tree: usize) -> Vec<GatewayId> {
        match &self.roles[usize::from(me.0)][tree].upstream {
            Upstream::Parent(parent) => vec![*parent],
            Upstream::RootSet(roots) => roots.iter().copied().filter(|id| *id != me).collect(),
        }
    }

    /// Segments that hold no memory any more: the result is here, and the partial with all above.
    fn done(&self, me: GatewayId, tree: usize) -> u64 {
        let with = self.upstream(me, tree).into_iter().map(|to| self.arrived(to, me, tree));
        with.fold(self.seat(me, tree).result, u64::min)
    }

    fn arrived(&self, at: GatewayId, from: GatewayId, tree: usize) -> u64 {
        self.seat(at, tree).arrived.get(&from).copied().unwrap_or(0)
    }

    /// Does all that a gateway can do now.
    fn go_on(&mut self, me: GatewayId) -> bool {
        let mut moved = false;
        loop {
            let mut again = self.begin_locals(me);
            for tree in 0..self.counts.len() {
                if self.plan.trees[tree].direction.has_partials() {
                    again |= self.make_partial(me, tree);
                    for to in self.upstream(me, tree) {
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

    /// As many local reductions, in order, as there is room for.
    fn begin_locals(&mut self, me: GatewayId) -> bool {
        let begun = self.begun[usize::from(me.0)];
        if begun == self.order.len() {
            return false;
        }
        let room = PARTIALS.saturating_sub(self.local_held(me));
        let until = self.order.len().min(begun + usize::try_from(room).expect("small"));
        for index in begun..until {
            let tree = self.order[index];
            self.seat_mut(me, tree).local += 1;
        }
        self.begun[usize::from(me.0)] = until;
        until > begun
    }

    fn make_partial(&mut self, me: GatewayId, tree: usize) -> bool {
        let (seat, role) = (self.seat(me, tree), &self.roles[usize::from(me.0)][tree]);
        let mut most = seat.local;
        if is_relay(role) {
            let children = role.children.iter().map(|child| self.arrived(me, *child, tree));
            most = children.fold(most, u64::min);
            most = most.min(self.done(me, tree) + seat.ahead.get(&me).copied().unwrap_or(0));
        }
        let moved = most > seat.partial;
        let partial = seat.partial.max(most);
        self.seat_mut(me, tree).partial = partial;
        moved
    }

    fn send(&mut self, me: GatewayId, to: GatewayId, tree: usize) -> bool {
        let (there, before) = (self.seat(to, tree), self.arrived(to, me, tree));
        let granted = match there.ahead.get(&me) {
            Some(ahead) => there.result + ahead,
            // Added as it comes.
            None => there.partial,
        };
        let most = self.seat(me, tree).partial.min(granted).max(before);
        self.seat_mut(to, tree).arrived.insert(me, most);
        most > before
    }

    fn make_result(&mut self, me: GatewayId, tree: usize) -> bool {
        let role = &self.roles[usize::from(me.0)][tree];
        let seat = self.seat(me, tree);
        let most = match (&role.upstream, self.plan.trees[tree].direction) {
            (Upstream::Parent(parent), TreeDirection::Partials) => self.arrived(*parent, me, tree),
            (Upstream::Parent(parent), _) => self.seat(*parent, tree).result,
            (Upstream::RootSet(_), TreeDirection::Results) => self.seat(me, tree - 1).result,
            (Upstream::RootSet(_), _) => {
                let operands = operands(role, me).into_iter();
                let here = operands.map(|peer| self.arrived(me, peer, tree));
                here.fold(seat.partial, u64::min)
            }
        };
        let moved = most > seat.result;
        self.seat_mut(me, tree).result = most;
        moved
    }

    fn local_held(&self, me: GatewayId) -> u64 {
        let partials = |tree: &usize| self.plan.trees[*tree].direction.has_partials();
        let trees = (0..self.counts.len()).filter(partials);
        trees.map(|tree| self.seat(me, tree).local - self.done(me, tree)).sum()
    }

    fn hold_against_plan(&self) -> Used {
        let segment = self.plan.segment.get().next_multiple_of(CUT_BYTES);
        let of = |me: GatewayId| {
            let may = self.may[usize::from(me.0)];
            let several = self.fabric.gateway(me).ranks.len() > 1;
            let partials = if several { self.local_held(me) } else { 0 };
            let (ahead, relayed) = self.others_held(me);
            let part = |held: u64, of: ByteCount, what: &str| {
                let held = held * segment;
                assert!(held <= of.get(), "{me} holds {held} bytes {what}, of {of}");
                if held == 0 { 0.0 } else { held as f64 / of.get() as f64 }
            };
            Used {
                partials: part(partials, may.partials, "of partials"),
                ahead: part(ahead, may.result_windows, "that wait"),
                relayed: part(relayed, may.relayed, "of subtrees"),
            }
        };
        self.fabric.gateway_ids().map(of).fold(Used::default(), Used::max)
    }

    /// Segments that landed and were not added, and subtrees' partials that are not done.
    fn others_held(&self, me: GatewayId) -> (u64, u64) {
        let (mut ahead, mut relayed) = (0, 0);
        for (tree, role) in self.roles[usize::from(me.0)].iter().enumerate() {
            let seat = self.seat(me, tree);
            for (peer, arrived) in seat.arrived.iter().filter(|(peer, _)| waits(role, **peer, me)) {
                let is_below = is_relay(role) && role.children.contains(peer);
                let added = if is_below { seat.partial } else { seat.result };
                ahead += arrived - added;
            }
            if is_relay(role) {
                relayed += seat.partial - self.done(me, tree);
            }
        }
        (ahead, relayed)
    }

    fn assert_done(&self) {
        for (gateway, seats) in self.seats.iter().enumerate() {
            for (tree, (seat, count)) in seats.iter().zip(&self.counts).enumerate() {
                assert_eq!(seat.result, *count, "gateway {gateway} is stuck in tree {tree}");
            }
        }
    }
}

/// Whether it adds what comes from below for somebody above.
fn is_relay(role: &Role) -> bool {
    let root = matches!(&role.upstream, Upstream::RootSet(roots) if roots.len() == 1);
    !root && !role.children.is_empty()
}

/// Whose partials a result is made of, beside our own.
fn operands(role: &Role, me: GatewayId) -> Vec<GatewayId> {
    match &role.upstream {
        Upstream::RootSet(roots) if roots.len() > 1 => {
            roots.iter().copied().filter(|id| *id != me).collect()
        }
        Upstream::RootSet(_) => role.children.clone(),
        Upstream::Parent(_) => vec![],
    }
}

/// Whether segments of a peer, or our own of subtrees, wait here for others.
fn waits(role: &Role, peer: GatewayId, me: GatewayId) -> bool {
    if peer == me {
        return is_relay(role);
    }
    let operands = operands(role, me);
    let comes = operands.contains(&peer) || role.children.contains(&peer);
    comes && operands != [peer]
}

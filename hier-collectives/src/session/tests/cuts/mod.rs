//! Links of a mesh that are cut: data and control go round them, and failures name them.

mod connections;

use super::fabrics::*;
use super::world::*;
use crate::ids::*;
use crate::mesh::*;
use crate::plan::*;
use crate::post::*;
use crate::topology::*;
use std::collections::*;
use std::sync::Arc;
use units::*;

const A: GatewayId = GatewayId(0);
const B: GatewayId = GatewayId(1);
const C: GatewayId = GatewayId(2);

/// A world of a fabric whose connections have these states, with the planner's plan.
fn world_of(
    fabric: &Arc<Fabric>,
    seed: u64,
    not_up: &[(GatewayPair, MeshConnectionState)],
) -> World {
    let plan = make_plan(fabric).expect("a plan");
    let plan = Plan { segment: ByteCount::new(SEGMENT_BYTES), ..plan };
    let plan = plan.with_express_limit(fabric);
    let fabrics = vec![Arc::clone(fabric); fabric.gateways().len()];
    World::with_connections(fabrics, plan, seed, 1000, not_up.iter().copied().collect())
}

/// A mesh of so many regions, each with one rank.
fn mesh(regions: usize, seed: u64) -> World {
    world_of(&fabric(&vec![1; regions]), seed, &[])
}

/// Runs one collective of all ranks from the sequence that the epoch begins with, or a later one.
fn collective(world: &mut World, later: u64) {
    for rank in (0..world.fabric.world_size()).map(RankId) {
        let (_, next) = world.epoch_of(rank);
        world.post(rank, next.0 + later, 40);
    }
    world.run();
}

/// The results that each rank had so far.
fn results(world: &World) -> Vec<usize> {
    let ready = |rank| world.count(rank, |event| matches!(event, RankEvent::ResultReady { .. }));
    (0..world.fabric.world_size()).map(ready).collect()
}

/// Whether all gateways follow one plan, and it has data on this connection.
fn is_used(world: &World, pair: GatewayPair) -> bool {
    let plans: Vec<&Plan> = world.sessions.iter().filter_map(|session| session.plan()).collect();
    assert_eq!(plans.len(), world.sessions.len(), "all are in an epoch");
    assert!(
        plans.iter().all(|plan| plan.encoding_hash() == plans[0].encoding_hash()),
        "of one plan"
    );
    let mut edges = plans[0].trees.iter().flat_map(Tree::edges);
    edges.any(|(one, other)| pair_of(one, other) == pair)
}

/// The texts of the failures that a rank had of its own posts.
fn failures(world: &World, rank: u32) -> Vec<&Failure> {
    let failed = world.events[&RankId(rank)].iter().filter_map(|event| match event {
        RankEvent::Failed { failure, .. } => Some(failure),
        _ => None,
    });
    failed.collect()
}

#[test]
fn data_and_control_go_round_a_link_cut_under_way() {
    for seed in 0..150 {
        let regions = 3 + usize::from(seed % 2 == 1);
        let mut world = mesh(regions, seed);
        for rank in 0..world.fabric.world_size() {
            world.post(RankId(rank), 0, 200);
        }
        for _ in 0..world.dice.roll(60) {
            world.step();
        }
        let one = world.dice.roll(regions);
        let other = (one + 1 + world.dice.roll(regions - 1)) % regions;
        let [one, other] = [one, other].map(|id| GatewayId(u16::try_from(id).expect("small")));
        world.cut_connection(one, other, MeshConnectionState::Down);
        world.run();
        let (low, high) = pair_of(one, other);
        let link = format!("link r{low}-r{high} is down (");
        for rank in 0..world.fabric.world_size() {
            for failure in failures(&world, rank) {
                assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
                assert!(failure.text.contains(&link), "{failure}");
                assert!(failure.text.contains("goes round it by way of gateway g"), "{failure}");
            }
        }
        assert!(!is_used(&world, (low, high)), "seed {seed}");
        let before = results(&world);
        (0..3).for_each(|later| collective(&mut world, later));
        let after: Vec<usize> = before.iter().map(|results| results + 3).collect();
        assert_eq!(results(&world), after, "seed {seed}");
        let reason = &world.sessions[0].plan().expect("an epoch").reason;
        assert!(reason.contains(&format!("link r{low}-r{high} is down")), "{reason}");
    }
}

#[test]
fn a_link_that_comes_back_is_used_again() {
    for seed in 0..20 {
        let mut world = mesh(3 + usize::from(seed % 2 == 1), seed);
        let whole = world.sessions[0].plan().expect("an epoch").encoding_hash();
        world.cut_connection(B, C, MeshConnectionState::Down);
        world.run();
        assert!(!is_used(&world, (B, C)));
        let epoch = world.epoch_of(RankId(0)).0;
        world.set_connection(B, C, MeshConnectionState::Up);
        world.run();
        (0..6).for_each(|later| collective(&mut world, later));
        assert!(results(&world).iter().all(|results| *results == 6), "no collective fails for it");
        assert_eq!(world.epoch_of(RankId(0)).0, epoch, "within the epoch");
        assert!(is_used(&world, (B, C)), "seed {seed}");
        assert_eq!(world.sessions[0].plan().expect("an epoch").encoding_hash(), whole);
        world.assert_clean();
    }
}

#[test]
fn a_link_cut_before_the_start_is_gone_round() {
    for seed in 0..20 {
        let fabric = fabric(&vec![1; 3 + usize::from(seed % 2 == 1)]);
        let cut = [(A, B), (A, C), (B, C)][seed as usize % 3];
        let mut world = world_of(&fabric, seed, &[(cut, MeshConnectionState::Down)]);
        assert!(!is_used(&world, cut));
        collective(&mut world, 0);
        assert!(results(&world).iter().all(|results| *results == 1));
        world.assert_clean();
    }
}

#[test]
fn a_link_that_is_awaited_is_not_gone_round() {
    let mut world = world_of(&fabric(&[1; 3]), 1, &[((B, C), MeshConnectionState::Awaited)]);
    assert!(world.sessions.iter().all(|session| session.plan().is_none()));
    world.set_connection(B, C, MeshConnectionState::Up);
    world.run();
    assert!(is_used(&world, (B, C)));
    // Closed for a moment: the plan stays.
    let plan = world.sessions[0].plan().expect("an epoch").encoding_hash();
    world.lose_connection(B, C);
    world.run();
    assert_eq!(world.sessions[0].plan().expect("an epoch").encoding_hash(), plan);
    assert!(world.epoch_of(RankId(0)).0 > Epoch(1));
}

/// Nothing goes round the second cut. All ranks hear which links are down, and the job goes on when
/// one of them is back.
#[test]
fn an_isolated_gateway_is_named_with_its_links() {
    for seed in 0..40 {
        let mut world = mesh(3, seed);
        for rank in 0..3 {
            world.post(RankId(rank), 0, 200);
        }
        for _ in 0..world.dice.roll(30) {
            world.step();
        }
        world.cut_connection(B, C, MeshConnectionState::Down);
        world.cut_connection(A, C, MeshConnectionState::Awaited);
        world.run();
        assert!(world.sessions.iter().all(|session| session.plan().is_none()), "seed {seed}");
        for rank in 0..3 {
            for failure in failures(&world, rank) {
                assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
                assert!(failure.text.contains("link r"), "{failure}");
            }
        }
        world.set_connection(A, C, MeshConnectionState::Up);
        world.run();
        assert!(!is_used(&world, (B, C)));
        let before = results(&world);
        collective(&mut world, 0);
        let after: Vec<usize> = before.iter().map(|results| results + 1).collect();
        assert_eq!(results(&world), after, "seed {seed}");
    }
}

#[test]
fn a_failure_names_an_unreachable_gateway_and_its_links() {
    let mut world = world_of(&line_of_three(), 1, &[]);
    for rank in 0..2 {
        world.post(RankId(rank), 0, 200);
    }
    world.run();
    world.cut_connection(B, C, MeshConnectionState::Awaited);
    world.run();
    let text = "gateway g2 cannot be reached: link r1-r2 is down (test); contributions intact, the \
                gateways go on trying";
    for rank in 0..2 {
        let failures = failures(&world, rank);
        assert_eq!(failures.len(), 1);
        assert!(failures[0].text.starts_with(text), "{}", failures[0]);
    }
}

/// A mesh in which links come and go at random, and ranks post whenever they can.
struct Storm {
    world: World,
    /// The next post of each rank in its epoch.
    next: BTreeMap<RankId, (Epoch, u64)>,
    /// The number of posts of each rank.
    posts: BTreeMap<RankId, usize>,
}

impl Storm {
    /// A rank posts, unless its epoch has ended or it is far ahead.
    fn post(&mut self, rank: RankId) {
        let (epoch, first) = self.world.epoch_of(rank);
        let known = self.next.get(&rank).filter(|(of, _)| *of == epoch);
        let next = known.map_or(first.0, |(_, next)| *next);
        let gateway = self.world.gateway_of(rank);
        let is_there = self.world.session(gateway).plan().is_some();
        if is_there && next < first.0 + 8 {
            self.world.post(rank, next, 20 + next % 5 * 30);
            self.next.insert(rank, (epoch, next + 1));
            *self.posts.entry(rank).or_default() += 1;
        }
    }

    /// One thing happens.
    fn step(&mut self) {
        let regions = self.world.sessions.len();
        match self.world.dice.roll(40) {
            0 => {
                let one = self.world.dice.roll(regions);
                let other = (one + 1 + self.world.dice.roll(regions - 1)) % regions;
                let [one, other] =
                    [one, other].map(|id| GatewayId(u16::try_from(id).expect("small")));
                match self.world.dice.roll(4) {
                    0 => self.world.cut_connection(one, other, MeshConnectionState::Down),
                    1 => self.world.cut_connection(one, other, MeshConnectionState::Awaited),
                    _ => self.world.set_connection(one, other, MeshConnectionState::Up),
                }
            }
            1..4 => {
                let rank = u32::try_from(self.world.dice.roll(regions)).expect("small");
                self.post(RankId(rank));
            }
            _ => {
                self.world.step();
            }
        }
    }
}

/// Sums are checked by the world. When all links are back, every post has been answered and the
/// ranks go on.
#[test]
fn links_that_come_and_go_do_no_other_harm() {
    for seed in 0..120 {
        let world = mesh(3 + usize::from(seed % 2 == 1), seed);
        let mut storm = Storm { world, next: BTreeMap::new(), posts: BTreeMap::new() };
        (0..1200).for_each(|_| storm.step());
        let Storm { mut world, posts, .. } = storm;
        let cut: Vec<GatewayPair> = world.not_up.keys().copied().collect();
        for (one, other) in cut {
            world.set_connection(one, other, MeshConnectionState::Up);
        }
        world.run();
        // Ends the collectives that some ranks have not posted, whatever links the plan uses.
        let others: Vec<GatewayId> = world.fabric.gateway_ids().filter(|id| *id != A).collect();
        for other in &others {
            world.drop_connection(A, *other);
        }
        for other in others {
            world.set_connection(A, other, MeshConnectionState::Up);
        }
        world.run();
        for (RankId(rank), posts) in posts {
            let answered = world.count(rank, |event| {
                matches!(event, RankEvent::Failed { .. } | RankEvent::ContributionFree { .. })
            });
            assert_eq!(answered, posts, "seed {seed}: rank {rank}");
        }
        let before = results(&world);
        collective(&mut world, 0);
        let after: Vec<usize> = before.iter().map(|results| results + 1).collect();
        assert_eq!(results(&world), after, "seed {seed}");
        world.assert_clean();
    }
}

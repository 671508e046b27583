//! Scripts of posts and commits for tests.

use super::fabrics::*;
use super::world::*;
use crate::ids::*;
use crate::post::*;
use proptest::prelude::*;

/// Two regions with two ranks and one.
pub(super) fn pair(seed: u64) -> World {
    World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), seed, 600)
}

/// The same, where a commit that a lost region may have confirmed waits for the next epoch.
pub(super) fn pair_in_doubt(seed: u64) -> World {
    let mut world = pair(seed);
    for id in [EAST, WEST] {
        world.session(id).leaves_doubt = true;
    }
    world
}

pub(super) const EAST: GatewayId = GatewayId(0);
pub(super) const WEST: GatewayId = GatewayId(1);
pub(super) const RANKS: u32 = 3;

pub(super) fn committed(world: &World, rank: u32) -> Vec<u64> {
    let step = |event: &RankEvent| match event {
        RankEvent::Committed { step } => Some(step.0),
        _ => None,
    };
    world.events[&RankId(rank)].iter().filter_map(step).collect()
}

pub(super) fn commit_failures(world: &World, rank: u32) -> Vec<Failure> {
    let failure = |event: &RankEvent| match event {
        RankEvent::CommitFailed { failure, .. } => Some(failure.clone()),
        _ => None,
    };
    world.events[&RankId(rank)].iter().filter_map(failure).collect()
}

/// The last committed step of which a rank was notified when its last epoch began.
pub(super) fn notified_committed(world: &World, rank: u32) -> Option<u64> {
    let began = world.events[&RankId(rank)].iter().rev().find_map(|event| match event {
        RankEvent::EpochBegan { committed, .. } => Some(*committed),
        _ => None,
    });
    began.flatten().map(|step| step.0)
}

pub(super) fn post_and_run_all(world: &mut World, elements: u64) {
    let posts: Vec<_> = (0..RANKS).map(|r| (r, world.epoch_of(RankId(r)).1.0)).collect();
    for (rank, next) in posts {
        world.post(RankId(rank), next, elements);
    }
    world.run();
}

/// A script for each rank: posts and commits, in order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Deed {
    Post(u64),
    Commit(u64, u64, u64),
}

/// Steps of one to three collectives, each step committed.
pub(super) fn script(lengths: &[Vec<u64>]) -> Vec<Deed> {
    let (mut deeds, mut next) = (Vec::new(), 0);
    for (step, lengths) in lengths.iter().enumerate() {
        let from = next;
        for length in lengths {
            deeds.push(Deed::Post(*length));
            next += 1;
        }
        deeds.push(Deed::Commit(step as u64, from, next));
    }
    deeds
}

/// Ranks follow the script, each at its own pace, as long as `go_on`.
pub(super) fn follow(world: &mut World, deeds: &[Deed], mut go_on: impl FnMut(&mut World) -> bool) {
    let mut at = [0usize; RANKS as usize];
    let mut next = [0u64; RANKS as usize];
    loop {
        let behind: Vec<usize> = (0..RANKS as usize).filter(|r| at[*r] < deeds.len()).collect();
        if behind.is_empty() || !go_on(world) {
            return;
        }
        let rank = behind[world.dice.roll(behind.len())];
        let id = RankId(rank as u32);
        match deeds[at[rank]] {
            Deed::Post(length) => {
                world.post(id, next[rank], length);
                next[rank] += 1;
            }
            Deed::Commit(step, from, below) => world.commit(id, step, from..below),
        }
        at[rank] += 1;
        for _ in 0..world.dice.roll(20) {
            world.step();
        }
    }
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Vec<u64>>> {
    proptest::collection::vec(proptest::collection::vec(0u64..120, 0..4), 1..5)
}

//! Sends between two ranks: each tag in an order of its own, and every failure told to both.

mod relays;

use super::fabrics::*;
use super::results::all_post;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::post::*;
use crate::sequence::SendSeries;
use proptest::prelude::*;
use units::Span;

/// The number of a send.
fn send(from: u32, tag: u16, place: u64) -> Sequence {
    SendSeries { from: RankId(from), tag: Tag(tag) }.sequence_at(place)
}

/// Two ranks, on one gateway or on two with so many links between them.
fn two_ranks(links: u16, seed: u64) -> World {
    match links {
        0 => World::new(&[2], plan_of(vec![tree(1, &[0], &[])]), seed, 600),
        1 => World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), seed, 600),
        _ => relayed_ranks(links, seed, 600),
    }
}

/// Makes two ranks whose gateways are so many links apart, with this memory for what each passes on.
fn relayed_ranks(links: u16, seed: u64, memory: impl Into<MemoryLimits>) -> World {
    let fabric = relayed_pair(links);
    let parents: Vec<(u16, u16)> = (1..=links).map(|at| (at, at - 1)).collect();
    let plan = plan_of(vec![tree(1, &[0], &parents)]);
    World::with_fabrics(vec![fabric; usize::from(links) + 1], plan, seed, memory)
}

/// Lets a rank post its end of a send of so many elements.
fn post_end(world: &mut World, rank: u32, sequence: Sequence, elements: u64) {
    let from = sequence.series().expect("a send").from;
    world.patterns.insert(sequence.0, Pattern::Send { from });
    world.post(RankId(rank), sequence.0, elements);
}

/// Returns the texts of a rank's failures, of sends and of epochs.
fn failures_of(world: &World, rank: u32) -> Vec<Failure> {
    let failure = |event: &RankEvent| match event {
        RankEvent::Failed { failure, .. } => Some(failure.clone()),
        RankEvent::EpochBegan { ended, .. } => ended.clone(),
        _ => None,
    };
    world.events[&RankId(rank)].iter().filter_map(failure).collect()
}

fn count_ready(world: &World, rank: u32) -> usize {
    world.count(rank, |event| matches!(event, RankEvent::ResultReady { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Sends both ways with several tags, posted in any order of tags, with streams cut at random.
    #[test]
    fn sends_meet_by_tag_in_any_order(
        seed: u64,
        links in 0u16..4,
        sends in proptest::collection::vec((0u32..2, 0u16..3, 0u64..60), 1..12),
    ) {
        let mut world = two_ranks(links, seed);
        let mut places = std::collections::BTreeMap::<(u32, u16), u64>::new();
        let mut ends: [Vec<(Sequence, u64)>; 2] = [vec![], vec![]];
        for (from, tag, elements) in sends {
            let place = places.entry((from, tag)).or_default();
            ends.iter_mut().for_each(|end| end.push((send(from, tag, *place), elements)));
            *place += 1;
        }
        let all = ends[0].len();
        // Each rank takes the tags in an order of its own, and the sends of a tag in theirs.
        while !ends.iter().all(Vec::is_empty) {
            let rank = world.dice.roll(2);
            if ends[rank].is_empty() {
                continue;
            }
            let any = world.dice.roll(ends[rank].len());
            let series = ends[rank][any].0.series();
            let first = ends[rank].iter().position(|(end, _)| end.series() == series);
            let (sequence, elements) = ends[rank].remove(first.expect("there is one"));
            post_end(&mut world, rank as u32, sequence, elements);
            for _ in 0..world.dice.roll(20) {
                world.step();
            }
        }
        world.run();
        for rank in 0..2 {
            prop_assert_eq!(count_ready(&world, rank), all, "{:?}", failures_of(&world, rank));
            let free = world.count(rank, |e| matches!(e, RankEvent::ContributionFree { .. }));
            prop_assert_eq!(free, all);
        }
        world.assert_clean();
    }

    /// Ranks that disagree on the length both hear of it, and no rank has a result.
    #[test]
    fn a_difference_of_lengths_names_both(seed: u64, links in 0u16..4, sent in 0u64..40, more in 1u64..40) {
        let mut world = two_ranks(links, seed);
        let other = world.fabric.rank_number(RankId(1));
        let sequence = send(0, 5, 0);
        post_end(&mut world, 0, sequence, sent);
        for _ in 0..world.dice.roll(20) {
            world.step();
        }
        post_end(&mut world, 1, sequence, sent + more);
        world.run();
        for rank in 0..2 {
            let [failure] = &failures_of(&world, rank)[..] else {
                return Err(TestCaseError::fail(format!("{:?}", failures_of(&world, rank))));
            };
            prop_assert_eq!(failure.code, FailureCode::Disagreement);
            let lengths = format!("length: rank 0 (r0) posted {sent}, rank {other}");
            prop_assert!(failure.text.contains(&lengths), "{}", failure);
            prop_assert!(failure.text.contains(&format!("posted {};", sent + more)), "{}", failure);
            prop_assert_eq!(count_ready(&world, rank), 0);
        }
        // The next send of the tag meets the next receive.
        let next = send(0, 5, 1);
        [0, 1].into_iter().for_each(|rank| post_end(&mut world, rank, next, 3));
        world.run();
        prop_assert_eq!(count_ready(&world, 1), 1);
        world.assert_clean();
    }
}

#[test]
fn a_send_ends_once_its_receiver_has_it() {
    let mut world = two_ranks(1, 3);
    post_end(&mut world, 0, send(0, 1, 0), 5);
    world.run();
    assert_eq!(count_ready(&world, 0), 0, "nobody has received it");
    // Without bytes, too.
    post_end(&mut world, 1, send(1, 1, 0), 0);
    world.run();
    assert_eq!(count_ready(&world, 1), 0);
    post_end(&mut world, 1, send(0, 1, 0), 5);
    post_end(&mut world, 0, send(1, 1, 0), 0);
    world.run();
    assert_eq!([count_ready(&world, 0), count_ready(&world, 1)], [2, 2]);
    world.assert_clean();
}

#[test]
fn sends_are_of_two_ranks_and_have_their_numbers() {
    let refused = |ranks: &[u32], sequence: Sequence, pattern: Pattern| {
        let roots: Vec<u16> = (0..ranks.len() as u16).collect();
        let mut world = World::new(ranks, plan_of(vec![tree(1, &roots, &[])]), 1, 600);
        world.patterns.insert(sequence.0, pattern);
        world.post(RankId(0), sequence.0, 4);
        world.run();
        let [failure] = &failures_of(&world, 0)[..] else { panic!("{:?}", failures_of(&world, 0)) };
        assert_eq!(failure.code, FailureCode::BadPost);
        failure.text.clone()
    };
    let of_first = Pattern::Send { from: RankId(0) };
    assert!(refused(&[1, 2], send(0, 1, 0), of_first).contains("of 3 ranks; it is of two"));
    assert!(refused(&[1, 1], send(1, 1, 0), of_first).contains("the number of another"));
    assert!(refused(&[1, 1], Sequence(0), of_first).contains("the number of another"));
    assert!(refused(&[2], send(0, 1, 0), Pattern::AllReduce).contains("the number of a send"));
    assert!(refused(&[2], send(0, 1, 7), of_first).contains("7 of the sends with tag 1"));
}

#[test]
fn ranks_with_too_many_tags_end_the_epoch() {
    let mut world = two_ranks(1, 2);
    for tag in 0..1024 {
        for rank in 0..2 {
            post_end(&mut world, rank, send(0, tag, 0), 0);
        }
        world.run();
    }
    assert_eq!(count_ready(&world, 1), 1024);
    post_end(&mut world, 0, send(1, 0, 0), 0);
    post_end(&mut world, 0, send(0, 1024, 0), 0);
    world.run();
    let told = failures_of(&world, 0);
    assert!(told.iter().any(|failure| failure.text.contains("more than 1024 tags")), "{told:?}");
    // Both are in a new epoch, in which places go on.
    let (_, next) = world.epoch_of(RankId(1));
    for rank in 0..2 {
        post_end(&mut world, rank, send(0, 2000, next.0), 9);
    }
    world.run();
    assert_eq!(count_ready(&world, 1), 1025);
}

#[test]
fn collectives_and_sends_of_two_ranks_wait_for_no_other() {
    let mut world = two_ranks(1, 9);
    post_end(&mut world, 0, send(0, 0, 0), 40);
    all_post(&mut world, &[30], |_| ());
    world.run();
    assert_eq!([count_ready(&world, 0), count_ready(&world, 1)], [1, 1]);
    post_end(&mut world, 1, send(0, 0, 0), 40);
    world.run();
    assert_eq!(count_ready(&world, 1), 2);
    world.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Of a gateway that shuts down, sends that both have posted finish, whatever their tags; others
    /// fail at once.
    #[test]
    fn a_drain_finishes_sends_that_both_posted(seed: u64, drained in 0u16..2, steps in 0usize..20) {
        let mut world = two_ranks(1, seed);
        let (met, alone) = (send(0, 9, 0), send(0, 2, 0));
        [0, 1].into_iter().for_each(|rank| post_end(&mut world, rank, met, 300));
        let lonely = u32::from(1 - drained);
        post_end(&mut world, lonely, alone, 300);
        for _ in 0..steps {
            world.step();
        }
        let now = world.now;
        world.session(GatewayId(drained)).handle_drain(Span::from_secs(30), now);
        world.collect(GatewayId(drained));
        world.run();
        for rank in 0..2 {
            prop_assert_eq!(count_ready(&world, rank), 1, "{:?}", failures_of(&world, rank));
        }
        let failures = failures_of(&world, lonely);
        prop_assert_eq!(failures.len(), 1, "{:?}", failures);
        prop_assert_eq!(failures[0].code, FailureCode::ShuttingDown);
    }
}

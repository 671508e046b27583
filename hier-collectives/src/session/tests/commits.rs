//! Commits: confirmed once every rank has the results, and failed otherwise.

use super::fabrics::*;
use super::steps::*;
use super::world::*;
use crate::ids::*;
use crate::post::*;
use crate::session::*;
use crate::wire::*;
use proptest::prelude::*;
use units::Span;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// In any order of events and with lost lanes, every commit is confirmed, in order. The world
    /// checks that all ranks have the results of its collectives by then.
    #[test]
    fn every_commit_is_confirmed_once_every_rank_has_all(seed: u64, steps in steps()) {
        let mut world = pair(seed);
        follow(&mut world, &script(&steps), |_| true);
        world.run();
        for rank in 0..RANKS {
            let all: Vec<u64> = (0..steps.len() as u64).collect();
            prop_assert_eq!(committed(&world, rank), all);
        }
        world.assert_clean();
    }

    /// The connection is lost at any point: every commit gets one answer. If one rank was notified
    /// that a step is complete, the next epoch notifies all.
    #[test]
    fn a_step_confirmed_to_one_rank_is_known_to_all(
        seed: u64, steps in steps(), after in 0..40usize, more in 0..200usize,
    ) {
        let mut world = pair(seed);
        let mut left = after;
        follow(&mut world, &script(&steps), |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        for _ in 0..more {
            world.step();
        }
        world.lose_connection(EAST, WEST);
        world.run();
        let last = (0..RANKS).filter_map(|rank| committed(&world, rank).last().copied()).max();
        for rank in 0..RANKS {
            let asked = world.steps.keys().filter(|(of, _)| of.0 == rank).count();
            let answered = committed(&world, rank).len() + commit_failures(&world, rank).len();
            prop_assert_eq!(answered, asked);
            // A step that all regions have prepared may be one that nobody has confirmed.
            let known = notified_committed(&world, rank);
            prop_assert!(known >= last, "{:?} {:?}", known, last);
            prop_assert_eq!(known, notified_committed(&world, 0));
        }
        post_and_run_all(&mut world, 50);
        for rank in 0..RANKS {
            let (_, next) = world.epoch_of(RankId(rank));
            world.steps.clear();
            world.commit(RankId(rank), 900, next.0..next.0 + 1);
        }
        world.run();
        for rank in 0..RANKS {
            prop_assert_eq!(committed(&world, rank).last().copied(), Some(900));
        }
        world.assert_clean();
    }

    /// The connection is lost at any point, also twice. Ranks hear one answer about each step: no step
    /// fails on one rank that is confirmed to another.
    #[test]
    fn ranks_hear_one_answer_about_a_step(
        seed: u64, steps in steps(), after in 0..40usize, more in 0..200usize, twice: bool,
    ) {
        let mut world = pair_in_doubt(seed);
        let mut left = after;
        follow(&mut world, &script(&steps), |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        for _ in 0..more {
            world.step();
        }
        world.lose_connection(EAST, WEST);
        if twice {
            for _ in 0..more % 40 {
                world.step();
            }
            world.lose_connection(EAST, WEST);
        }
        world.run();
        let confirmed: Vec<u64> = (0..RANKS).flat_map(|rank| committed(&world, rank)).collect();
        for rank in 0..RANKS {
            let own = committed(&world, rank);
            let asked = world.steps.keys().filter(|(of, _)| of.0 == rank).map(|(_, step)| step.0);
            let asked: Vec<u64> = asked.collect();
            prop_assert_eq!(own.len() + commit_failures(&world, rank).len(), asked.len());
            let heard = asked.iter().filter(|step| confirmed.contains(step));
            prop_assert_eq!(own.iter().collect::<Vec<_>>(), heard.collect::<Vec<_>>());
        }
        world.assert_clean();
    }
}

/// West alone hears that the step is complete. Ranks in the east have its results, and commit it before
/// the end of the epoch, after it, and in the next epoch.
#[test]
fn a_step_known_to_one_region_is_confirmed_to_all() {
    let mut world = pair_in_doubt(11);
    for rank in 0..RANKS {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    let (epoch, now) = (world.epoch_of(RankId(0)).0, world.now);
    let commit = Commit { epoch, step: Step(4), timeout: Span::from_secs(60) };
    let (_, messages) = (world.commit(RankId(2), 4, 0..1), std::mem::take(&mut world.messages));
    for message in messages[&(WEST, EAST)].clone() {
        world.session(EAST).handle_message(WEST, message, now).expect("an Ask");
    }
    world.collect(EAST);
    for message in world.messages.remove(&(EAST, WEST)).expect("a Done") {
        world.session(WEST).handle_message(EAST, message, now).expect("a Done");
    }
    world.collect(WEST);
    assert_eq!(committed(&world, 2), [4]);
    world.messages.clear();
    world.lose_connection(EAST, WEST);
    for _ in 0..3 {
        world.step();
    }
    world.session(EAST).handle_commit(RankId(0), commit, now);
    world.collect(EAST);
    assert!(committed(&world, 0).is_empty() && commit_failures(&world, 0).is_empty());
    world.run();
    assert_eq!(committed(&world, 0), [4]);
    world.session(EAST).handle_commit(RankId(1), commit, now);
    world.collect(EAST);
    assert_eq!((committed(&world, 1), notified_committed(&world, 1)), (vec![4], Some(4)));
    // Nobody has prepared the next one everywhere.
    world.session(EAST).handle_commit(RankId(1), commit, now);
    world.collect(EAST);
    assert_eq!(commit_failures(&world, 1).len(), 1);
}

#[test]
fn a_failed_commit_names_the_collectives_of_each_region() {
    let mut world = pair(1);
    for sequence in 0..3 {
        for rank in 0..2 {
            world.post(RankId(rank), sequence, 40);
        }
    }
    for sequence in 0..2 {
        world.post(RankId(2), sequence, 40);
    }
    world.run();
    // West's rank commits two of the three, so that east hears that they are complete there.
    world.commit(RankId(2), 7, 0..2);
    world.commit(RankId(0), 8, 0..3);
    world.run();
    assert_eq!(committed(&world, 2), [7]);
    world.lose_connection(EAST, WEST);
    world.run();
    let failures = commit_failures(&world, 0);
    assert_eq!(failures.len(), 1);
    let Failure { code, text } = &failures[0];
    assert_eq!(*code, FailureCode::RegionLost);
    let parts = [
        "step 8 is not known to be complete",
        "collectives 0 to 2",
        "at least those below 2: region r0, region r1",
        "gateway g1 cannot be reached",
    ];
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!((notified_committed(&world, 0), notified_committed(&world, 2)), (Some(7), Some(7)));
}

#[test]
fn a_commit_of_a_failed_collective_fails_alone() {
    let mut world = pair(2);
    for rank in 0..RANKS {
        world.post(RankId(rank), 0, 10 + u64::from(rank));
        world.post(RankId(rank), 1, 10);
    }
    world.run();
    for rank in 0..RANKS {
        world.commit(RankId(rank), 1, 0..0);
    }
    world.run();
    for rank in 0..RANKS {
        assert_eq!(commit_failures(&world, rank)[0].code, FailureCode::Disagreement);
        world.post(RankId(rank), 2, 10);
    }
    world.run();
    for rank in 0..RANKS {
        world.commit(RankId(rank), 1, 2..3);
    }
    world.run();
    for rank in 0..RANKS {
        assert_eq!(committed(&world, rank), [1]);
    }
}

/// The ranks begin the step again. The boundary lies behind its second end.
#[test]
fn a_refused_commit_decides_no_boundary() {
    let mut world = pair(3);
    let post = |world: &mut World, sequence, elements: fn(u32) -> u64| {
        for rank in 0..RANKS {
            world.post(RankId(rank), sequence, elements(rank));
        }
        world.run();
    };
    let commit = |world: &mut World, step, range: std::ops::Range<u64>| {
        for rank in 0..RANKS {
            world.commit(RankId(rank), step, range.clone());
        }
        world.run();
    };
    post(&mut world, 0, |_| 10);
    commit(&mut world, 1, 0..1);
    post(&mut world, 1, |rank| 10 + u64::from(rank));
    let (failure, now) = (Failure::new(FailureCode::MembershipChanged, "west leaves"), world.now);
    world.session(EAST).handle_boundary_request(failure, now);
    world.collect(EAST);
    commit(&mut world, 2, 0..0);
    post(&mut world, 2, |_| 10);
    commit(&mut world, 2, 2..3);
    for rank in 0..RANKS {
        assert_eq!(commit_failures(&world, rank).len(), 1);
        assert_eq!(committed(&world, rank), [1, 2]);
    }
    assert!(world.session(EAST).is_at_boundary());
}

#[test]
fn an_unanswered_commit_ends_with_its_timeout() {
    let mut world = pair(3);
    for rank in 0..2 {
        world.post(RankId(rank), 0, 10);
    }
    world.commit(RankId(0), 5, 0..1);
    world.run();
    let status = world.session(EAST).status();
    assert_eq!(status.commits.len(), 1);
    assert_eq!(status.commits[0].awaited_gateways, [EAST, WEST]);
    let at = world.session(EAST).poll_timeout().expect("a deadline");
    world.session(EAST).handle_timeout(at);
    world.run();
    let failures = commit_failures(&world, 0);
    assert_eq!(failures[0].code, FailureCode::TimedOut, "{}", failures[0]);
}

/// A lane is lost with every message about a commit on it: all of them are repeated.
#[test]
fn commit_reports_lost_with_their_lane_are_repeated() {
    let mut world = pair(4);
    for rank in 0..RANKS {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    for rank in 0..RANKS {
        world.commit(RankId(rank), 1, 0..1);
    }
    world.messages.clear();
    for (one, other) in [(EAST, WEST), (WEST, EAST)] {
        world.session(one).handle_connection_lane_lost(other);
    }
    world.run();
    for rank in 0..RANKS {
        assert_eq!(committed(&world, rank), [1]);
    }
}

/// Results that a peer tells again are of no step for it, so they confirm none.
#[test]
fn results_told_again_confirm_no_step_that_nobody_named() {
    let mut world = pair(4);
    for rank in 0..RANKS {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    world.session(EAST).handle_connection_lane_lost(WEST);
    world.collect(EAST);
    world.run();
    world.commit(RankId(2), 1, 0..1);
    world.messages.clear();
    assert!(committed(&world, 2).is_empty(), "east has not heard of the step");
    world.session(WEST).handle_connection_lane_lost(EAST);
    world.run();
    assert_eq!(committed(&world, 2), [1]);
}

/// Only one rank of one region commits; the others are asked.
#[test]
fn a_commit_needs_no_other_rank_to_commit() {
    let mut world = pair(5);
    world.post(RankId(0), 0, 10);
    world.post(RankId(2), 0, 10);
    world.commit(RankId(2), 1, 0..1);
    world.run();
    assert!(committed(&world, 2).is_empty());
    world.post(RankId(1), 0, 10);
    world.run();
    assert_eq!(committed(&world, 2), [1]);
}

#[test]
fn a_commit_fails_at_once_when_its_collective_fails() {
    let mut world = pair(9);
    world.post(RankId(0), 0, 10);
    world.commit(RankId(0), 1, 0..0);
    world.run();
    assert!(commit_failures(&world, 0).is_empty());
    world.post(RankId(2), 0, 11);
    world.run();
    let failures = commit_failures(&world, 0);
    assert_eq!(failures[0].code, FailureCode::Disagreement, "{}", failures[0]);
}

/// The first of two commits that end with one collective is confirmed, or waits. Ranks of one gateway
/// and of two are told by one text.
#[test]
fn commits_of_different_steps_end_the_epoch() {
    for (other, waits) in [(1, false), (1, true), (2, false)] {
        let mut world = pair(7);
        for rank in 0..RANKS {
            // Rank 3 posts late, so that the first commit waits.
            if !waits || rank < RANKS - 1 {
                world.post(RankId(rank), 0, 10);
            }
        }
        world.run();
        world.commit(RankId(0), 5, 0..1);
        world.run();
        assert_eq!(committed(&world, 0).len(), usize::from(!waits));
        world.commit(RankId(other), 6, 0..1);
        world.run();
        let text = format!(
            "the step that ends with collective 0: rank 0 (r0) commits step 5, rank {other} \
             (r{}) commits step 6;",
            other / 2
        );
        let mut failures = commit_failures(&world, other);
        failures.extend(commit_failures(&world, 0));
        assert_eq!(failures.len(), 1 + usize::from(waits), "rank {other}, {waits}");
        for failure in failures {
            assert_eq!(failure.code, FailureCode::Disagreement);
            assert!(failure.text.contains(&text), "{text:?} is not in {:?}", failure.text);
        }
        for rank in 0..RANKS {
            assert_eq!(world.epoch_of(RankId(rank)).0, Epoch(2), "rank {rank}");
        }
    }
}

/// Ranks may commit after other collectives, or a step without collectives.
#[test]
fn commits_after_other_collectives_are_not_compared() {
    let mut world = pair(8);
    for sequence in 0..2 {
        for rank in 0..RANKS {
            world.post(RankId(rank), sequence, 10);
        }
        world.commit(RankId(0), 3 + sequence, sequence..sequence + 1);
    }
    world.commit(RankId(0), 9, 2..2);
    world.commit(RankId(2), 4, 0..2);
    world.run();
    assert_eq!(committed(&world, 0), [3, 4, 9]);
    assert_eq!(committed(&world, 2), [4]);
    world.assert_clean();
}

/// Commits that time out leave questions behind at the other region. Too many of them end the epoch
/// and no connection.
#[test]
fn too_many_commit_questions_end_the_epoch_alone() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 6, 1000);
    let (epoch, Sequence(first)) = world.epoch_of(RankId(0));
    let (asker, now) = (GatewayId(0), world.now);
    let session = world.session(GatewayId(1));
    let ranges = (0..64).flat_map(|from| (from + 1..=64).map(move |below| (from, below)));
    let refused = ranges.into_iter().find_map(|(from, below)| {
        let (from, below) = (Sequence(first + from), Sequence(first + below));
        let ask = Message::Ask { epoch, from, below, rank: RankId(0), step: Step(below.0) };
        session.handle_message(asker, ask, now).err()
    });
    let error = refused.expect("2080 questions");
    assert!(
        matches!(error, PeerError::TooManyAsks { .. }) && error.is_caused_by_ranks(),
        "{error}"
    );
    session.handle_overreach(asker, &error, now);
    world.run();
    for rank in 0..2 {
        let (next, sequence) = world.epoch_of(RankId(rank));
        assert_eq!(next, Epoch(epoch.0 + 1));
        world.post(RankId(rank), sequence.0, 10);
    }
    world.run();
    assert_eq!(world.count(1, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
}

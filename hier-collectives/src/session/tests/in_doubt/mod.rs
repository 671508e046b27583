//! Commits in doubt, which an epoch of another term answers.

use super::steps::*;
use super::world::*;
use crate::ids::*;
use crate::post::*;
use crate::session::in_doubt::InDoubtCommits;
use crate::session::in_doubt::in_doubt_commits::RankInDoubt;
use crate::session::*;
use units::Span;

/// Ends a gateway's part in a term; returns how far it has come, with its commits in doubt.
fn leave_term(world: &mut World, id: GatewayId) -> (SessionProgress, InDoubtCommits) {
    let (failure, now) = (Failure::new(FailureCode::RegionLost, "a region is lost"), world.now);
    let session = world.session(id);
    session.handle_suspend(failure, now);
    let came = (session.progress(), session.take_commits_in_doubt());
    world.collect(id);
    came
}

/// Lets two gateways go on in a term that have come so far in others.
fn enter_term(term: u64, came: [(SessionProgress, InDoubtCommits); 2]) -> World {
    let mut world = pair_in_doubt(12);
    let (graph, now) = (world.graph(), world.now);
    for (id, (progress, in_doubt)) in [EAST, WEST].into_iter().zip(came) {
        leave_term(&mut world, id);
        world.session(id).handle_resume(term, progress, in_doubt, &graph, now);
        world.collect(id);
    }
    world.run();
    world
}

/// In term 3 two gateways do step 4 in epoch 2, and east alone hears that it is complete. Returns how far
/// west has come.
fn prepare_step_in_term_3() -> (SessionProgress, InDoubtCommits) {
    let mut world = pair_in_doubt(11);
    let came = [EAST, WEST].map(|id| leave_term(&mut world, id));
    let (graph, now) = (world.graph(), world.now);
    for (id, (progress, in_doubt)) in [EAST, WEST].into_iter().zip(came) {
        world.session(id).handle_resume(3, progress, in_doubt, &graph, now);
        world.collect(id);
    }
    world.run();
    assert_eq!(world.epoch_of(RankId(2)), (Epoch(2), Sequence(0)));
    post_and_run_all(&mut world, 10);
    world.commit(RankId(0), 4, 0..1);
    while committed(&world, 0).is_empty() {
        assert!(world.step(), "west says that it has the result");
    }
    let came = leave_term(&mut world, WEST);
    let epoch = EpochId { term: 3, number: Epoch(2) };
    assert_eq!(came.0.prepared, PreparedSteps { epoch, steps: vec![(Sequence(1), Step(4))] });
    came
}

/// East began epoch 2 of term 2 just as its links broke. The others went on without it in term 3, whose
/// first epoch has the same number.
#[test]
fn epochs_of_one_number_in_two_terms_are_told_apart() {
    let alone = EpochId { term: 2, number: Epoch(2) };
    let progress = SessionProgress {
        epoch: alone.number,
        next: Sequence(1),
        prepared: PreparedSteps { epoch: alone, steps: vec![] },
        ..SessionProgress::default()
    };
    let mut in_doubt = InDoubtCommits::of_epoch(alone);
    let uncommitted = Some(Sequence(1));
    in_doubt.add_rank(RankId(0), RankInDoubt { uncommitted, ..RankInDoubt::default() }, None);
    let mut world = enter_term(4, [(progress, in_doubt), prepare_step_in_term_3()]);
    for rank in 0..RANKS {
        assert_eq!(notified_committed(&world, rank), Some(4), "rank {rank}");
    }
    let commit = Commit { epoch: Epoch(2), step: Step(4), timeout: Span::from_secs(60) };
    for (rank, gateway) in [(0, EAST), (2, WEST)] {
        let now = world.now;
        world.session(gateway).handle_commit(RankId(rank), commit, now);
        world.collect(gateway);
    }
    assert_eq!(committed(&world, 2), [4], "of term 3");
    assert_eq!((committed(&world, 0), commit_failures(&world, 0).len()), (vec![], 1), "of term 2");
}

/// Ranks 0 and 1 have the results of a step that rank 2 has named, and commit it as another one once its
/// epoch is over. Where nobody has named it, the first of them does.
#[test]
fn a_late_commit_of_another_step_is_a_disagreement() {
    for is_named in [true, false] {
        let mut world = pair_in_doubt(13);
        post_and_run_all(&mut world, 10);
        if is_named {
            world.commit(RankId(2), 4, 0..1);
            world.run();
        }
        world.lose_connection(EAST, WEST);
        world.run();
        for (rank, step) in [(0, 5), (1, 4), (0, 4)] {
            let commit = Commit { epoch: Epoch(1), step: Step(step), timeout: Span::from_secs(60) };
            let now = world.now;
            world.session(EAST).handle_commit(RankId(rank), commit, now);
            world.collect(EAST);
        }
        let other = u32::from(!is_named);
        let failure = &commit_failures(&world, other)[0];
        assert_eq!(failure.code, FailureCode::Disagreement, "{failure}");
        let parts = match is_named {
            true => ["rank 2 (r1) commits step 4", "rank 0 (r0) commits step 5"],
            false => ["rank 0 (r0) commits step 5", "rank 1 (r0) commits step 4"],
        };
        for part in parts {
            assert!(failure.text.contains(part), "{part:?} is not in {failure}");
        }
        // Rank 0 has committed these results before, so that they make no further step.
        let failures = commit_failures(&world, 0);
        assert_eq!(failures.last().expect("one").code, FailureCode::EpochEnded);
        assert_eq!(committed(&world, 1), if is_named { vec![4] } else { vec![] });
    }
}

/// A drain began outside an epoch, so that no other one answers.
#[test]
fn a_late_commit_in_a_drain_fails_at_once() {
    let mut world = pair_in_doubt(14);
    post_and_run_all(&mut world, 10);
    world.drop_connection(EAST, WEST);
    world.run();
    let commit = |world: &mut World, rank| {
        let commit = Commit { epoch: Epoch(1), step: Step(4), timeout: Span::from_secs(60) };
        let now = world.now;
        world.session(EAST).handle_commit(RankId(rank), commit, now);
        world.collect(EAST);
        commit_failures(world, rank).len()
    };
    assert_eq!(commit(&mut world, 0), 0, "the next epoch answers");
    let now = world.now;
    world.session(EAST).handle_drain(Span::from_secs(10), now);
    world.collect(EAST);
    assert_eq!([commit_failures(&world, 0).len(), commit(&mut world, 1)], [1, 1]);
}

//! Links that change: when the first gateway plans anew, and when it does not.
use super::fabrics::*;
use super::world::*;
use crate::ids::*;
use crate::mesh::*;
use crate::plan::*;
use crate::post::*;
use crate::session::collective::live_collective::Phase;
use crate::session::*;
use crate::topology::*;
use crate::wire::*;
use std::collections::*;
use std::num::NonZeroU64;
use std::sync::Arc;
use units::*;

fn world(ranks: &[u32]) -> World {
    let plan = make_plan(&fabric(ranks)).expect("a plan");
    World::new(ranks, Plan { segment: ByteCount::new(128), ..plan }, 7, 1000)
}

fn state(kbits: u64) -> LinkState {
    let rate = BitRate::from_bits_per_second(kbits * 1000);
    LinkState { rate, rtt: Span::from_ms(2), loss: Fraction::default() }
}

/// Gateway `at` measures its link to a region with this rate and loss.
fn find(world: &mut World, at: u16, to: u16, state: LinkState) {
    world.session(GatewayId(at)).handle_link(RegionId(to), state);
    world.collect(GatewayId(at));
    world.run();
}

/// Runs one collective; returns how many plans are in force after it, and the first one's hash.
fn collective(world: &mut World, sequence: u64) -> (usize, u64) {
    for rank in 0..world.fabric.world_size() {
        world.post(RankId(rank), sequence, 20);
    }
    world.run();
    let hash = |session: &Session| session.plan().expect("an epoch").encoding_hash();
    let hashes: Vec<u64> = world.sessions.iter().map(hash).collect();
    let distinct: BTreeSet<u64> = hashes.iter().copied().collect();
    (distinct.len(), hashes[0])
}

/// Sessions know nothing of a witness, to which gateways measure a link as to any region.
#[test]
fn a_measured_link_to_a_witness_is_not_reported() {
    let mut world = world(&[1, 1, 1]);
    let before = collective(&mut world, 0);
    for at in 0..3 {
        find(&mut world, at, 3, state(300));
    }
    assert_eq!(collective(&mut world, 1), before);
}

#[test]
fn a_link_that_stays_changed_is_planned_for_once() {
    let mut world = world(&[1, 1, 1]);
    let before = collective(&mut world, 0).1;
    // The first gateway is at neither end.
    find(&mut world, 2, 1, state(300));
    let plans: Vec<(usize, u64)> = (1..12).map(|at| collective(&mut world, at)).collect();
    assert!(plans.iter().all(|(distinct, _)| *distinct == 1), "{plans:x?}");
    assert_eq!([plans[0].1, plans[1].1], [before; 2], "not in a hurry");
    assert_ne!(plans[3].1, before);
    assert!(plans[3..].iter().all(|(_, hash)| *hash == plans[3].1), "{plans:x?}");
    let reason = &world.session(GatewayId(1)).plan().expect("an epoch").reason;
    assert!(reason.contains("link r1-r2 now carries 300 kbit/s at 2 ms"), "{reason}");
    // A plan is also made when the link is as before again.
    find(&mut world, 2, 1, state(1000));
    let after: Vec<usize> = (12..16).map(|at| collective(&mut world, at).0).collect();
    assert_eq!(after, [1; 4]);
    assert!(!world.session(GatewayId(0)).plan().expect("an epoch").reason.contains("300"));
    world.assert_clean();
}

#[test]
fn fluctuating_links_change_no_plan() {
    let mut world = world(&[1, 1, 1]);
    let before = collective(&mut world, 0);
    for at in 1..30 {
        let kbits = [1000, 880, 600, 900, 400, 870][at as usize % 6];
        find(&mut world, 2, 1, state(kbits));
        assert_eq!(collective(&mut world, at), before);
    }
}

#[test]
fn a_plan_that_gains_nothing_is_not_taken_up() {
    let mut world = world(&[1, 1]);
    let before = collective(&mut world, 0);
    find(&mut world, 1, 0, state(300));
    assert!((1..10).all(|at| collective(&mut world, at) == before));
}

#[test]
fn members_of_a_new_epoch_report_their_links_again() {
    let mut world = world(&[1, 1, 1]);
    find(&mut world, 2, 1, state(300));
    world.lose_connection(GatewayId(0), GatewayId(1));
    world.run();
    let next = world.epoch_of(RankId(0)).1.0;
    let plans: Vec<u64> = (next..next + 5).map(|at| collective(&mut world, at).1).collect();
    assert_ne!(plans[0], plans[4], "{plans:x?}");
}

#[test]
fn a_report_of_an_unknown_link_is_refused() {
    let mut world = world(&[1, 1, 1]);
    let epoch = world.epoch_of(RankId(0)).0;
    let now = world.now;
    for (at, to) in [(0, 9), (0, 2), (1, 1)] {
        let message = Message::Link { epoch, to: RegionId(to), state: state(300) };
        let result = world.session(GatewayId(at)).handle_message(GatewayId(2), message, now);
        assert!(matches!(result, Err(PeerError::NotYours(_))), "{at} {to}: {result:?}");
    }
}

#[test]
fn a_plan_change_lost_with_its_lane_is_repeated() {
    let mut world = world(&[1, 1]);
    let (first, other) = (GatewayId(0), GatewayId(1));
    collective(&mut world, 0);
    let plans = [vec![tree(1, &[1], &[(0, 1)])], vec![tree(1, &[0], &[(1, 0)])]];
    let plans = plans.map(plan_of);
    let change = |world: &mut World, plan: &Plan| {
        let now = world.now;
        world.session(first).handle_plan(plan.clone(), now);
        world.collect(first);
    };
    change(&mut world, &plans[0]);
    // Until the first gateway knows that the other one waits: then the plan is under way.
    while world.session(first).plan().expect("an epoch").trees != plans[0].trees {
        assert!(world.step());
    }
    world.post(RankId(1), 1, 20);
    change(&mut world, &plans[1]);
    world.messages.get_mut(&(first, other)).expect("spoken to").clear();
    for (me, peer) in [(first, other), (other, first)] {
        world.session(me).handle_connection_lane_lost(peer);
        world.collect(me);
    }
    world.run();
    world.post(RankId(0), 1, 20);
    world.run();
    assert_eq!(collective(&mut world, 2).0, 1, "they follow two plans");
    assert_eq!(world.session(other).plan().expect("an epoch").trees, plans[1].trees);
    world.assert_clean();
}

/// However often the plan changes meanwhile, a collective ends under the plan that it began with.
#[test]
fn a_long_collective_outlives_many_plans() {
    let (east, west) = (tree(1, &[1], &[(0, 1)]), tree(1, &[0], &[(1, 0)]));
    let mut world = World::new(&[1, 1], plan_of(vec![east.clone(), west.clone()]), 7, 1000);
    let plans = [vec![east], vec![west]].map(plan_of);
    for rank in 0..2 {
        world.post(RankId(rank), 0, 2000);
    }
    hear_all(&mut world);
    for (sequence, plan) in (1..25).zip(plans.iter().cycle()) {
        let now = world.now;
        world.session(GatewayId(0)).handle_plan(plan.clone(), now);
        world.collect(GatewayId(0));
        hear_all(&mut world);
        assert!(world.sessions.iter().all(|s| s.plan().expect("an epoch").trees == plan.trees));
        // Half of the plans have a collective of their own.
        for rank in (0..2).filter(|_| sequence % 2 == 1) {
            world.post(RankId(rank), sequence / 2 + 1, 4);
        }
        hear_all(&mut world);
    }
    let phase = |session: &Session| session.collectives.get(Sequence(0)).map(|c| c.phase);
    assert!(world.sessions.iter().all(|session| phase(session) == Some(Phase::Running)));
    world.run();
    for rank in 0..2 {
        let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
        assert_eq!(ready, 13, "rank {rank}");
    }
    world.assert_clean();
}

/// Delivers all messages of sessions and no segment.
fn hear_all(world: &mut World) {
    let next = |world: &mut World| {
        let (pair, queue) = world.messages.iter_mut().find(|(_, queue)| !queue.is_empty())?;
        queue.pop_front().map(|message| (*pair, message))
    };
    while let Some(((from, to), message)) = next(world) {
        let now = world.now;
        world.session(to).handle_message(from, message, now).expect("fair");
        world.collect(to);
    }
}

/// One fabric file gives a link a thousand times the rate of the other file, with loss. Bytes sent
/// before the other end's post stay within the room that it keeps.
#[test]
fn a_sender_respects_the_smaller_unsolicited_window() {
    let (ranks, segment) = ([1, 1], 128);
    for fast in 0..2 {
        let plan = plan_of(vec![tree(1, &[0, 1], &[])]);
        let mut world = World::with_fabrics(one_fast_fabric(fast), plan, 7, 1 << 20);
        let (me, other) = (GatewayId(fast), GatewayId(1 - fast));
        world.post(RankId(fast.into()), 0, 40_000);
        world.run();
        let early: u64 = world.session(me).transfer.inspect_unsolicited_bytes_to(other);
        let kept = 4 * segment;
        assert!((segment..=kept).contains(&early), "{early} bytes early, {kept} are kept");
        world.post(RankId(u32::from(1 - fast)), 0, 40_000);
        world.run();
        for rank in 0..ranks.len() {
            let rank = u32::try_from(rank).expect("small");
            assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
        }
        world.assert_clean();
    }
}

/// Bytes with parity stay within the room of both ends, whichever file has the fast link.
#[test]
fn parity_uses_the_window_of_both_fabric_files() {
    let plan = Plan { segment: ByteCount::new(64 << 10), ..plan_of(vec![tree(1, &[0, 1], &[])]) };
    let tails = |fabrics: Vec<Arc<Fabric>>| {
        let world = World::with_fabrics(fabrics, plan.clone(), 7, 1 << 24);
        let room = |me: u16| {
            let (session, other) = (&world.sessions[usize::from(me)], GatewayId(1 - me));
            session.transfer.inspect_tail_windows(&session.epoch, other)
        };
        [room(0), room(1)]
    };
    let both_fast = tails(vec![one_fast_fabric(0)[0].clone(); 2]);
    assert!(
        both_fast[0].0 > 0 && both_fast.iter().all(|(kept, sent)| kept == sent),
        "{both_fast:?}"
    );
    for fast in 0..2 {
        let of = tails(one_fast_fabric(fast));
        assert_eq!(of[usize::from(fast)], (both_fast[0].0, 0), "the other keeps none");
        assert_eq!(of[usize::from(1 - fast)], (0, 0));
    }
}

/// Two fabric files, one of which has a fast link that loses packets.
fn one_fast_fabric(fast: u16) -> Vec<Arc<Fabric>> {
    let rate = BitRate::from_bits_per_second(1_000_000_000);
    let loss = Fraction::from_ppb(10_000_000).expect("below 1");
    let mut fabrics = vec![fabric(&[1, 1]); 2];
    fabrics[usize::from(fast)] = fabric_with(&[1, 1], rate, loss);
    fabrics
}

/// Returns the messages that a session wants to send.
fn take_messages(session: &mut Session) -> Vec<(GatewayId, Message)> {
    let actions = std::iter::from_fn(|| session.poll_action());
    let sent = actions.filter_map(|action| match action {
        Action::Message { to, message } => Some((to, message)),
        _ => None,
    });
    sent.collect()
}

/// The other gateway asked to enter while the first one did not serve the job yet.
#[test]
fn a_session_that_begins_late_meets_its_peers() {
    let (first, other, now) = (GatewayId(0), GatewayId(1), TimeNs::from_ns(1));
    let fabric = fabric(&[1, 1]);
    let session = |me: GatewayId| {
        Session::new(SessionConfig {
            leaves_doubt: false,
            fabric: Arc::clone(&fabric),
            me,
            gateways: fabric.gateway_ids().collect(),
            boot: BootId(u64::from(me.0) + 100),
            plan: make_plan(&fabric).expect("a plan"),
            partials: PartialsPool::new(ByteCount::new(1 << 20)),
            one_in: NonZeroU64::MIN,
            last_epoch: Epoch(0),
            unsolicited_max: ByteCount::new(u64::MAX),
        })
    };
    let (mut late, mut early) = (session(first), session(other));
    let graph = connections(&fabric, MeshConnectionState::Up);
    early.handle_start(now);
    early.handle_connections(&graph, "start", now);
    assert!(!take_messages(&mut early).is_empty(), "which nobody took");
    late.handle_start(now);
    late.handle_connections_before_start(&graph, now);
    for (_, message) in take_messages(&mut late) {
        early.handle_message(first, message, now).expect("fair");
    }
    for (_, message) in take_messages(&mut early) {
        late.handle_message(other, message, now).expect("fair");
    }
    assert!(late.plan().is_some(), "an epoch began");
}

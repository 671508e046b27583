//! Sends that gateways without ranks pass on, one of which a fault meets.

use super::*;
use crate::mesh::MeshConnectionState;
use crate::session::{Buffer, PeerError};

const END: u32 = 1;

/// Returns the bytes of scratch that a gateway holds.
fn held_bytes(world: &World, gateway: u16) -> usize {
    let memory = world.memory[usize::from(gateway)].iter();
    let scratch = memory.filter(|(buffer, _)| matches!(buffer, Buffer::Scratch(_)));
    8 * scratch.map(|(_, data)| data.len()).sum::<usize>()
}

/// Returns how many failures with this code a rank has heard of.
fn count_failures(world: &World, rank: u32, code: FailureCode) -> usize {
    failures_of(world, rank).iter().filter(|failure| failure.code == code).count()
}

#[test]
fn a_relay_holds_no_more_than_its_memory() {
    for (elements, most) in [(30, 2 * 128), (120, 2 * 128), (3000, 4 * 128)] {
        let mut world = two_ranks(3, 5);
        let sequence = send(0, 1, 0);
        [0, END].into_iter().for_each(|rank| post_end(&mut world, rank, sequence, elements));
        let mut held = 0;
        while world.step() {
            // Segments that came before both ends were known are bounded by the unsolicited window.
            held = held.max(held_bytes(&world, 1)).max(held_bytes(&world, 2));
        }
        assert!(held > 0 && held <= most + 4 * 128, "{elements} elements: {held} bytes");
        assert_eq!([0, END].map(|rank| count_ready(&world, rank)), [1, 1]);
        world.assert_clean();
    }
}

#[test]
fn a_relay_passes_nothing_on_before_the_receive() {
    let mut world = two_ranks(2, 8);
    post_end(&mut world, 0, send(0, 1, 0), 5000);
    world.run();
    // No more than the unsolicited window, of four segments.
    let held = held_bytes(&world, 1);
    assert!((1..=4 * 128).contains(&held), "{held} bytes");
    assert_eq!(held_bytes(&world, 2), 0);
    post_end(&mut world, END, send(0, 1, 0), 5000);
    world.run();
    assert_eq!([0, END].map(|rank| count_ready(&world, rank)), [1, 1]);
    world.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Sends both ways that gateways learn of in different orders wait for no memory that waits for them.
    #[test]
    fn sends_over_several_relays_all_end(
        seed: u64,
        links in 3u16..5,
        partials in 0u64..600,
        unsolicited in 0u64..600,
        sends in prop::collection::vec((0u32..2, 0u16..4, 100u64..600), 2..9),
    ) {
        let mut world = relayed_ranks(links, seed, MemoryLimits { partials, unsolicited });
        let mut places = [[0; 4]; 2];
        let mut posts = Vec::new();
        for (from, tag, elements) in &sends {
            let place = &mut places[*from as usize][usize::from(*tag)];
            posts.push((send(*from, *tag, *place), *elements, *tag));
            *place += 1;
        }
        // The ranks post by tag in opposite orders.
        let mut others = posts.clone();
        others.sort_by_key(|(_, _, tag)| std::cmp::Reverse(*tag));
        posts.sort_by_key(|(_, _, tag)| *tag);
        for (here, there) in posts.into_iter().zip(others) {
            post_end(&mut world, 0, here.0, here.1);
            post_end(&mut world, END, there.0, there.1);
            for _ in 0..world.dice.roll(6) {
                world.step();
            }
        }
        world.run();
        let ready = [0, END].map(|rank| count_ready(&world, rank));
        prop_assert_eq!(ready, [sends.len(); 2], "{:?}", failures_of(&world, 0));
        world.assert_clean();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The sender is done only once its receiver is, whatever receipts a gateway between them has.
    #[test]
    fn a_relayed_send_ends_once_its_receiver_has_it(seed: u64, links in 2u16..4, elements in 0u64..500) {
        let mut world = two_ranks(links, seed);
        let sequence = send(0, 1, 0);
        [0, END].into_iter().for_each(|rank| post_end(&mut world, rank, sequence, elements));
        while world.step() {
            prop_assert!(count_ready(&world, 0) <= count_ready(&world, END));
        }
        prop_assert_eq!(count_ready(&world, 0), 1);
        world.assert_clean();
    }

    /// A lane of control messages that is lost anywhere on the way costs nothing, and nothing is left.
    #[test]
    fn a_lost_lane_on_the_way_costs_no_send(seed: u64, links in 2u16..4, steps in 0usize..60, elements in 0u64..500) {
        let mut world = two_ranks(links, seed);
        for place in 0..3 {
            for rank in [0, END] {
                post_end(&mut world, rank, send(0, 1, place), elements);
                post_end(&mut world, rank, send(1, 2, place), elements);
            }
            for _ in 0..steps {
                world.step();
            }
            let at = world.dice.roll(usize::from(links)) as u16;
            world.lose_lane(GatewayId(at), GatewayId(at + 1));
        }
        world.run();
        for rank in [0, END] {
            prop_assert_eq!(count_ready(&world, rank), 6, "{:?}", failures_of(&world, rank));
        }
        world.assert_clean();
    }

    /// A connection that is lost on the way ends what is under way at both ends, and the next sends
    /// pass.
    #[test]
    fn a_connection_lost_on_the_way_fails_at_both_ends(seed: u64, links in 2u16..4, steps in 0usize..60) {
        let mut world = two_ranks(links, seed);
        [0, END].into_iter().for_each(|rank| post_end(&mut world, rank, send(0, 1, 0), 300));
        for _ in 0..steps {
            world.step();
        }
        let is_over = [0, END].iter().all(|rank| count_ready(&world, *rank) == 1);
        let at = world.dice.roll(usize::from(links)) as u16;
        world.drop_connection(GatewayId(at), GatewayId(at + 1));
        world.run();
        for rank in [0, END] {
            let told = count_ready(&world, rank) + count_failures(&world, rank, FailureCode::RegionLost);
            prop_assert!(told >= 1, "{:?}", failures_of(&world, rank));
            prop_assert!(is_over || count_failures(&world, rank, FailureCode::RegionLost) >= 1);
        }
        world.set_connection(GatewayId(at), GatewayId(at + 1), MeshConnectionState::Up);
        world.run();
        let (_, next) = world.epoch_of(RankId(0));
        let ready = [0, END].map(|rank| count_ready(&world, rank));
        [0, END].into_iter().for_each(|rank| post_end(&mut world, rank, send(1, 7, next.0), 90));
        world.run();
        prop_assert_eq!(
            [0, END].map(|rank| count_ready(&world, rank)),
            ready.map(|count| count + 1),
            "{:?}",
            [0, END].map(|rank| failures_of(&world, rank))
        );
        world.assert_clean();
    }

    /// Of a gateway on the way that shuts down, each send ends alike at both ends, or fails at one that
    /// hears of the shutdown first; a send that the other rank has not posted fails.
    #[test]
    fn a_relay_that_drains_leaves_no_send_waiting(seed: u64, steps in 0usize..60) {
        let mut world = two_ranks(2, seed);
        let (met, alone) = (send(0, 9, 0), send(0, 2, 0));
        [0, END].into_iter().for_each(|rank| post_end(&mut world, rank, met, 300));
        post_end(&mut world, 0, alone, 300);
        for _ in 0..steps {
            world.step();
        }
        let now = world.now;
        world.session(GatewayId(1)).handle_drain(Span::from_secs(30), now);
        world.collect(GatewayId(1));
        world.run();
        let drained = world.session(GatewayId(1));
        if drained.poll_timeout().is_some_and(|at| at <= now) {
            drained.handle_timeout(now);
            world.run();
        }
        prop_assert!(world.session(GatewayId(1)).is_drained());
        for rank in [0, END] {
            let failed = count_failures(&world, rank, FailureCode::ShuttingDown);
            prop_assert!(count_ready(&world, rank) + failed >= 1, "{:?}", failures_of(&world, rank));
        }
        prop_assert!(count_failures(&world, 0, FailureCode::ShuttingDown) >= 1);
    }
}

#[test]
fn a_gateway_without_ranks_passes_on_sends_alone() {
    for (pattern, sequence, elements, words) in [
        (Pattern::AllReduce, Sequence(0), 40, "takes sends alone, and this is all-reduce"),
        (Pattern::Send { from: RankId(0) }, send(0, 3, 0), 1 << 25, "sends of at most 128 MiB"),
    ] {
        let mut world = two_ranks(2, 4);
        for rank in [0, END] {
            let (epoch, _) = world.epoch_of(RankId(rank));
            // The slots of so long a send are not made: only the announcement counts.
            let announced = descriptor(pattern, elements);
            let from = GatewayId(if rank == 0 { 0 } else { 2 });
            let message = crate::wire::Message::Announce {
                epoch,
                sequence,
                rank: RankId(rank),
                descriptor: announced,
                all: true,
                sent: None,
            };
            let now = world.now;
            let handled = world.session(GatewayId(1)).handle_message(from, message, now);
            assert_eq!(handled, Ok(()));
            world.collect(GatewayId(1));
        }
        let proposed = world.messages.values().flatten().find_map(|message| match message {
            crate::wire::Message::Fail { failure, .. } => Some(failure.clone()),
            _ => None,
        });
        let failure = proposed.expect("it is refused");
        assert_eq!(failure.code, FailureCode::BadPost);
        assert!(failure.text.contains(words), "{failure}");
        assert!(failure.text.contains("gateway g1, which passes it on"), "{failure}");
    }
}

#[test]
fn late_messages_of_a_relayed_send_make_nothing_new() {
    let mut world = two_ranks(2, 4);
    let sequence = send(0, 3, 0);
    [0, END].into_iter().for_each(|rank| post_end(&mut world, rank, sequence, 9));
    world.run();
    let (epoch, _) = world.epoch_of(RankId(0));
    let (rank, now) = (RankId(0), world.now);
    let descriptor = descriptor(Pattern::Send { from: rank }, 9);
    let all = true;
    let late =
        crate::wire::Message::Announce { epoch, sequence, rank, descriptor, all, sent: None };
    let handled: Result<(), PeerError> =
        world.session(GatewayId(1)).handle_message(GatewayId(0), late, now);
    assert_eq!(handled, Ok(()));
    assert!(world.session(GatewayId(1)).is_idle());
    world.collect(GatewayId(1));
    // Its receipt may have been lost.
    let to_sender = &world.messages[&(GatewayId(1), GatewayId(0))];
    assert!(matches!(to_sender.back(), Some(crate::wire::Message::Receipt { .. })));
    world.run();
    world.assert_clean();
}

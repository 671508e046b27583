//! Lanes that close or become slow in the middle of a collective, and the bytes in flight.

use crate::trace::Trace;
use gateway::client::{Client, Operation};
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan;
use scenarios::collectives::batch::{Case, Values, outcomes, post_all};
use scenarios::{EAST, Lab, Shape, WEST, carrier_address, ppm, simulate};
use std::net::SocketAddr;
use units::{BitRate, ByteCount, Span};
use wan_sim::{EPHEMERAL_PORT_FIRST, LinkSpec};

fn case(mebibytes: u64) -> Case {
    let values = Values::Ordinary;
    Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, mebibytes << 18, 11) }
}

async fn posted(lab: &Lab, case: &Case) -> (Vec<Client>, Vec<Operation>, units::TimeNs) {
    let clients = lab.clients(3 * 4 * case.elements).await;
    lab.sleep(Span::from_secs(1)).await;
    let begun = lab.host.now();
    let operations = post_all(&clients, case).await;
    (clients, operations, begun)
}

/// Seconds until all have the right sum.
async fn seconds(
    lab: &Lab,
    case: &Case,
    operations: &mut [Operation],
    begun: units::TimeNs,
) -> f64 {
    let expected = case.expected(2, 1);
    let outcomes = outcomes(operations).await;
    let took = lab.host.now().since(begun).as_secs_f64();
    for outcome in outcomes {
        assert!(outcome.expect("completes") == expected, "other bits");
    }
    took
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_killed_lane_costs_only_the_bytes_it_had_sent() {
    let shape = Shape { lanes: 4, ..Shape::new(1, 1) };
    for at in [EAST, WEST] {
        let trace = Trace::default();
        let _listening = trace.listen();
        simulate(async {
            let lab = Lab::start(&shape, 1).await;
            let case = case(128);
            let (_clients, mut operations, begun) = posted(&lab, &case).await;
            lab.sleep(Span::from_ms(400)).await;
            let other = GatewayId(1 - at.0);
            lab.gateways[usize::from(at.0)].close_lane(other, 2).await;
            let took = seconds(&lab, &case, &mut operations, begun).await;
            let predicted =
                bound::all_reduce_lower_bound(&lab.fabric, ByteCount::new(128 << 20)).as_secs_f64();
            assert!(took <= 1.4 * predicted, "{took} s, {predicted} s predicted");
            let (first, again) = lab.sent_and_resent_bytes();
            println!("{took:.3} s, {predicted:.3} s predicted, {again} bytes again");
            assert_eq!(first, 2 * (128 << 20), "each byte is sent once first");
            // What a lane may hold that is not receipted: its part of two BDP, and a segment.
            let link = &lab.fabric.links()[0];
            let held =
                2 * (link.bdp().get() / 2 + 2 * plan::segment_size_of_fabric(&lab.fabric).get());
            assert!(again > 0 && again <= held, "{again} bytes again, {held} at most");
            let plan = plan::make_plan(&lab.fabric).expect("a plan");
            let room = plan::unsolicited_window_size(&lab.fabric, EAST, WEST, &plan).get();
            assert_eq!(trace.check(room, u64::from(shape.mtu)).bytes_again, again);
        });
    }
}

/// Only missing packets show that the path is dead.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_lane_with_a_dead_path_closes_alone() {
    simulate(async {
        let lab = Lab::start(&Shape { carriers: 4, ..Shape::new(1, 1) }, 1).await;
        let case = case(256);
        let (_clients, mut operations, begun) = posted(&lab, &case).await;
        lab.sleep(Span::from_ms(500)).await;
        for (from, to) in [(EAST, WEST), (WEST, EAST)] {
            let (from, to) = (carrier_address(from, 1).ip(), carrier_address(to, 1).ip());
            lab.net.set_blackhole(from, to, true).expect("a link");
        }
        let took = seconds(&lab, &case, &mut operations, begun).await;
        let predicted =
            bound::all_reduce_lower_bound(&lab.fabric, ByteCount::new(256 << 20)).as_secs_f64();
        // A quarter of the rate is gone with the path.
        assert!(took <= 1.4 * (4.0 / 3.0) * predicted, "{took} s, {predicted} s with all paths");
        let status = lab.status(EAST).await;
        assert_eq!(status.peers[0].lanes_up, 3, "{status:?}");
    });
}

/// The peer continues with another controller. This includes a sender that waits for window space
/// of the previous controller, since the path carries half of a lane's share.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_lane_survives_a_new_address_in_mid_segment() {
    simulate(async {
        let lab = Lab::start(&Shape { carriers: 4, ..Shape::new(1, 1) }, 1).await;
        let elsewhere = SocketAddr::from(([10, 9, 0, 1], 7400));
        let west = carrier_address(WEST, 1);
        // The first socket of its address that dials.
        let east = SocketAddr::new(carrier_address(EAST, 1).ip(), EPHEMERAL_PORT_FIRST);
        let half = BitRate::from_bits_per_second(125_000_000);
        let link = LinkSpec::new(half, Span::from_ms(40)).expect("a link");
        lab.net.connect(elsewhere.ip(), west.ip(), link, link, 9);
        for (from, to) in [(east, west), (west, east)] {
            lab.net.set_spec(from.ip(), to.ip(), link).expect("a link");
        }
        let case = case(256);
        let (_clients, mut operations, begun) = posted(&lab, &case).await;
        lab.sleep(Span::from_ms(500)).await;
        lab.net.move_socket(east, elsewhere);
        let took = seconds(&lab, &case, &mut operations, begun).await;
        let predicted =
            bound::all_reduce_lower_bound(&lab.fabric, ByteCount::new(256 << 20)).as_secs_f64();
        let (_, again) = lab.sent_and_resent_bytes();
        println!("{took:.3} s, {predicted:.3} s predicted, {again} bytes again");
        let bytes = |from, to| lab.net.counters(from, to).expect("a link").ip_bytes;
        let there = bytes(elsewhere.ip(), west.ip());
        let back = bytes(west.ip(), elsewhere.ip());
        assert!(there.min(back) > 20 << 20, "{there} bytes from there and {back} to there");
        assert_eq!(again, 0, "a lane was lost");
        assert_eq!(lab.status(EAST).await.peers[0].lanes_up, 4);
        assert!(took <= 1.3 * predicted, "{took} s, {predicted} s predicted");
    });
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn one_lane_at_half_speed_does_not_halve_the_others() {
    let run = |slow: bool, seed: u64| {
        simulate(async {
            let shape = Shape { carriers: 4, ..Shape::with_long_packets(1, 1) };
            let lab = Lab::start(&shape, seed).await;
            if slow {
                for (from, to) in [(EAST, WEST), (WEST, EAST)] {
                    let (from, to) = (carrier_address(from, 2).ip(), carrier_address(to, 2).ip());
                    let half = BitRate::from_bits_per_second(125_000_000);
                    let spec = LinkSpec::new(half, Span::from_ms(40)).expect("a link");
                    lab.net.set_spec(from, to, spec).expect("a link");
                }
            }
            let case = case(256);
            let (_clients, mut operations, begun) = posted(&lab, &case).await;
            seconds(&lab, &case, &mut operations, begun).await
        })
    };
    let whole = run(false, 1);
    let mut slow: Vec<f64> = (1..=5).map(|seed| run(true, seed)).collect();
    slow.sort_by(f64::total_cmp);
    println!("{whole:.3} s with four equal lanes, {slow:.3?} s with one at half speed");
    assert!(whole < 2.5, "four equal carriers: {whole} s");
    // Seven eighths of the rate are left. The rest is what lanes lose until they have found what
    // they carry, and what stands in their queues at the end.
    let least = whole * 8.0 / 7.0;
    let fair = slow[2] <= 1.05 * least && slow[4] <= 1.1 * least;
    assert!(fair, "{slow:?} s, {whole} s with four equal lanes");
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn in_flight_never_exceeds_window_or_grants() {
    for (shape, again) in [
        (Shape { lanes: 4, ..Shape::new(1, 1) }, false),
        (Shape { lanes: 4, true_loss: Some(ppm(10_000)), ..Shape::new(2, 1) }, true),
    ] {
        let trace = Trace::default();
        let _listening = trace.listen();
        let fabric = shape.fabric();
        simulate(async {
            let lab = Lab::start(&shape, 1).await;
            let case = case(64);
            let clients = lab.clients(400 << 20).await;
            let mut operations = post_all(&clients, &case).await;
            operations.extend(post_all(&clients, &case).await);
            lab.sleep(Span::from_ms(500)).await;
            if again {
                lab.gateways[0].close_lane(WEST, 1).await;
            }
            for outcome in outcomes(&mut operations).await {
                outcome.expect("completes");
            }
        });
        let plan = plan::make_plan(&fabric).expect("a plan");
        let room = plan::unsolicited_window_size(&fabric, EAST, WEST, &plan).get();
        let checked = trace.check(room, u64::from(shape.mtu));
        println!("{checked:?}");
        assert!(checked.packets > 10_000 && checked.segments > 100, "{checked:?}");
        assert!(checked.early_bytes_max > room / 2, "{checked:?}: the room is used");
    }
}

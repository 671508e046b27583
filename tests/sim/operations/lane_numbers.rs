//! A link begins with one lane, adds lanes while they pay, and replaces a silent one.

use gateway::client::{Client, Operation};
use gateway::wan::link::lane_number::LaneNumberReason;
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, Values, outcomes, post_all, succeeds};
use scenarios::{EAST, Lab, Shape, WEST, mbit, simulate, simulated_dialling_address};
use units::{ByteCount, Span};

/// The lanes of one gateway by its status: in use, up, and why.
type Lanes = (u16, u16, String);

/// Returns the lanes of a gateway to the other.
async fn lanes(lab: &Lab, gateway: GatewayId) -> Lanes {
    let peer = lab.status(gateway).await.peers.remove(0);
    (peer.lanes, peer.lanes_up, peer.lanes_reason)
}

/// Adds what east's status shows to `seen`, every 100 ms without end.
async fn watch(lab: &Lab, seen: &mut Vec<Lanes>) {
    loop {
        lab.sleep(Span::from_ms(100)).await;
        seen.push(lanes(lab, EAST).await);
    }
}

/// Checks that both gateways use `number` lanes, that all are up, and that nothing is a problem.
async fn assert_lanes(lab: &Lab, number: u16) {
    for gateway in [EAST, WEST] {
        let (in_use, up, why) = lanes(lab, gateway).await;
        assert_eq!((in_use, up), (number, number), "{gateway}: {why}");
        let status = lab.status(gateway).await;
        assert!(status.problems.is_empty(), "{status:?}");
    }
}

/// Returns a sum of this many MiB.
fn case(mebibytes: u64) -> Case {
    let values = Values::Ordinary;
    Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, mebibytes << 18, 11) }
}

/// Attaches all ranks, and posts.
async fn posted(lab: &Lab, case: &Case) -> (Vec<Client>, Vec<Operation>) {
    let clients = lab.clients(3 * 4 * case.elements).await;
    lab.sleep(Span::from_secs(1)).await;
    let operations = post_all(&clients, case).await;
    (clients, operations)
}

/// Checks that all outcomes are the right sum.
async fn all_right(case: &Case, operations: &mut [Operation]) {
    let expected = case.expected(2, 1);
    for outcome in outcomes(operations).await {
        assert!(outcome.expect("completes") == expected, "other bits");
    }
}

#[test]
fn a_link_begins_with_the_fewest_lanes() {
    let shape = Shape::new(1, 1);
    for (shape, number, reason) in [
        (shape.clone(), 1, LaneNumberReason::Pinned),
        (Shape { lanes: 3, ..shape.clone() }, 3, LaneNumberReason::Pinned),
        (Shape { carriers: 2, ..shape }, 2, LaneNumberReason::Addresses),
    ] {
        simulate(async {
            let lab = Lab::start(&shape, 1).await;
            lab.sleep(Span::from_secs(2)).await;
            assert_lanes(&lab, number).await;
            assert_eq!(lanes(&lab, WEST).await.2, reason.text());
            let case = case(16);
            let (_clients, mut operations) = posted(&lab, &case).await;
            all_right(&case, &mut operations).await;
            lab.sleep(Span::from_secs(60)).await;
            assert_lanes(&lab, number).await;
        });
    }
}

/// The link is full, so that a lane more earns nothing, whatever the core does.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_full_core_tries_a_lane_that_costs_nothing() {
    simulate(async {
        let lab = Lab::start(&Shape { rate: mbit(200), ..Shape::new(1, 1) }, 1).await;
        let case = case(256);
        lab.set_thread_load(1.0);
        let (_clients, mut operations) = posted(&lab, &case).await;
        let mut seen: Vec<Lanes> = Vec::new();
        tokio::select! {
            biased;
            () = all_right(&case, &mut operations) => {}
            () = watch(&lab, &mut seen) => {}
        }
        assert_eq!((seen[0].0, seen[0].1), (1, 1), "{seen:?}");
        let two = seen.iter().position(|(in_use, up, _)| (*in_use, *up) == (2, 2));
        let two = two.unwrap_or_else(|| panic!("no second lane: {seen:?}"));
        let after = seen[two..].iter().find(|(in_use, up, _)| (*in_use, *up) == (1, 1));
        assert!(after.is_some(), "it stays until the end: {seen:?}");
        assert_eq!(lab.sent_and_resent_bytes(), (2 * (256 << 20), 0), "nothing is sent twice");
        lab.set_thread_load(0.0);
        lab.sleep(Span::from_secs(40)).await;
        assert_lanes(&lab, 1).await;
    });
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_dead_path_of_the_only_lane_is_replaced_soon() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 1).await;
        let case = case(256);
        let (clients, mut operations) = posted(&lab, &case).await;
        let begun = lab.host.now();
        lab.sleep(Span::from_ms(500)).await;
        let first = simulated_dialling_address(EAST, 0);
        lab.net.set_muted(first, true);
        all_right(&case, &mut operations).await;
        let took = lab.host.now().since(begun).as_secs_f64();
        let predicted =
            bound::all_reduce_lower_bound(&lab.fabric, ByteCount::new(256 << 20)).as_secs_f64();
        println!("{took:.3} s, {predicted:.3} s without the dead path");
        // Silence is known after a dead-path time, and who is silent after another.
        assert!(took <= 1.4 * predicted + 3.0, "{took} s, {predicted} s predicted");
        let silent = LaneNumberReason::SilentLane.text().to_owned();
        assert_eq!(lanes(&lab, EAST).await, (2, 1, silent));
        let (first_bytes, again) = lab.sent_and_resent_bytes();
        assert_eq!(first_bytes, 2 * (256 << 20), "each byte is sent once first");
        assert!(again > 0, "bytes that the lane held are retransmitted");
        lab.net.set_muted(first, false);
        lab.sleep(Span::from_secs(30)).await;
        assert_lanes(&lab, 1).await;
        succeeds(&clients, 1, &Case::new(ReduceOp::Sum, Dtype::F32, 1003, 1)).await;
        assert_eq!(
            lab.sent_and_resent_bytes().1,
            again,
            "nothing is sent twice when the lane is taken away"
        );
    });
}

//! Congestion controllers, chosen for each link, and rates by the time of day.

use gateway::wan::link::controller_policy::{ControllerPolicy, LinkPolicy};
use gateway::wan::link::rate_schedule::RateSchedule;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use scenarios::collectives::batch::{Case, Values, succeeds};
use scenarios::{Lab, Shape, mbit, ppm, simulate};
use units::Span;

/// Seconds for 16 MiB with a controller, under 0.1 % of random loss.
fn seconds(controller: ControllerPolicy, mtu: u16) -> f64 {
    let policy = LinkPolicy { controller, ..LinkPolicy::default() };
    let shape = Shape { policy, mtu, loss: ppm(1000), ..Shape::new(1, 1) };
    simulate(async {
        let lab = Lab::start(&shape, 3).await;
        let clients = lab.clients(40 << 20).await;
        lab.sleep(Span::from_secs(1)).await;
        let begin = lab.host.now();
        let values = Values::Ordinary;
        let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 4 << 20, 3) };
        succeeds(&clients, 1, &case).await;
        lab.host.now().since(begin).as_secs_f64()
    })
}

#[test]
fn only_own_controllers_are_unaffected_by_random_loss() {
    let times = ControllerPolicy::ALL.map(|kind| seconds(kind, 1500));
    let [dedicated, shared, cubic, newreno] = times;
    println!(
        "dedicated {dedicated:.3}, shared {shared:.3}, cubic {cubic:.3}, newreno {newreno:.3} s"
    );
    assert!(dedicated < 0.3, "dedicated {dedicated} s");
    // It begins with a hundredth of the rate, which it does not know.
    assert!(shared < 1.1, "shared {shared} s");
    let slow = 3.0 * dedicated;
    assert!(cubic > slow && newreno > slow, "cubic {cubic} s, newreno {newreno} s");
}

/// QUIC's own first window is less than one of these packets.
#[test]
fn quic_controllers_connect_with_packets_above_their_first_window() {
    for kind in [ControllerPolicy::Cubic, ControllerPolicy::NewReno] {
        let took = seconds(kind, 16_000);
        assert!(took < 20.0, "{kind:?}: {took} s");
    }
}

/// A simulation begins at midnight.
#[test]
fn a_schedule_holds_a_link_by_the_time_of_day() {
    let schedule = RateSchedule::new(vec![(0, mbit(1000)), (10, mbit(200)), (20, mbit(800))]);
    let policy = LinkPolicy { schedule, ..LinkPolicy::default() };
    simulate(async {
        let lab = Lab::start(&Shape { policy, ..Shape::new(1, 1) }, 1).await;
        let clients = lab.clients(40 << 20).await;
        let mut took = Vec::new();
        for second in [5, 12, 22] {
            while lab.host.unix_seconds() < second {
                lab.sleep(Span::from_ms(100)).await;
            }
            let begin = lab.host.now();
            let values = Values::Ordinary;
            let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 4 << 20, 3) };
            succeeds(&clients, 1, &case).await;
            took.push(lab.host.now().since(begin).as_secs_f64());
            let link = &lab.status(hier_collectives::ids::GatewayId(0)).await.links[0];
            assert_eq!(link.scheduled_bits_per_second, Some(link.effective_bits_per_second));
        }
        // 16 MiB take 0.141, 0.703 and 0.176 s, and 0.04 s one way.
        let bounds = [(0.17, 0.22), (0.72, 0.80), (0.21, 0.26)];
        for (took, (least, most)) in took.iter().zip(bounds) {
            assert!((least..most).contains(took), "{took} s, {least} to {most} expected");
        }
    });
}

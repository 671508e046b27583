//! Packets as large as the fabric says.

use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::batch::{Case, Values, outcomes, post_all};
use scenarios::{Lab, Shape, address, simulate};
use units::Span;

/// QUIC could take a burst of losses for a path that lets no large packets through.
#[test]
fn pinned_packets_stay_large_through_bursts_of_loss() {
    let values = Values::Ordinary;
    let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 32 << 20, 13) };
    simulate(async {
        let lab = Lab::start(&Shape { mtu: 9000, ..Shape::new(1, 1) }, 1).await;
        let clients = lab.clients(600 << 20).await;
        let mut operations = post_all(&clients, &case).await;
        operations.extend(post_all(&clients, &case).await);
        for _ in 0..4 {
            lab.sleep(Span::from_ms(100)).await;
            lab.cut(true);
            lab.sleep(Span::from_ms(20)).await;
            lab.cut(false);
        }
        lab.sleep(Span::from_ms(400)).await;
        let packets = || {
            let (east, west) = (address(GatewayId(0)).ip(), address(GatewayId(1)).ip());
            let counters = lab.net.counters(east, west).expect("a link");
            (counters.ip_bytes, counters.packets)
        };
        let before = packets();
        lab.sleep(Span::from_ms(200)).await;
        let after = packets();
        let mean = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
        // Some are acknowledgements.
        assert!(mean > 4000.0, "packets of {mean} bytes");
        for outcome in outcomes(&mut operations).await {
            outcome.expect("completes");
        }
    });
}

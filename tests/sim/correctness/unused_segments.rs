//! Segments that arrive unused are counted, by reason.

use gateway::client::DEFAULT_TIMEOUT;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use hier_collectives::session::Discard;
use scenarios::collectives::batch::{Case, Values, post_with, succeeds};
use scenarios::{EAST, Lab, Shape, WEST, simulate};
use units::Span;

fn case(mebibytes: u64) -> Case {
    let values = Values::Ordinary;
    Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, mebibytes << 18, 5) }
}

/// The drops of a gateway, as its metrics show them.
fn dropped(lab: &Lab, at: GatewayId) -> Vec<String> {
    let name = "landbridge_dropped_segments_total{";
    let text = lab.metrics(at).render();
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines.map(str::to_owned).collect()
}

/// Segments are in flight while their collective fails.
#[test]
fn segments_of_a_failed_collective_are_counted() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 2), 1).await;
        let clients = lab.clients(32 << 20).await;
        lab.sleep(Span::from_secs(1)).await;
        let case = case(4);
        let mut impatient = post_with(&clients[1], &case, 1.0, Span::from_secs(1)).await;
        lab.sleep(Span::from_ms(990)).await;
        let mut late = post_with(&clients[0], &case, 1.0, DEFAULT_TIMEOUT).await;
        for operation in [&mut impatient, &mut late] {
            let failure = operation.ready().await.expect_err("rank 2 has not posted");
            assert_eq!(failure.code, FailureCode::TimedOut, "{failure}");
        }
        lab.sleep(Span::from_secs(1)).await;
        let counted = lab.metrics(WEST).dropped_segments(Discard::Failed).get();
        assert!(counted > 0, "{:?}", dropped(&lab, WEST));
        assert_eq!(dropped(&lab, WEST), [format!("reason=\"failed_collective\"}} {counted}")]);
        assert_eq!(dropped(&lab, EAST), [""; 0]);
    });
}

/// A lane closes after segments have arrived over it, and before their sender has the receipts.
#[test]
fn segments_that_come_again_are_counted() {
    simulate(async {
        let lab = Lab::start(&Shape { lanes: 4, ..Shape::new(1, 1) }, 1).await;
        let clients = lab.clients(300 << 20).await;
        lab.sleep(Span::from_secs(1)).await;
        let run = async { succeeds(&clients, 1, &case(128)).await };
        let lose = async {
            lab.sleep(Span::from_ms(400)).await;
            lab.gateways[0].close_lane(WEST, 2).await;
        };
        tokio::join!(run, lose);
        let all = || [EAST, WEST].map(|at| lab.metrics(at));
        let counted = all().map(|metrics| metrics.dropped_segments(Discard::Duplicate).get());
        assert!(counted.iter().sum::<u64>() > 0, "{counted:?}");
        let segments =
            |metrics: &gateway::observe::metrics::MetricsRegistry| metrics.segments.get();
        let in_place: u64 = all().map(segments).iter().sum();
        let bytes = hier_collectives::plan::segment_size_of_fabric(&lab.fabric).get();
        assert_eq!(in_place, 2 * (128 << 20) / bytes, "each is put in place once");
    });
}

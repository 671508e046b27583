//! Stalls: what counts as one, and what their errors name.

use gateway::client::Client;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::FailureCode;
use scenarios::collectives::batch::{Case, outcomes, post_all};
use scenarios::{Lab, Shape, simulate};
use units::Span;

/// Bytes of each arena.
const ARENA: u64 = 32 << 20;

/// Posts an all-reduce of all ranks, lets `disturb` go on beside it, and expects its result.
async fn succeeds_despite(clients: &[Client], elements: u64, disturb: impl Future<Output = ()>) {
    let case = Case::new(ReduceOp::Sum, Dtype::F32, elements, 11);
    let mut operations = post_all(clients, &case).await;
    disturb.await;
    let expected = case.expected(4, 2);
    for outcome in outcomes(&mut operations).await {
        assert!(outcome.expect("a result") == expected, "other bits");
    }
}

/// A machine that is paused with all that is on it, or whose processors others have.
#[test]
fn time_in_which_no_gateway_runs_is_no_stall() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(ARENA).await;
        let epoch = clients[0].epoch();
        for elements in [1 << 20, 4096] {
            for after_ms in [0, 5, 20, 21, 25, 39, 41, 45, 60, 70] {
                let pause = async {
                    lab.sleep(Span::from_ms(after_ms)).await;
                    lab.stop_gateway_processes();
                    lab.sleep(Span::from_secs(12)).await;
                    lab.resume_gateway_processes();
                };
                succeeds_despite(&clients, elements, pause).await;
            }
        }
        assert!(clients.iter().all(|client| client.epoch() == epoch), "an epoch ended");
    });
}

#[test]
fn the_error_of_a_stall_names_silent_peers() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(ARENA).await;
        let case = Case::new(ReduceOp::Sum, Dtype::F32, 2 << 20, 11);
        let mut operations = post_all(&clients, &case).await;
        // All have heard of all posts, and the last segments are still to leave.
        lab.sleep(Span::from_ms(50)).await;
        lab.set_outage(true);
        for outcome in outcomes(&mut operations).await {
            let Err(failure) = outcome else { panic!("a result in spite of an outage") };
            assert_eq!(failure.code, FailureCode::Stalled, "{failure}");
            let silent = ["east-0", "west-0"]
                .map(|name| format!("; gateway {name} has acknowledged nothing for "));
            assert!(silent.iter().any(|silent| failure.text.contains(silent)), "{failure}");
        }
    });
}

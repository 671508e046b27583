//! Groups of regions without a link between them. They are refused at once, with a way round: a rank on
//! the way that joins.

use super::members::{Members, post_sum};
use gateway::client::{Client, GroupError};
use gateway::simulate::simulated_address;
use hier_collectives::descriptor::{Counts, Dtype, SlotElements};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::{Failure, FailureCode};
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use units::Span;

/// Runs a test over three regions in a chain, the second of which has two gateways. Its first rank is 1.
fn simulate_chain<F: Future<Output = ()>>(test: impl FnOnce(Lab, Vec<Client>) -> F) {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let regions = vec![vec![port(1)], vec![port(2), port(1)], vec![port(2)]];
    let mesh = Mesh::of_gateways(regions).without(0, 2);
    simulate(async move {
        let lab = mesh.start(1).await;
        let clients = lab.clients(16 << 20).await;
        test(lab, clients).await;
    });
}

/// Returns the failure of a group that is refused.
async fn refused_group(client: &Client, ranks: &[u32], tag: Option<u32>) -> Failure {
    let made = client.new_group_with(ranks, tag, Span::from_secs(60)).await;
    match made.expect_err("no link joins its regions") {
        GroupError::Failed(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn a_group_without_a_path_is_refused_with_advice() {
    simulate_chain(|lab, clients| async move {
        let begin = lab.host.now();
        for tag in [Some(1), None] {
            // A group that ranks count is made by all of them.
            for rank in [0, 4] {
                let failure = refused_group(&clients[rank], &[0, 4], tag).await;
                assert_eq!(failure.code, FailureCode::BadPost, "{failure}");
                for words in [
                    "the group of ranks 0, 4: ",
                    "region `c` cannot be reached from region `a`",
                    "add a rank of a gateway on the way",
                ] {
                    assert!(failure.text.contains(words), "{words}: {failure}");
                }
            }
        }
        for rank in [1, 2, 3, 5] {
            assert!(clients[rank].new_group(&[0, 4]).await.expect("counted").is_none());
        }
        let waited = lab.host.now().since(begin);
        assert!(waited < Span::from_ms(100), "{waited}");
        // With a rank on the way all is well, also for those that count.
        let mut members = Vec::new();
        for client in &clients {
            members.extend(client.new_group(&[0, 3, 4]).await.expect("a chain"));
        }
        Members(members).sum(50_000).await;
        Members(clients).sum(1000).await;
    });
}

/// Returns the payload bytes that a gateway sent to another so far.
fn sent(lab: &Lab, from: u16, to: u16) -> u64 {
    let peer = lab.gateways[usize::from(from)].peers.get(&GatewayId(to));
    peer.map_or(0, |peer| peer.metrics.sent_bytes.get())
}

#[test]
fn a_rank_on_the_way_carries_its_group_over() {
    simulate_chain(|lab, clients| async move {
        // The gateways are a-0, b-0, b-1 and c-0; rank 3 is that of b-1.
        let Members(members) = Members::make(&clients, &[0, 3, 5], 0).await;
        lab.sleep(Span::from_secs(1)).await;
        let before = [(0, 2), (2, 3), (0, 1), (1, 3)].map(|(from, to)| sent(&lab, from, to));
        let block = 200_000;
        let mut gathers = Vec::new();
        for member in &members {
            let slots = SlotElements { contribution: block, result: 3 * block };
            let mut tensor = member.allocate_slots(Dtype::U8, slots).expect("room");
            tensor.write(&vec![member.rank().0 as u8 + 1; block as usize]);
            gathers.push(member.all_gather(tensor, Counts::Even).await.expect("posted"));
        }
        for mut operation in gathers {
            operation.ready().await.expect("a result");
            let result = operation.result();
            let expected = [1, 2, 3].map(|value| vec![value; block as usize]).concat();
            assert!(result == expected, "other blocks");
        }
        let after = [(0, 2), (2, 3), (0, 1), (1, 3)].map(|(from, to)| sent(&lab, from, to));
        let crossed: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        // A block of a crosses both links, one of b the second; other gateways carry nothing.
        assert_eq!(crossed, [block, 2 * block, 0, 0]);
        let [a, c] = [0, 3].map(|id| simulated_address(GatewayId(id)).ip());
        assert!(lab.net.counters(a, c).is_err(), "a link between a and c");
        let waiting = post_sum(&members[0], 10).await;
        let rest = [post_sum(&members[1], 10).await, post_sum(&members[2], 10).await];
        Members(members).check_sums([waiting].into_iter().chain(rest).collect(), 10).await;
    });
}

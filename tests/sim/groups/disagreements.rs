//! Ranks that name different ranks hear of it at once; nobody else does.

use super::members::Members;
use gateway::client::{Client, GroupError};
use hier_collectives::post::FailureCode;
use scenarios::lab::mesh::Mesh;
use scenarios::simulate;
use units::Span;

#[test]
fn ranks_that_disagree_on_a_group_hear_of_it() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        let bystanders = Members::make(&clients, &[0, 1], 1).await;
        let begin = lab.host.now();
        let (one, other) =
            tokio::join!(clients[0].new_group(&[0, 1, 2]), clients[1].new_group(&[0, 1]));
        // A group may have begun before its gateways hear of the other.
        let mut failures = Vec::new();
        for made in [one, other] {
            let failure = match made {
                Err(GroupError::Failed(failure)) => failure,
                Ok(Some(group)) => group.barrier().await.expect_err("it is over"),
                made => panic!("{made:?}"),
            };
            failures.push(failure);
        }
        for failure in &failures {
            assert_eq!(failure.code, FailureCode::Disagreement, "{failure}");
            for words in ["the group of ranks 0, 1,", "the group of ranks 0, 1, 2"] {
                assert!(failure.text.contains(words), "{failure}");
            }
        }
        let waited = lab.host.now().since(begin);
        assert!(waited < Span::from_secs(1), "{waited}");
        bystanders.sum(100).await;
        Members(clients).sum(100).await;
    });
}

#[test]
fn a_split_that_fails_counts_on_all_ranks() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        // The keys of ranks 0 and 1 ask for another order.
        let split = |client: &Client, color, key| {
            let client = client.clone();
            tokio::spawn(async move { client.split(Some(color), key).await })
        };
        let splits = [split(&clients[0], 7, 1), split(&clients[1], 7, 0), split(&clients[2], 3, 0)];
        let mut failed = 0;
        for made in splits {
            match made.await.expect("no panic") {
                Ok(group) => assert!(group.is_some()),
                Err(failure) => {
                    assert!(matches!(failure, GroupError::KeyOrder), "{failure}");
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, 2);
        let mut members = Vec::new();
        for client in &clients {
            members.extend(client.new_group(&[0, 2]).await.expect("made"));
        }
        Members(members).sum(100).await;
    });
}

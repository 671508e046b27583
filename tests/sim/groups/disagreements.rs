//! Ranks that name different ranks hear of it at once; nobody else does.

use super::members::Members;
use gateway::client::GroupError;
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

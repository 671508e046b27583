//! Ranks that name different ranks, or make groups in different epochs of their parent, hear of it at
//! once; nobody else does.

use super::members::{Members, failure_of, post_sum};
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

#[test]
fn a_group_of_an_epoch_that_ended_is_not_made() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let mut clients = lab.clients(1 << 20).await;
        Members(clients.clone()).sum(10).await;
        // Rank 0 makes a group in the first epoch, and rank 2 never does.
        let counted = clients[0].new_group(&[0, 2]).await.expect("made").expect("in it");
        let tagged = clients[0].new_group_with_tag(&[0, 2], 1).await.expect("made").expect("in it");
        let waiting = post_sum(&counted, 100).await;
        let with_tag = post_sum(&tagged, 100).await;
        drop(clients.remove(1));
        let begin = lab.host.now();
        let back = lab.client(1, 1 << 20).await;
        let failure = failure_of(waiting).await;
        assert_eq!(failure.code, FailureCode::EpochEnded, "{failure}");
        assert!(failure.text.contains("or with a tag"), "{failure}");
        let waited = lab.host.now().since(begin);
        assert!(waited < Span::from_secs(1), "{waited}");
        // A tag is no count, so that the epoch of the parent is nothing to it.
        let late = clients[1].new_group_with_tag(&[0, 2], 1).await.expect("made").expect("in it");
        let second = post_sum(&late, 100).await;
        Members(vec![tagged, late]).check_sums(vec![with_tag, second], 100).await;
        clients.insert(1, back);
        let mut members = Vec::new();
        for client in &clients {
            members.extend(client.new_group(&[0, 2]).await.expect("made"));
        }
        Members(members).sum(100).await;
    });
}

#[test]
fn a_rank_behind_its_epoch_makes_no_group() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let mut clients = lab.clients(1 << 20).await;
        Members(clients.clone()).sum(10).await;
        drop(clients.remove(1));
        lab.sleep(Span::from_secs(1)).await;
        let mut back = std::pin::pin!(lab.client(1, 1 << 20));
        tokio::select! {
            biased;
            _ = &mut back => panic!("within a round trip"),
            () = lab.sleep(Span::from_ms(40)) => {}
        }
        // All gateways know that the epoch has ended, and the next one has not begun.
        let refused = clients[0].new_group(&[0, 2]).await.expect_err("no epoch");
        let GroupError::Failed(failure) = refused else { panic!("{refused}") };
        assert_eq!(failure.code, FailureCode::EpochEnded, "{failure}");
        clients.insert(1, back.await);
        let mut members = Vec::new();
        for client in &clients {
            members.extend(client.new_group(&[0, 2]).await.expect("made"));
        }
        Members(members).sum(100).await;
    });
}

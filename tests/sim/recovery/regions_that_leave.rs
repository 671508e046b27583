//! Regions that an operator takes out and in again: no step is interrupted, every rank hears of it once,
//! between two steps, and a region that has left stays out until it joins.

use super::lost_regions::{averages, wait_for_world};
use gateway::client::{Client, Operation, PostError};
use gateway::events::{MembershipChange, MembershipChangeError};
use gateway::observe::membership_report::MembershipReport;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, Step};
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::topology::QuorumSpec;
use scenarios::lab::credentials::CredentialKind;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, simulate};
use units::Span;

const ARENA: u64 = 1 << 20;
const A: GatewayId = GatewayId(0);
const C: GatewayId = GatewayId(2);
/// 3 s: the next step begins so long after the last one ended, when a region has left or joined: a
/// proposal and an epoch take some round trips of at most 60 ms, and one may be repeated after 1 s.
pub(crate) const NEXT_STEP_WITHIN: Span = Span::from_secs(3);

/// 5 s: a leave is called off so long after the others parted: 1 s, a proposal that may be repeated after
/// 1 s, and a new epoch of all.
const CALLED_OFF_WITHIN: Span = Span::from_secs(5);

/// Three regions of two, one and one ranks, of which two may go on.
fn majority() -> Mesh {
    Mesh { quorum: QuorumSpec::Majority, ..Mesh::of_ranks(&[2, 1, 1]) }
}

/// Asks the gateway of a region to let one leave or join within a time.
async fn ask_within(
    lab: &Lab,
    at: GatewayId,
    region: &str,
    leaves: bool,
    within: Span,
) -> Result<MembershipReport, MembershipChangeError> {
    let change = MembershipChange { region: region.to_owned(), leaves, within };
    let gateway = &lab.gateways[usize::from(at.0)];
    gateway.change_membership(Some(change)).await.expect("it runs")
}

/// Asks the gateway of a region to let one leave or join at the end of a step.
async fn ask(lab: &Lab, at: GatewayId, region: &str, leaves: bool) {
    ask_within(lab, at, region, leaves, Span::from_secs(600)).await.expect("accepted");
}

/// Posts one bucket of a step, to which the rank brings its number in the fabric. A rank that is late
/// for the epoch that it agreed to cannot.
async fn try_post_bucket(number: u32, client: &Client) -> Result<Operation, Failure> {
    let mut tensor = client.allocate(Dtype::F32, 64).expect("room");
    tensor.write_f32(&[number as f32; 64]);
    client.all_reduce(tensor, ReduceOp::Avg).await.map_err(PostError::into_failure)
}

/// Posts one bucket of a step in the epoch under way.
async fn post_bucket(number: u32, client: &Client) -> Operation {
    try_post_bucket(number, client).await.expect("posted")
}

/// Awaits the average of a bucket.
async fn average(mut operation: Operation) -> Result<f32, Failure> {
    let ready = operation.ready().await;
    let average = ready.map(|_| operation.result_f32()[17]);
    operation.reclaim().await.expect("the slots are the rank's again");
    average
}

/// The step that failed and its failure, if one failed, and the averages of all buckets before it.
pub(crate) type Trained = (Option<(u64, Failure)>, Vec<f32>);

/// Runs steps of two buckets and a commit on a rank until one fails, or the last is done.
async fn train(
    lab: &Lab,
    (number, client): (u32, Client),
    steps: std::ops::Range<u64>,
    pause: Span,
) -> Trained {
    let mut seen = Vec::new();
    client.agree_to_epoch();
    for step in steps {
        for _ in 0..2 {
            // Ranks come at other times.
            lab.sleep(pause + Span::from_ms(u64::from(number) * 7)).await;
            let outcome = match try_post_bucket(number, &client).await {
                Ok(operation) => average(operation).await,
                Err(failure) => Err(failure),
            };
            match outcome {
                Ok(mean) => seen.push(mean),
                Err(failure) => return (Some((step, failure)), seen),
            }
        }
        if let Err(failure) = client.commit(Step(step)).await {
            return (Some((step, failure)), seen);
        }
    }
    (None, seen)
}

/// Runs steps on some ranks at once; returns what each of them saw.
pub(crate) async fn train_all(
    lab: &Lab,
    ranks: &[(u32, &Client)],
    steps: std::ops::Range<u64>,
    pause: Span,
) -> Vec<Trained> {
    let runs = ranks
        .iter()
        .map(|(number, client)| train(lab, (*number, Client::clone(client)), steps.clone(), pause));
    futures_of(runs).await
}

/// Awaits all futures at once.
async fn futures_of<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, done) in pending.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        match pending.iter().all(|(_, done)| done.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    pending.into_iter().filter_map(|(_, done)| done).collect()
}

/// Asserts that all ranks heard of one change between the same two steps, once each: with these words, or
/// that the epoch has ended if the next one has begun by then. Returns the step that none of them began.
pub(crate) fn told_between_steps(told: &[Trained], words: &str, mean: f32) -> u64 {
    let (first, _) = told[0].0.as_ref().expect("told of the change");
    for (failed, seen) in told {
        let (step, failure) = failed.as_ref().expect("told of the change");
        let is_change = failure.code == FailureCode::MembershipChanged;
        assert!(is_change || failure.code == FailureCode::EpochEnded, "{failure}");
        assert!(!is_change || failure.text.contains(words), "{failure}");
        assert_eq!(step, first, "all have done the same steps: {told:?}");
        assert!(seen.len().is_multiple_of(2), "no step was begun: {told:?}");
        assert!(seen.iter().all(|value| *value == mean), "{told:?}");
    }
    *first
}

#[test]
fn a_region_leaves_and_joins_between_two_steps() {
    for (asked, pause_ms) in [(A, 20), (C, 20), (GatewayId(1), 700)] {
        simulate(async {
            let mut lab = majority().start(7).await;
            let clients = lab.clients(ARENA).await;
            let pause = Span::from_ms(pause_ms);
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            let before = clients[0].epoch().0;
            let asking = async {
                lab.sleep(Span::from_secs(4)).await;
                ask(&lab, asked, "c", true).await;
            };
            let (told, ()) = tokio::join!(train_all(&lab, &all, 0..1000, pause), asking);
            let ended = lab.host.now();
            let next = told_between_steps(&told, "region c leaves, as an operator asked", 1.5);
            assert!(next > 0, "{told:?}");
            let left: Vec<&Client> = clients[..3].iter().collect();
            wait_for_world(&lab, &left, before, 3, NEXT_STEP_WITHIN).await;
            let took = lab.host.now().since(ended);
            assert!(took < NEXT_STEP_WITHIN, "{took}");
            assert_eq!(clients[0].committed(), Some(Step(next - 1)), "it is complete everywhere");
            // The region stays out, also when its gateway is started again.
            let done = train_all(&lab, &all[..3], next..next + 20, pause).await;
            assert!(
                done.iter().all(|(failed, seen)| failed.is_none() && seen[0] == 1.0),
                "{done:?}"
            );
            let smaller = clients[0].epoch().0;
            lab.restart(C, CredentialKind::Valid).await;
            lab.sleep(Span::from_secs(60)).await;
            assert_eq!(clients[0].epoch().0, smaller);
            assert_eq!(lab.status(C).await.jobs[0].epoch, None, "it has left");
            let members = lab.status(A).await.membership.expect("known");
            assert_eq!((members.members.len(), members.left), (2, vec!["c".to_owned()]));
            let waits = lab.status(C).await.problems.remove(0).to_string();
            assert!(waits.contains("`landbridge join c` takes it in again"), "{waits}");
            // It joins between two steps.
            let asking = async {
                lab.sleep(Span::from_secs(2)).await;
                ask(&lab, asked, "c", false).await;
            };
            let steps = next + 20..next + 1000;
            let training = train_all(&lab, &all[..3], steps, pause);
            let (told, (), back) = tokio::join!(training, asking, lab.client(3, ARENA));
            let next = told_between_steps(&told, "region c joins, as an operator asked", 1.0);
            let everybody = [&clients[0], &clients[1], &clients[2], &back];
            wait_for_world(&lab, &everybody, smaller, 4, NEXT_STEP_WITHIN).await;
            let all: Vec<(u32, &Client)> = (0..).zip(everybody).collect();
            let done = train_all(&lab, &all, next..next + 3, pause).await;
            assert!(
                done.iter().all(|(failed, seen)| failed.is_none() && seen[0] == 1.5),
                "{done:?}"
            );
        });
    }
}

#[test]
fn ranks_that_commit_nothing_lose_no_collective() {
    simulate(async {
        let lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        // All ranks of the first gateway have posted, which decides.
        let mut posted = Vec::new();
        for (number, client) in &all[..2] {
            posted.push(post_bucket(*number, client).await);
        }
        lab.sleep(Span::from_ms(100)).await;
        ask(&lab, A, "c", true).await;
        lab.sleep(Span::from_secs(20)).await;
        assert_eq!(clients[0].world_size(), 4, "it waits for the others");
        for (number, client) in &all[2..] {
            posted.push(post_bucket(*number, client).await);
        }
        for operation in posted {
            assert_eq!(average(operation).await, Ok(1.5));
        }
        let left: Vec<&Client> = clients[..3].iter().collect();
        wait_for_world(&lab, &left, 1, 3, NEXT_STEP_WITHIN).await;
    });
}

#[test]
fn a_step_that_does_not_end_is_begun_again() {
    simulate(async {
        let lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        let done = train_all(&lab, &all, 0..3, Span::from_ms(20)).await;
        assert!(done.iter().all(|(failed, _)| failed.is_none()), "{done:?}");
        let operation = post_bucket(0, &clients[0]).await;
        ask_within(&lab, A, "c", true, Span::from_secs(30)).await.expect("accepted");
        lab.sleep(Span::from_secs(29)).await;
        assert_eq!(clients[0].world_size(), 4);
        let failure = average(operation).await.expect_err("the time is over");
        assert!(failure.text.contains("region c leaves, as an operator asked"), "{failure}");
        let left: Vec<&Client> = clients[..3].iter().collect();
        wait_for_world(&lab, &left, 1, 3, NEXT_STEP_WITHIN).await;
        assert_eq!(averages(&all[..3]).await, vec![Ok(1.0); 3]);
    });
}

#[test]
fn a_change_that_is_called_off_stops_nobody() {
    simulate(async {
        let lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        let asking = async {
            lab.sleep(Span::from_secs(2)).await;
            ask(&lab, A, "c", true).await;
            lab.sleep(Span::from_ms(300)).await;
            ask(&lab, A, "c", false).await;
        };
        let pause = Span::from_ms(900);
        let (told, ()) = tokio::join!(train_all(&lab, &all, 0..1000, pause), asking);
        let next = told_between_steps(&told, "an operator", 1.5);
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, 1, 4, NEXT_STEP_WITHIN).await;
        let done = train_all(&lab, &all, next..next + 3, pause).await;
        assert!(done.iter().all(|(failed, seen)| failed.is_none() && seen[0] == 1.5), "{done:?}");
    });
}

/// The link between those that stay is lost while the others wait for the last rank's step.
#[test]
fn a_leave_is_called_off_when_the_others_part() {
    simulate(async {
        let lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        let mut posted = Vec::new();
        for (number, client) in &all[..3] {
            posted.push(post_bucket(*number, client).await);
        }
        lab.sleep(Span::from_ms(100)).await;
        ask(&lab, A, "c", true).await;
        lab.sleep(Span::from_secs(1)).await;
        lab.set_outage_between(A, GatewayId(1), true);
        // The loss of the link ends the step; nobody waits for the leave.
        for operation in posted {
            let failure = average(operation).await.expect_err("the step is begun again");
            assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
        }
        lab.sleep(CALLED_OFF_WITHIN).await;
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, 1, 4, NEXT_STEP_WITHIN).await;
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        let members = lab.status(A).await.membership.expect("known");
        assert_eq!((members.members.len(), members.left), (3, vec![]));
        let reason = &members.called_off[0].reason;
        assert!(reason.contains("regions a, b have no way to each other"), "{reason}");
    });
}

/// Of two regions and a witness one leaves, and the witness is lost before the step ends.
#[test]
fn a_leave_is_called_off_when_the_witness_is_lost() {
    simulate(async {
        let mut lab =
            Mesh { quorum: QuorumSpec::Majority, ..Mesh::of_ranks(&[2, 1, 0]) }.start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
        lab.sleep(Span::from_secs(2)).await;
        let mut late = Vec::new();
        for (number, client) in &all[..2] {
            late.push(post_bucket(*number, client).await);
        }
        lab.sleep(Span::from_ms(100)).await;
        ask(&lab, A, "b", true).await;
        lab.sleep(Span::from_secs(1)).await;
        lab.stop_gateway(C).await;
        lab.sleep(Span::from_secs(20)).await;
        late.push(post_bucket(2, &clients[2]).await);
        for operation in late {
            assert_eq!(average(operation).await, Ok(1.0), "no step was interrupted");
        }
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, 1, 3, NEXT_STEP_WITHIN).await;
        assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
        let members = lab.status(A).await.membership.expect("known");
        let reason = &members.called_off[0].reason;
        assert!(reason.contains("region a are left, which are no quorum"), "{reason}");
    });
}

#[test]
fn changes_after_which_nobody_goes_on_are_refused() {
    simulate(async {
        let lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        let minute = Span::from_secs(60);
        let refuse = async |at, region, words: &str| {
            let refused = ask_within(&lab, at, region, true, minute).await;
            let text = refused.expect_err("refused").to_string();
            assert!(text.contains(words), "{text}");
        };
        refuse(A, "d", "no region `d` with ranks; it has: a, b, c").await;
        ask(&lab, A, "b", true).await;
        lab.sleep(Span::from_secs(3)).await;
        refuse(A, "c", "region a are left, which are no quorum").await;
        refuse(GatewayId(1), "c", "the region of this gateway has left").await;
        let some = [all[0], all[1], all[3]];
        assert_eq!(averages(&some).await, vec![Ok(4.0 / 3.0); 3]);
    });
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1]).start(7).await;
        let refused = ask_within(&lab, A, "b", true, Span::from_secs(60)).await;
        let text = refused.expect_err("all are needed").to_string();
        assert!(text.contains("the quorum of this fabric is all regions"), "{text}");
    });
}

/// All that a and c send each other goes by way of b.
#[test]
fn a_region_between_two_others_may_not_leave() {
    let mut line = majority();
    line.links.retain(|link| link.regions != (0, 2));
    simulate(async {
        let lab = line.start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        for at in [A, GatewayId(1), C] {
            let refused = ask_within(&lab, at, "b", true, Span::from_secs(60)).await;
            let text = refused.expect_err("refused").to_string();
            assert!(text.contains("regions a, c have no way to each other"), "{text}");
        }
        ask(&lab, A, "c", true).await;
        lab.sleep(Span::from_secs(3)).await;
        assert_eq!(averages(&all[..3]).await, vec![Ok(1.0); 3]);
    });
}

#[test]
fn one_of_two_regions_leaves_where_a_witness_is() {
    simulate(async {
        let lab =
            Mesh { quorum: QuorumSpec::Majority, ..Mesh::of_ranks(&[2, 1, 0]) }.start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
        lab.sleep(Span::from_secs(2)).await;
        ask(&lab, A, "b", true).await;
        let left: Vec<&Client> = clients[..2].iter().collect();
        wait_for_world(&lab, &left, 1, 2, NEXT_STEP_WITHIN).await;
        assert_eq!(averages(&all[..2]).await, vec![Ok(0.5); 2]);
        let alone = clients[0].epoch().0;
        ask(&lab, A, "b", false).await;
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, alone, 3, Span::from_secs(5)).await;
        averages(&all).await;
        assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
    });
}

//! Ranks that post different collectives hear one reason, in every order and at every pace.
//!
//! A rank of a region that has its result already hears it at its next collective.

use gateway::client::{Client, CollectiveSpec, PostError};
use gateway::host::Host;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::post::{Failure, FailureCode};
use scenarios::collectives::data::SplitMix64;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, Shape, simulate};
use std::sync::Arc;
use units::Span;

/// Rounds with one lab: each has its collectives and its order of posts.
const ROUNDS: u64 = 12;

/// Times by which ranks post after the first, in ms; a round trip of the labs takes 30 to 80 ms.
const DELAYS_MS: [u64; 7] = [0, 0, 1, 20, 45, 300, 5_000];

/// A collective that a rank posts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Posted {
    spec: CollectiveSpec,
    dtype: Dtype,
    elements: u64,
}

impl Posted {
    /// Returns the barrier that every rank posts next.
    fn next() -> Self {
        let spec = CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum);
        Self { spec, dtype: Dtype::U8, elements: 0 }
    }

    /// Draws a collective of any kind, often with equal fields.
    fn draw(dice: &mut SplitMix64, ranks: u32) -> Self {
        let root = RankId((dice.roll() % u64::from(ranks)) as u32);
        let pattern = match dice.roll() % 6 {
            0 => Pattern::AllReduce,
            1 => Pattern::Reduce { to: root },
            2 => Pattern::Barrier,
            _ => Pattern::Broadcast { from: root },
        };
        let op = [ReduceOp::Sum, ReduceOp::Max][(dice.roll() % 2) as usize];
        let dtype = [Dtype::F32, Dtype::I32][(dice.roll() % 2) as usize];
        let elements = [1, 1_000, 300_000][(dice.roll() % 3) as usize];
        let elements = if pattern == Pattern::Barrier { 0 } else { elements };
        Self { spec: CollectiveSpec::new(pattern, op), dtype, elements }
    }

    /// Posts the collective on a rank, and waits for its outcome.
    async fn run(self, client: &Client) -> Result<(), Failure> {
        let tensor = client.allocate(self.dtype, self.elements).expect("room in the arena");
        let mut operation =
            client.post(tensor, self.spec).await.map_err(PostError::into_failure)?;
        operation.ready().await.map(|_| ())
    }
}

/// Posts a collective after `wait`, then barriers until one fails; returns the failure.
async fn first_failure(client: Client, posted: Posted, wait: Span, host: Arc<dyn Host>) -> Failure {
    host.sleep_until(host.now() + wait).await;
    let mut next = posted;
    for _ in 0..5 {
        if let Err(failure) = next.run(&client).await {
            return failure;
        }
        next = Posted::next();
    }
    panic!("rank {} hears nothing of {posted:?}", client.rank());
}

/// Lets each rank post its collective after its wait; returns the one failure that all hear.
async fn common_failure(lab: &Lab, clients: &[Client], posts: &[(Posted, Span)]) -> Failure {
    let mut ranks = Vec::new();
    for (client, (posted, wait)) in clients.iter().zip(posts) {
        let host = Arc::clone(&lab.host);
        ranks.push(tokio::spawn(first_failure(client.clone(), *posted, *wait, host)));
    }
    let mut heard = Vec::new();
    for rank in ranks {
        heard.push(rank.await.expect("no panic"));
    }
    assert!(heard.iter().all(|failure| *failure == heard[0]), "{posts:?}: {heard:?}");
    heard.remove(0)
}

/// Runs a barrier on all ranks, in the epoch that is current by now.
async fn next_works(lab: &Lab, clients: &[Client]) {
    lab.sleep(Span::from_secs(1)).await;
    let mut ranks = Vec::new();
    for client in clients {
        let client = client.clone();
        ranks.push(tokio::spawn(async move { client.barrier().await }));
    }
    for rank in ranks {
        rank.await.expect("no panic").expect("the next collective works");
    }
}

/// Runs rounds in which a part of the ranks posts another collective.
async fn run_rounds(lab: Lab, seed: u64) {
    let clients = lab.clients(8 << 20).await;
    let ranks = lab.fabric.world_size();
    let mut dice = SplitMix64(seed);
    for _ in 0..ROUNDS {
        let agreed = Posted::draw(&mut dice, ranks);
        let other = loop {
            let other = Posted::draw(&mut dice, ranks);
            if other != agreed {
                break other;
            }
        };
        // Some rank posts each of both.
        let odd = dice.roll() % u64::from(ranks);
        let even = (odd + 1 + dice.roll() % u64::from(ranks - 1)) % u64::from(ranks);
        let mut posts = Vec::new();
        for rank in 0..u64::from(ranks) {
            let dissents = rank == odd || rank != even && dice.roll().is_multiple_of(3);
            let wait = DELAYS_MS[(dice.roll() % DELAYS_MS.len() as u64) as usize];
            posts.push((if dissents { other } else { agreed }, Span::from_ms(wait)));
        }
        let failure = common_failure(&lab, &clients, &posts).await;
        assert_eq!(failure.code, FailureCode::Disagreement, "{posts:?}");
        assert!(failure.text.contains("ranks disagree on"), "{failure}");
        next_works(&lab, &clients).await;
    }
}

#[test]
fn all_ranks_of_two_regions_hear_one_reason() {
    for seed in 0..4 {
        simulate(async { run_rounds(Lab::start(&Shape::new(2, 2), seed).await, seed).await });
    }
}

#[test]
fn all_ranks_of_three_regions_hear_one_reason() {
    for seed in 10..13 {
        let mesh = Mesh::of_ranks(&[1, 2, 1]);
        simulate(async { run_rounds(mesh.start(seed).await, seed).await });
    }
}

/// The root has its data, and goes on, long before a rank elsewhere posts something invalid.
#[test]
fn a_root_hears_of_an_invalid_post_elsewhere() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 5).await;
        let clients = lab.clients(8 << 20).await;
        let spec = CollectiveSpec::new(Pattern::Broadcast { from: RankId(0) }, ReduceOp::Sum);
        let good = Posted { spec, dtype: Dtype::F32, elements: 1_000 };
        let bad = Posted { spec: CollectiveSpec { weight: -1.0, ..spec }, ..good };
        let late = Span::from_secs(100);
        let posts = [(good, Span::ZERO), (good, Span::ZERO), (good, late), (bad, late)];
        let failure = common_failure(&lab, &clients, &posts).await;
        assert_eq!(failure.code, FailureCode::BadPost, "{failure}");
        assert!(failure.text.contains("rank 3 (west): weight -1"), "{failure}");
        next_works(&lab, &clients).await;
    });
}

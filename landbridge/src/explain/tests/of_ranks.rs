//! Faults of ranks and of the training script.

use super::scene::{Scene, SeededFault, Verdict};
use crate::explain::party::CulpritKind;
use gateway::client::{CollectiveSpec, Operation};
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use scenarios::{Lab, Shape, simulate};
use units::Span;

/// The faults of ranks and of the training script.
pub const FAULTS: &[SeededFault] = &[
    SeededFault { name: "a stopped rank", strike: stop_rank },
    SeededFault { name: "a killed rank", strike: kill_rank },
    SeededFault { name: "a trainer that computes for ever", strike: never_post },
    SeededFault { name: "a rank with a slow disk", strike: slow_rank },
    SeededFault { name: "another order of posts", strike: post_in_another_order },
    SeededFault { name: "another shape", strike: post_another_shape },
    SeededFault { name: "another dtype", strike: post_another_dtype },
];

/// 2 s: the 1 s after which a wait is told, and 1 s more.
const WAIT_TOLD_WITHIN: Span = Span::from_secs(2);

/// Stops a rank after some steps: it stays attached and posts nothing.
fn stop_rank(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let rank = scene.draw_rank();
        let _operations = scene.post_without(&[rank]).await;
        scene.lab.sleep(WAIT_TOLD_WITHIN).await;
        let culprits = vec![scene.rank_name(rank)];
        scene.verdict(CulpritKind::Rank, culprits, "it is attached and has not posted").await
    })
}

/// Kills a rank after some steps; the others post once more.
fn kill_rank(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let rank = scene.draw_rank();
        scene.clients[rank as usize] = None;
        let _operations = scene.post_without(&[]).await;
        scene.lab.sleep(Span::from_secs(1)).await;
        let culprits = vec![scene.rank_name(rank)];
        scene.verdict(CulpritKind::Rank, culprits, "went away").await
    })
}

/// Lets a rank of two regions attach and compute for ever.
fn never_post(seed: u64) -> Verdict {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), seed).await;
        let mut scene = Scene::without_trainers(lab, seed);
        scene.attach_all(1 << 20).await;
        let rank = scene.draw_rank();
        let _operations = scene.post_without(&[rank]).await;
        scene.lab.sleep(WAIT_TOLD_WITHIN).await;
        scene.wait_up_to(Span::from_secs(300)).await;
        let culprits = vec![scene.rank_name(rank)];
        scene.verdict(CulpritKind::Rank, culprits, "it is attached and has not posted").await
    })
}

/// Lets a rank post 400 ms after the others in each step, as if it read its input from a slow disk.
fn slow_rank(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let rank = scene.draw_rank();
        for _ in 0..6 {
            scene.step(&[rank]).await;
        }
        let culprits = vec![scene.rank_name(rank)];
        scene.verdict(CulpritKind::Rank, culprits, "it delayed the last").await
    })
}

/// One post: its pattern, its dtype and its elements.
type PostShape = (Pattern, Dtype, u64);

/// Lets a drawn rank post other collectives than all others.
async fn post_apart(seed: u64, usual: &[PostShape], other: &[PostShape]) -> Verdict {
    let mut scene = Scene::of_three_regions(seed).await;
    let odd = scene.draw_rank();
    let mut operations: Vec<Operation> = Vec::new();
    for client in scene.clients.iter().flatten() {
        let posts = if client.rank().0 == odd { other } else { usual };
        for (pattern, dtype, elements) in posts {
            let tensor = client.allocate(*dtype, *elements).expect("room");
            let spec = CollectiveSpec::new(*pattern, ReduceOp::Sum);
            // A second post may come after the first has ended the epoch.
            operations.extend(client.post(tensor, spec).await);
        }
    }
    // A disagreement is told within two round trips and 1 s.
    scene.lab.sleep(WAIT_TOLD_WITHIN).await;
    let culprits = vec!["the script of job sim".to_owned()];
    let found = scene.rank_name(odd);
    scene.verdict(CulpritKind::Script, culprits, found).await
}

/// The usual post of a short all-reduce.
const USUAL: PostShape = (Pattern::AllReduce, Dtype::F32, 1024);

/// Lets a rank post a broadcast before an all-reduce, and all others after it.
fn post_in_another_order(seed: u64) -> Verdict {
    let broadcast = (Pattern::Broadcast { from: RankId(0) }, Dtype::F32, 1024);
    simulate(post_apart(seed, &[USUAL, broadcast], &[broadcast, USUAL]))
}

/// Lets a rank post a buffer of another length.
fn post_another_shape(seed: u64) -> Verdict {
    simulate(post_apart(seed, &[USUAL], &[(Pattern::AllReduce, Dtype::F32, 2048)]))
}

/// Lets a rank post a buffer of another element type.
fn post_another_dtype(seed: u64) -> Verdict {
    simulate(post_apart(seed, &[USUAL], &[(Pattern::AllReduce, Dtype::F64, 1024)]))
}

//! Faults under another patience than the usual: found when it says, and named within 1 s of that.

use super::scene::{Scene, Verdict};
use crate::explain::party::CulpritKind;
use gateway::client::Operation;
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use hier_collectives::topology::Patience;
use scenarios::lab::mesh::Mesh;
use scenarios::{EAST, WEST, simulate};
use std::ops::RangeInclusive;
use units::Span;

/// 4,194,304 elements: a buffer of 16 MiB, which takes 134 ms on the link.
const LONG_ELEMENTS: u64 = 1 << 22;

/// Starts regions with these ranks under a patience of so many seconds, whose trainers do a step.
async fn trained(ranks: &[u32], patience_s: u64) -> Scene {
    let patience = Patience::of_span(Span::from_secs(patience_s)).expect("valid");
    let lab = Mesh { patience, ..Mesh::of_ranks(ranks) }.start(11).await;
    let mut scene = Scene::without_trainers(lab, 11);
    scene.attach_all(64 << 20).await;
    scene.step(&[]).await;
    scene
}

/// Waits until the first operation fails, which has to be by this code, so many milliseconds after now.
async fn detect(
    scene: &Scene,
    operations: &mut [Operation],
    code: FailureCode,
    within_ms: RangeInclusive<u64>,
) {
    let struck = scene.lab.host.now();
    let failure = operations[0].ready().await.expect_err("a fault");
    let took = scene.lab.host.now().since(struck);
    assert_eq!(failure.code, code, "{failure}");
    let signal = &scene.lab.metrics(EAST).failures;
    signal.wait_for_failure().await;
    assert!(within_ms.contains(&(took.ns() / 1_000_000)), "found after {took}, not {within_ms:?}");
    scene.lab.sleep(Span::from_secs(1)).await;
}

/// Asserts that the party is the only one that is named.
fn assert_named_alone(verdict: &Verdict) {
    let Verdict { causes, kind, culprits, .. } = verdict;
    let [cause] = &causes[..] else { panic!("not {culprits:?} alone: {causes:#?}") };
    assert!(cause.kind == *kind && culprits.contains(&cause.culprit), "{culprits:?}: {cause:#?}");
}

#[test]
fn a_cut_link_is_named_when_the_patience_ends() {
    // 2/3 of the patience after the last byte.
    for (patience_s, within_ms) in [(6, 4000..=4500), (24, 16_000..=16_500)] {
        simulate(async {
            let scene = trained(&[1, 1], patience_s).await;
            let mut operations = scene.post_of(LONG_ELEMENTS, &[]).await;
            scene.lab.sleep(Span::from_ms(100)).await;
            scene.lab.set_outage_between(EAST, WEST, true);
            detect(&scene, &mut operations, FailureCode::Stalled, within_ms).await;
            let culprits = scene.path_names(EAST, WEST);
            assert_named_alone(&scene.verdict(CulpritKind::Link, culprits, "").await);
        });
    }
}

#[test]
fn a_silent_gateway_is_named_when_the_patience_ends() {
    // 8/15 of the patience after the last keep-alive, which may have come 1 s before.
    for (patience_s, within_ms) in [(6, 2200..=3700), (30, 15_000..=16_500)] {
        simulate(async {
            let mut scene = trained(&[1, 1, 1], patience_s).await;
            let gateway = GatewayId(2);
            [0, 1].into_iter().for_each(|other| {
                scene.lab.set_outage_between(GatewayId(other), gateway, true);
            });
            scene.gone.insert(gateway, false);
            let mut operations = scene.post_without(&[2]).await;
            detect(&scene, &mut operations, FailureCode::RegionLost, within_ms).await;
            let culprits = vec![scene.gateway_name(gateway)];
            assert_named_alone(&scene.verdict(CulpritKind::Gateway, culprits, "").await);
        });
    }
}

#[test]
fn an_outage_of_a_third_of_the_patience_is_harmless() {
    for patience_s in [6, 30] {
        simulate(async {
            let scene = trained(&[1, 1], patience_s).await;
            let mut operations = scene.post_of(LONG_ELEMENTS, &[]).await;
            scene.lab.sleep(Span::from_ms(100)).await;
            scene.lab.set_outage_between(EAST, WEST, true);
            scene.lab.sleep(Span::from_secs(patience_s / 3)).await;
            scene.lab.set_outage_between(EAST, WEST, false);
            for operation in &mut operations {
                operation.ready().await.expect("a result");
            }
        });
    }
}

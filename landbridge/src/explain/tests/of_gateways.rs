//! Faults of gateways, of their hosts, and of their files.

use super::scene::{Scene, SeededFault, Verdict};
use crate::explain::party::CulpritKind;
use gateway::local::job_spec::JobSpec;
use scenarios::lab::credentials::CredentialKind;
use scenarios::lab::mesh::Mesh;
use scenarios::{EAST, JOB, Lab, Shape, WEST, simulate};
use std::num::NonZeroU32;
use units::{ByteCount, Span};

/// The faults of gateways, of their hosts, and of their files.
pub const FAULTS: &[SeededFault] = &[
    SeededFault { name: "a stopped gateway", strike: stop_gateway },
    SeededFault { name: "a killed gateway", strike: kill_gateway },
    SeededFault { name: "a full disk", strike: fill_disk },
    SeededFault { name: "a limit on processors", strike: hold_gateway_back },
    SeededFault { name: "a clock that is apart", strike: set_clock_ahead },
    SeededFault { name: "an old fabric file", strike: use_old_fabric },
    SeededFault { name: "a certificate of another CA", strike: use_other_authority },
    SeededFault { name: "another token", strike: use_other_token },
];

/// Lets a gateway fall silent, which gives no status from then on.
async fn silence_gateway(seed: u64, is_absent: bool, found: &str) -> Verdict {
    let mut scene = Scene::of_three_regions(seed).await;
    let gateway = scene.draw_gateway();
    let others = scene.lab.fabric.gateway_ids().filter(|other| *other != gateway);
    others.for_each(|other| scene.lab.set_outage_between(gateway, other, true));
    scene.gone.insert(gateway, is_absent);
    let ranks: Vec<u32> = scene.lab.fabric.gateway(gateway).ranks.clone().collect();
    let _operations = scene.post_without(&ranks).await;
    scene.lab.sleep(Span::from_secs(1)).await;
    if scene.draw.below(2) == 1 {
        scene.wait_up_to(Span::from_secs(40)).await;
    }
    let culprits = vec![scene.gateway_name(gateway)];
    scene.verdict(CulpritKind::Gateway, culprits, found).await
}

/// Stops a gateway: its process is there, and says nothing.
fn stop_gateway(seed: u64) -> Verdict {
    simulate(silence_gateway(seed, false, "no answer"))
}

/// Kills a gateway: nothing listens at its addresses.
fn kill_gateway(seed: u64) -> Verdict {
    simulate(silence_gateway(seed, true, "no answer"))
}

/// Lets a gateway lose lines of its log, as where the log's disk is full.
fn fill_disk(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let gateway = scene.draw_gateway();
        scene.lab.metrics(gateway).lost_log_lines.inc_by(1 + scene.draw.below(100));
        scene.step(&[]).await;
        let culprits = vec![scene.gateway_name(gateway)];
        scene.verdict(CulpritKind::Gateway, culprits, "lines of its log were lost").await
    })
}

/// Holds a gateway back by a limit on processors, so that it reads the posts of its ranks late.
fn hold_gateway_back(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let gateway = scene.draw_gateway();
        scene.held_back.push(gateway);
        let ranks: Vec<u32> = scene.lab.fabric.gateway(gateway).ranks.clone().collect();
        for _ in 0..6 {
            scene.step(&ranks).await;
        }
        let culprits = vec![scene.gateway_name(gateway)];
        scene.verdict(CulpritKind::Gateway, culprits, "holds it back").await
    })
}

/// Sets the clock of a gateway's host ahead: it takes the other's certificate for expired.
fn set_clock_ahead(seed: u64) -> Verdict {
    simulate(async {
        let [wrong, other] = if seed.is_multiple_of(2) { [EAST, WEST] } else { [WEST, EAST] };
        let of = |id| if id == other { CredentialKind::Expired } else { CredentialKind::Valid };
        let lab = Lab::start_with(&Shape::new(1, 1), seed, [of(EAST), of(WEST)]).await;
        let mut scene = Scene::without_trainers(lab, seed);
        scene.clocks.insert(wrong, 86_400.0 * (30 + scene.draw.below(400)) as f64);
        scene.lab.sleep(Span::from_secs(5)).await;
        scene.wait_up_to(Span::from_secs(60)).await;
        let culprits = vec![format!("the clock of {}", scene.gateway_name(wrong))];
        scene.verdict(CulpritKind::Gateway, culprits, "ahead of the others").await
    })
}

/// Starts a drawn gateway of three regions again with other credentials.
async fn restart_with(seed: u64, credentials: CredentialKind, what: &str) -> Verdict {
    let lab = Mesh::of_ranks(&[1, 1, 1]).start(seed).await;
    let mut scene = Scene::without_trainers(lab, seed);
    let gateway = scene.draw_gateway();
    scene.lab.restart(gateway, credentials).await;
    scene.lab.sleep(Span::from_secs(5)).await;
    scene.wait_up_to(Span::from_secs(60)).await;
    let culprits = vec![format!("the {what} of {}", scene.gateway_name(gateway))];
    scene.verdict(CulpritKind::Files, culprits, "").await
}

/// Starts a gateway with the fabric file of before a change.
fn use_old_fabric(seed: u64) -> Verdict {
    simulate(restart_with(seed, CredentialKind::OtherFabric, "fabric file"))
}

/// Starts a gateway with a certificate of a CA that the others do not know.
fn use_other_authority(seed: u64) -> Verdict {
    simulate(restart_with(seed, CredentialKind::OtherAuthority, "certificate"))
}

/// Gives the job another token in one region.
fn use_other_token(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let gateway = scene.draw_gateway();
        let job = JobSpec {
            name: JOB.to_owned(),
            token: [8; 32].into(),
            memory: ByteCount::new(16 << 30),
            weight: NonZeroU32::MIN,
        };
        let index = usize::from(gateway.0);
        scene.lab.gateways[index].update_jobs(vec![job], Default::default()).await;
        scene.lab.sleep(Span::from_secs(2)).await;
        let culprits = vec![format!("the token of job sim of {}", scene.gateway_name(gateway))];
        scene.verdict(CulpritKind::Files, culprits, "not the same").await
    })
}

//! Faults of links: cut, slow, lossy, behind a firewall, or narrower than the fabric says.

use super::scene::{Scene, SeededFault, Verdict};
use crate::explain::party::CulpritKind;
use hier_collectives::ids::GatewayId;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{EAST, Lab, Shape, WEST, carrier_address, mbit, ppm, simulate, simulated_address};
use units::{Fraction, Span};
use wan_sim::LinkSpec;

/// The faults of links.
pub const FAULTS: &[SeededFault] = &[
    SeededFault { name: "a cut link", strike: cut_link },
    SeededFault { name: "a cut pair of three regions", strike: cut_pair },
    SeededFault { name: "a slow link", strike: slow_link },
    SeededFault { name: "a lossy link", strike: lossy_link },
    SeededFault { name: "a shut port", strike: shut_ports },
    SeededFault { name: "a wrong MTU", strike: narrow_path },
];

/// 2.2 s: the 1 s after which news is late, two round trips of 80 ms, and 1 s more.
const NEWS_TOLD_WITHIN: Span = Span::from_ms(2200);
/// 4.2 s: the 1 s after which a keep-alive leaves, 1 s of a look at an idle lane, 1 s and two round
/// trips without an acknowledgement, and 1 s more.
const SILENCE_TOLD_WITHIN: Span = Span::from_ms(4200);
/// 45 s: lanes have been missing for so long that the path was checked.
const CHECKED_WITHIN: Span = Span::from_secs(45);
/// 524,288 elements: buffers of 2 MiB, by which slow links are judged.
const LONG_ELEMENTS: u64 = 1 << 19;

/// Cuts the only link of two regions, whose ranks go on posting, or compute.
fn cut_link(seed: u64) -> Verdict {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), seed).await;
        let mut scene = Scene::without_trainers(lab, seed);
        scene.attach_all(1 << 20).await;
        scene.step(&[]).await;
        scene.lab.set_outage(true);
        let is_idle = scene.draw.below(2) == 0;
        let _operations = match is_idle {
            true => Vec::new(),
            false => scene.post_without(&[]).await,
        };
        scene.lab.sleep(if is_idle { SILENCE_TOLD_WITHIN } else { NEWS_TOLD_WITHIN }).await;
        if scene.draw.below(2) == 1 {
            scene.wait_up_to(CHECKED_WITHIN).await;
        }
        let culprits = scene.path_names(EAST, WEST);
        scene.verdict(CulpritKind::Link, culprits, "").await
    })
}

/// Cuts the link between two of three regions.
fn cut_pair(seed: u64) -> Verdict {
    simulate(async {
        let mut scene = Scene::of_three_regions(seed).await;
        let one = scene.draw_gateway();
        let other = GatewayId((one.0 + 1) % 3);
        scene.lab.set_outage_between(one, other, true);
        let _operations = scene.post_without(&[]).await;
        scene.lab.sleep(NEWS_TOLD_WITHIN).await;
        if scene.draw.below(2) == 1 {
            scene.wait_up_to(CHECKED_WITHIN).await;
        }
        let culprits = scene.path_names(one, other);
        scene.verdict(CulpritKind::Link, culprits, "").await
    })
}

/// Starts two regions over a link of 50 Mbit/s, whose ranks do some steps of 2 MiB; then the link gets
/// this part of its rate and this loss, and they do some more.
async fn worsen_link(seed: u64, part: u64, loss: Fraction, found: &str) -> Verdict {
    let gateway = MeshGateway::with_port(1, mbit(1000));
    let mut mesh = Mesh::of_gateways(vec![vec![gateway]; 2]);
    mesh.links[0].rate = mbit(50);
    let (rate, rtt) = (mesh.links[0].rate.bits_per_second(), mesh.links[0].rtt);
    let lab = mesh.start(seed).await;
    let mut scene = Scene::without_trainers(lab, seed);
    scene.attach_all(32 << 20).await;
    for round in 0..10 + scene.draw.below(2) {
        if round == 4 {
            let rate = units::BitRate::from_bits_per_second(rate / part);
            let spec = LinkSpec::new(rate, Span::from_ns(rtt.ns() / 2)).expect("a link");
            let [a, b] = [EAST, WEST].map(|id| simulated_address(id).ip());
            for (from, to) in [(a, b), (b, a)] {
                scene.lab.net.set_spec(from, to, spec.with_loss(loss)).expect("a link");
            }
        }
        for operation in &mut scene.post_of(LONG_ELEMENTS, &[]).await {
            operation.ready().await.expect("a result");
        }
    }
    let culprits = scene.path_names(EAST, WEST);
    scene.verdict(CulpritKind::Link, culprits, found).await
}

/// Divides the rate of a link by two or three.
fn slow_link(seed: u64) -> Verdict {
    simulate(worsen_link(seed, 2 + seed % 2, Fraction::default(), "measures"))
}

/// Makes a link lose 3 % of the packets or more.
fn lossy_link(seed: u64) -> Verdict {
    simulate(worsen_link(seed, 1, ppm(30_000 + 10_000 * (seed as u32 % 3)), "loses"))
}

/// Shuts the ports of some of west's four addresses.
fn shut_ports(seed: u64) -> Verdict {
    simulate(async {
        let lab = Lab::start(&Shape { carriers: 4, ..Shape::new(1, 1) }, seed).await;
        let mut scene = Scene::without_trainers(lab, seed);
        for lane in 0..1 + scene.draw.below(4) as u8 {
            scene.lab.net.set_muted(carrier_address(WEST, 3 - lane), true);
        }
        scene.lab.sleep(CHECKED_WITHIN).await;
        let culprits = scene.path_names(EAST, WEST);
        scene.verdict(CulpritKind::Link, culprits, "port").await
    })
}

/// Lets a path carry shorter packets than the fabric's MTU.
fn narrow_path(seed: u64) -> Verdict {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), seed).await;
        let mut scene = Scene::without_trainers(lab, seed);
        let bytes = 1280 + scene.draw.below(200) as u32;
        let [a, b] = [EAST, WEST].map(|id| simulated_address(id).ip());
        for (from, to) in [(a, b), (b, a)] {
            scene.lab.net.set_mtu(from, to, bytes).expect("a link");
        }
        scene.lab.sleep(CHECKED_WITHIN).await;
        let culprits = scene.path_names(EAST, WEST);
        scene.verdict(CulpritKind::Link, culprits, format!("{bytes} bytes")).await
    })
}

//! Fabrics that an operator applies while gateways run: rates, round trips and losses change between two
//! steps at all gateways or at none, and no step is interrupted.

use super::recovery::lost_regions::{BACK_WITHIN, averages, cut_off, wait_for_world};
use super::recovery::regions_that_leave::{NEXT_STEP_WITHIN, told_between_steps, train_all};
use gateway::certs::CertificateAuthority;
use gateway::client::Client;
use gateway::events::{FabricChange, FabricChangeError, FabricChangeReport, FabricRefusal};
use gateway::observe::problem_cause::ProblemCause;
use gateway::wan::connect::tls::FabricSignatureError;
use hier_collectives::ids::GatewayId;
use hier_collectives::membership::FabricVersion;
use hier_collectives::topology::QuorumSpec;
use scenarios::lab::credentials::CredentialKind;
use scenarios::lab::fabric_text::sign_as_deployment;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, mbit, ppm, simulate};
use units::{ByteCount, Span};

const ARENA: u64 = 1 << 20;
const A: GatewayId = GatewayId(0);
const B: GatewayId = GatewayId(1);
const C: GatewayId = GatewayId(2);
/// 25 s: a gateway that is cut off is lost after 15 s, then the others agree on a term, and one more epoch
/// begins.
const CHANGED_WITHOUT_ONE_WITHIN: Span = Span::from_secs(25);

/// Three regions of two, one and one ranks, of which two may go on.
fn before() -> Mesh {
    let memory = ByteCount::new(512 << 20);
    Mesh { quorum: QuorumSpec::Majority, memory, ..Mesh::of_ranks(&[2, 1, 1]) }
}

/// The same regions, of which two links are slower, and one is longer.
fn after() -> Mesh {
    let mut mesh = before();
    (mesh.links[0].rate, mesh.links[0].rtt) = (mbit(300), Span::from_ms(90));
    mesh.links[1].rate = mbit(400);
    Mesh { loss: ppm(500), ..mesh }
}

/// Asks a gateway to put a fabric in force.
async fn apply(
    lab: &Lab,
    at: GatewayId,
    change: FabricChange,
) -> Result<FabricChangeReport, FabricChangeError> {
    lab.gateways[usize::from(at.0)].change_fabric(change).await.expect("it runs")
}

/// Returns the version in force at each gateway that runs.
async fn versions(lab: &Lab) -> Vec<u64> {
    let mut versions = Vec::new();
    for id in lab.fabric.gateway_ids() {
        versions.push(lab.status(id).await.fabric_version.version);
    }
    versions
}

/// Asserts that a gateway runs with the links of a mesh.
async fn assert_links_of(lab: &Lab, id: GatewayId, mesh: &Mesh) {
    let fabric = mesh.fabric();
    let here = fabric.gateway(id).region;
    for link in lab.status(id).await.links {
        let ends = link.between.join("-");
        let of_mesh = fabric
            .links()
            .iter()
            .find(|of| [of.a, of.b].map(|end| &*fabric.region(end).name).join("-") == ends);
        let of_mesh = of_mesh.expect("the same links");
        assert_eq!(link.rate_bits_per_second, of_mesh.rate.bits_per_second(), "{id} {ends}");
        assert_eq!(link.rtt_ms, of_mesh.rtt.as_secs_f64() * 1000.0, "{id} {ends}");
        assert_eq!(link.loss, of_mesh.loss.as_f64(), "{id} {ends}");
    }
    for (peer, link) in &lab.gateways[usize::from(id.0)].peers {
        let of_mesh = fabric.link(here, fabric.gateway(*peer).region).expect("a link");
        assert_eq!((link.link().rate, link.link().rtt), (of_mesh.rate, of_mesh.rtt), "{id} {peer}");
        assert_eq!(link.pair_pacer.link_limit(), of_mesh.rate, "{id} {peer}");
    }
}

#[test]
fn a_fabric_comes_into_force_between_two_steps() {
    for asked in [A, B, C] {
        simulate(async {
            let lab = before().start(7).await;
            let clients = lab.clients(ARENA).await;
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            let (pause, epoch) = (Span::from_ms(20), clients[0].epoch().0);
            let asking = async {
                lab.sleep(Span::from_secs(4)).await;
                let changes = apply(&lab, asked, after().fabric_change(1)).await.expect("good");
                let wanted = [
                    "link a-b: rate 1 Gbit/s to 300 Mbit/s, rtt 30 ms to 90 ms, loss 0 % to 0.05 %",
                    "link a-c: rate 1 Gbit/s to 400 Mbit/s, loss 0 % to 0.05 %",
                    "link b-c: loss 0 % to 0.05 %",
                ];
                assert_eq!(changes.changes, wanted);
            };
            assert_eq!(versions(&lab).await, [0; 3]);
            let (told, ()) = tokio::join!(train_all(&lab, &all, 0..1000, pause), asking);
            let ended = lab.host.now();
            let words = "version 1 of the fabric comes into force";
            let next = told_between_steps(&told, words, 1.5);
            let everybody: Vec<&Client> = clients.iter().collect();
            wait_for_world(&lab, &everybody, epoch, 4, NEXT_STEP_WITHIN).await;
            assert!(lab.host.now().since(ended) < NEXT_STEP_WITHIN);
            assert_eq!(versions(&lab).await, [1; 3]);
            for id in [A, B, C] {
                assert_links_of(&lab, id, &after()).await;
            }
            let done = train_all(&lab, &all, next..next + 20, pause).await;
            assert!(
                done.iter()
                    .all(|(failed, seen)| failed.is_none() && seen.iter().all(|it| *it == 1.5)),
                "{done:?}"
            );
        });
    }
}

#[test]
fn a_gateway_that_was_away_gets_the_fabric_from_others() {
    simulate(async {
        let mut lab = before().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        let epoch = clients[0].epoch().0;
        cut_off(&lab, C, true);
        apply(&lab, A, after().fabric_change(1)).await.expect("good");
        lab.sleep(Span::from_secs(2)).await;
        assert_eq!(versions(&lab).await, [0; 3], "one of the three does not hold it");
        let waiting = lab.status(A).await.fabric_version.waiting.expect("it waits");
        assert_eq!((waiting.version, waiting.missing), (1, vec!["c-0".to_owned()]));
        let left: Vec<&Client> = clients[..3].iter().collect();
        wait_for_world(&lab, &left, epoch, 3, CHANGED_WITHOUT_ONE_WITHIN).await;
        assert_eq!(versions(&lab).await, [1, 1, 0]);
        assert_eq!(averages(&all[..3]).await, vec![Ok(1.0); 3]);
        let epoch = clients[0].epoch().0;
        cut_off(&lab, C, false);
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, epoch, 4, BACK_WITHIN).await;
        assert_eq!(versions(&lab).await, [1; 3]);
        assert_links_of(&lab, C, &after()).await;
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        // Its file has no version, and the others tell it again.
        let epoch = clients[0].epoch().0;
        lab.restart(C, CredentialKind::Valid).await;
        let back = lab.client(3, ARENA).await;
        let everybody = [&clients[0], &clients[1], &clients[2], &back];
        wait_for_world(&lab, &everybody, epoch, 4, BACK_WITHIN).await;
        assert_eq!(versions(&lab).await, [1; 3]);
        assert_links_of(&lab, C, &after()).await;
    });
}

/// Returns the texts of a gateway's problems with fabrics, and whether they keep it from being ready.
async fn fabric_problems(lab: &Lab, id: GatewayId) -> Vec<(String, bool)> {
    let problems = lab.status(id).await.problems.into_iter();
    let of_fabrics = problems.filter(|problem| problem.cause == ProblemCause::Fabric);
    of_fabrics.map(|problem| (problem.to_string(), problem.blocks)).collect()
}

#[test]
fn a_gateway_with_another_fabric_stops_nobody() {
    for (other, of_others, average) in [(A, 2..4, 2.5), (C, 0..3, 1.0)] {
        simulate(async {
            let mut lab = before().start(7).await;
            let mut clients = lab.clients(ARENA).await;
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
            let epoch = clients[2].epoch().0;
            // Others have lost it by the time at which it is back.
            let own = FabricVersion { number: 9, digest: [9; 32] };
            lab.restart_with_version(other, own).await;
            let others: Vec<&Client> = clients[of_others.clone()].iter().collect();
            let size = others.len() as u32;
            wait_for_world(&lab, &others, epoch, size, CHANGED_WITHOUT_ONE_WITHIN).await;
            let (began, numbered) = (clients[2].epoch(), (of_others.start as u32..).zip(others));
            let numbered: Vec<(u32, &Client)> = numbered.collect();
            for _ in 0..10 {
                lab.sleep(Span::from_secs(3)).await;
                assert_eq!(averages(&numbered).await, vec![Ok(average); numbered.len()]);
            }
            assert_eq!(clients[2].epoch(), began, "nobody is disturbed");
            let name = lab.fabric.gateway(other).name.clone();
            let found = fabric_problems(&lab, B).await;
            let words = format!("gateway {name}: it has version 9 (090909090909) of the fabric");
            assert!(found.len() == 1 && found[0].0.starts_with(&words) && !found[0].1, "{found:?}");
            let found = fabric_problems(&lab, other).await;
            assert!(found.len() == 2 && found.iter().all(|(_, blocks)| *blocks), "{found:?}");
            let words = "this gateway has version 9 (090909090909)";
            assert!(found.iter().all(|(text, _)| text.contains(words)), "{found:?}");
            // It is taken in once it has the fabric of the others.
            lab.restart_with_version(other, FabricVersion::default()).await;
            for rank in lab.fabric.gateway(other).ranks.clone() {
                clients[rank as usize] = lab.client(rank, ARENA).await;
            }
            let everybody: Vec<&Client> = clients.iter().collect();
            wait_for_world(&lab, &everybody, began.0, 4, BACK_WITHIN).await;
            assert_eq!(fabric_problems(&lab, B).await, []);
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        });
    }
}

#[test]
fn old_forged_and_other_fabrics_change_nothing() {
    simulate(async {
        let lab = before().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        apply(&lab, A, after().fabric_change(5)).await.expect("good");
        let epoch = clients[0].epoch().0;
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, epoch, 4, NEXT_STEP_WITHIN).await;
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        let epoch = clients[0].epoch().0;
        // Another gateway refuses an older one, too.
        for version in [1, 4] {
            let refused = apply(&lab, B, before().fabric_change(version)).await;
            assert!(matches!(refused, Err(FabricChangeError::Old(_))), "{refused:?}");
        }
        let good = before().fabric_change(6);
        let outsider = CertificateAuthority::generate("sim").expect("a CA");
        let forged = outsider.sign_fabric(&good.text).expect("signed").to_string();
        let altered = good.text.replace("1 Gbit/s", "2 Gbit/s");
        for (text, signature) in [(good.text.clone(), forged), (altered, good.signature.clone())] {
            let refused = apply(&lab, C, FabricChange { text, signature, ..good.clone() }).await;
            let refused = refused.expect_err("forged");
            let wanted = FabricRefusal::Signature(FabricSignatureError::Other);
            assert_eq!(refused, FabricChangeError::Refused(wanted));
        }
        // Nor is another text of the version that is in force taken.
        let refused = apply(&lab, B, before().fabric_change(5)).await;
        assert_eq!(refused, Err(FabricChangeError::OtherText(5)));
        // A check changes nothing.
        let dry = FabricChange { dry_run: true, ..good.clone() };
        assert_eq!(apply(&lab, A, dry).await.expect("good").changes.len(), 3);
        // Each key that needs a restart is named, with its line.
        let text = good.text.replace("quorum = \"majority\"", "quorum = 3");
        let text =
            text.replace("mtu = 1500", "mtu = 1400").replace("10.0.0.2:7400", "10.0.0.9:7400");
        let text = text.replace("[link.a-c]", "[link.a-c]\ncontroller = \"cubic\"");
        let signature = sign_as_deployment(&text);
        let refused = apply(&lab, A, FabricChange { text, signature, ..good }).await;
        let Err(FabricChangeError::Refused(FabricRefusal::RestartNeeded(keys))) = refused else {
            panic!("{refused:?}");
        };
        let keys: Vec<&str> = keys.iter().filter_map(|key| key.split('`').nth(1)).collect();
        let wanted = ["mtu", "region.b.gateway.b-0.wan", "link.a-c.controller", "quorum"];
        assert_eq!(keys, wanted);
        lab.sleep(Span::from_secs(30)).await;
        assert_eq!(versions(&lab).await, [5; 3]);
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        assert_eq!(clients[0].epoch().0, epoch, "nobody was interrupted");
    });
}

#[test]
fn a_quorum_of_all_regions_refuses_a_fabric() {
    simulate(async {
        let mesh = Mesh::of_ranks(&[1, 1, 1]);
        let lab = mesh.start(7).await;
        let refused = apply(&lab, A, mesh.fabric_change(1)).await.expect_err("no terms");
        assert!(refused.to_string().contains("write `quorum`"), "{refused}");
    });
}

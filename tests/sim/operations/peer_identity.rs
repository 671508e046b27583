//! A gateway with invalid credentials, or without a version in common, is refused, and both sides log
//! the reason. With valid ones it is admitted.

use gateway::client::AttachError;
use gateway::observe::status::PeerState;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::wire::WIRE_VERSION;
use scenarios::collectives::batch::{Case, succeeds};
use scenarios::lab::credentials::CredentialKind;
use scenarios::observe::log_capture::Log;
use scenarios::{EAST, Lab, Shape, WEST, simulate};
use units::Span;

/// Checks that no gateway is in an epoch, and that trainers are refused.
async fn nobody_met(lab: &Lab) {
    for (gateway, rank) in [(EAST, 0), (WEST, 1)] {
        let attached = lab.attach(rank, 1 << 20, Span::from_secs(40)).await;
        assert!(matches!(attached, Err(AttachError::NoEpoch(_))), "{attached:?}");
        let status = lab.status(gateway).await;
        assert_eq!(status.jobs[0].epoch, None, "{status:?}");
        assert_eq!((status.peers[0].state, status.peers[0].lanes_up), (PeerState::Connecting, 0));
    }
}

/// Gateway `bad` presents `credentials`. East dials, so its log and status must show a failed dial,
/// and west's log a refused connection, both with the reason.
fn refused(bad: GatewayId, credentials: CredentialKind, reason: &str) {
    let log = Log::default();
    let _logging = log.listen();
    simulate(async {
        let shown = if bad == EAST {
            [credentials, CredentialKind::Valid]
        } else {
            [CredentialKind::Valid, credentials]
        };
        let mut lab = Lab::start_with(&Shape::new(1, 1), 1, shown).await;
        nobody_met(&lab).await;
        let text = log.text();
        let east = "lane 0 to gateway west-0 is not up yet: ";
        let west = "lane 0: refused a connection from 10.0.0.1:49152: ";
        let west_later = "lane 0: refused 10.0.0.1:49152: ";
        for sides in [&[east][..], &[west, west_later]] {
            let says =
                |line: &str| sides.iter().any(|side| line.contains(side)) && line.contains(reason);
            assert!(text.lines().any(says), "{bad} {credentials:?}: no {sides:?} in {text}");
        }
        for gateway in [EAST, WEST] {
            let status = lab.status(gateway).await;
            let problem = status.peers[0].problem.clone().unwrap_or_default();
            assert!(problem.contains(reason), "{bad} {credentials:?}: {gateway}: {problem}");
            let mut blocking = status.problems.iter().filter(|problem| problem.blocks);
            let repeated = blocking.any(|problem| problem.found.contains(reason));
            assert!(repeated, "{bad} {credentials:?}: {status:?}");
        }
        lab.restart(bad, CredentialKind::Valid).await;
        let clients = lab.clients(1 << 20).await;
        succeeds(&clients, 1, &Case::new(ReduceOp::Sum, Dtype::F32, 1003, 1)).await;
        assert!(lab.status(WEST).await.jobs[0].epoch.is_some());
    });
}

#[test]
fn a_certificate_of_another_authority() {
    let reason = "invalid peer certificate: UnknownIssuer";
    refused(EAST, CredentialKind::OtherAuthority, reason);
    refused(WEST, CredentialKind::OtherAuthority, reason);
}

#[test]
fn an_expired_certificate() {
    refused(EAST, CredentialKind::Expired, "certificate expired");
    refused(WEST, CredentialKind::Expired, "certificate expired");
}

#[test]
fn a_certificate_with_the_other_regions_name() {
    let reason = "`east-0.sim.landbridge`, but its certificate is for `west-0.sim.landbridge`";
    refused(EAST, CredentialKind::OtherName, reason);
    let reason = "only valid for DnsName(\"east-0.sim.landbridge\")";
    refused(WEST, CredentialKind::OtherName, reason);
}

#[test]
fn another_idea_of_the_fabric() {
    refused(EAST, CredentialKind::OtherFabric, "its fabric differs from ours");
    refused(WEST, CredentialKind::OtherFabric, "its fabric differs from ours");
}

#[test]
fn gateways_without_a_common_version_name_the_older() {
    let (own, next) = (WIRE_VERSION.0, WIRE_VERSION.0 + 1);
    for (newer, [from, to]) in [(EAST, ["west-0", "east-0"]), (WEST, ["east-0", "west-0"])] {
        let reason = format!(
            "gateway {from} speaks wire version {own}, gateway {to} {next}: upgrade gateway {from} first"
        );
        refused(newer, CredentialKind::NextVersion, &reason);
    }
}

#[test]
fn gateways_use_the_highest_version_of_both() {
    let (both, own) = (CredentialKind::BothVersions, CredentialKind::Valid);
    let (version, next) = (WIRE_VERSION.0, WIRE_VERSION.0 + 1);
    for (shown, chosen) in [([both, own], version), ([own, both], version), ([both, both], next)] {
        simulate(async {
            let lab = Lab::start_with(&Shape::new(1, 1), 1, shown).await;
            let clients = lab.clients(1 << 20).await;
            succeeds(&clients, 1, &Case::new(ReduceOp::Sum, Dtype::F32, 1003, 1)).await;
            for gateway in [EAST, WEST] {
                let found = lab.status(gateway).await.peers[0].wire_version;
                assert_eq!(found, Some(chosen), "{shown:?}: {gateway}");
            }
        });
    }
}

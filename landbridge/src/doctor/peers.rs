//! Checks of the path to each peer: UDP ports, MTU, RTT, rate.

use super::finding::Finding;
use gateway::config::{GatewayConfig, LanePeer, RegionFile};
use gateway::host::RealHost;
use gateway::observe::readiness::LONG_RTT_REMEDY;
use gateway::wan::connect::path_probe::path_check::{
    CheckedPaths, PathCheckFault, PathCheckFindings, check_path, describe_path_check_ports,
};
use gateway::wan::connect::path_probe::{
    ExpectedPath, PathMeasurement, PathProbeError, ProbeTarget, measure_path_by_probe,
};
use gateway::wan::connect::peer_addresses::{PeerLocation, UNRESOLVED_NAME_REMEDY};
use gateway::wan::connect::tls::{Credentials, gateway_identity_dns_name};
use gateway::wan::link::rtt_alarm::is_rtt_above_fabric;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{Fabric, Link};
use quinn::Endpoint;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use units::Span;

/// Checks the paths to all peers to which `gateway` has lanes. Peers are measured one after the
/// other, since they would share the link.
pub(super) async fn diagnose_peers(
    region: &RegionFile,
    gateway: &GatewayConfig,
    credentials: &Credentials,
) -> Vec<Finding> {
    let peers = region.lane_peers(gateway);
    if peers.is_empty() {
        let found = "this gateway has lanes to no other";
        return vec![Finding::ok("UDP both ways", "all peers", found).into_skipped()];
    }
    let mut findings = Vec::new();
    for peer in &peers {
        findings.extend(diagnose_peer(region, gateway.id, peer, credentials).await);
    }
    findings
}

/// Checks the UDP ports of a peer and the MTU of the path to it. To a peer of another region it
/// then measures the path, on the first lane whose port answers.
async fn diagnose_peer(
    region: &RegionFile,
    me: GatewayId,
    peer: &LanePeer,
    credentials: &Credentials,
) -> Vec<Finding> {
    let file = region.fabric();
    let fabric = file.fabric();
    let name = &fabric.gateway(peer.id).name;
    let Some(theirs) = &peer.theirs else {
        let found = "the fabric has no `wan` for it: it dials, and is not tried from here";
        return vec![Finding::ok("UDP both ways", name, found).into_skipped()];
    };
    let subject = format!("{name} at {}", theirs.first());
    let location = PeerLocation::new(theirs.clone());
    location.refresh(&RealHost, peer.own.first().ip()).await;
    let Some(resolved) = location.now() else {
        let alike = || "two of its host names have one address".to_owned();
        let found = location.problem().unwrap_or_else(alike);
        let finding = Finding::ok("host name", subject, found);
        return vec![finding.into_failure(UNRESOLVED_NAME_REMEDY)];
    };
    let paths = peer.lane_paths(fabric, &resolved);
    let checked = match check_path(&RealHost, &paths).await {
        Ok(checked) => checked,
        Err(error) => {
            let advice = "behind NAT, set `listen` to an address of this host";
            let found = format!("cannot send from {}: {error}", peer.own.first().ip());
            return vec![Finding::ok("UDP both ways", subject, found).into_failure(advice)];
        }
    };
    let pinned = file.mtu_pinned().then(|| fabric.mtu());
    let mut findings = describe_diagnosed_peer_ports(&subject, &checked);
    let is_narrow = |fault: &PathCheckFault| matches!(fault, PathCheckFault::TooNarrow { .. });
    let narrow = checked.faults(pinned).into_iter().find(is_narrow);
    if let (Some(narrow), Some(rtt)) = (&narrow, checked.rtt) {
        let answers = format!("ports answer in {}", rtt.rounded());
        findings.push(Finding::ok("UDP both ways", &subject, answers));
        let finding = Finding::ok("MTU", &subject, narrow);
        findings.push(finding.into_failure(narrow.remedy()));
        return findings;
    }
    match &peer.link {
        Some(link) => {
            let path = MeasuredPath { subject, paths, checked, link, pinned };
            findings.extend(diagnose_path_to_peer(fabric, me, peer, path, credentials).await);
        }
        None => findings.extend(describe_diagnosed_peer_lan(&subject, &paths, &checked)),
    }
    findings
}

/// Returns the finding on the ports of a peer of which some answer; none if no port answers.
fn describe_diagnosed_peer_ports(subject: &str, checked: &PathCheckFindings) -> Vec<Finding> {
    if checked.answering.is_empty() {
        return vec![];
    }
    let shut = |fault: PathCheckFault| {
        Finding::ok("UDP ports", subject, &fault).into_warning(fault.remedy())
    };
    let shut: Vec<Finding> = checked.faults(None).into_iter().map(shut).collect();
    if shut.is_empty() {
        let found = format!("all answer: {}", describe_path_check_ports(&checked.answering));
        return vec![Finding::ok("UDP ports", subject, found)];
    }
    shut
}

/// Returns the findings on the path to a peer of the same region, which is not measured.
fn describe_diagnosed_peer_lan(
    subject: &str,
    paths: &CheckedPaths,
    checked: &PathCheckFindings,
) -> Vec<Finding> {
    let (Some(rtt), Some(mtu)) = (checked.rtt, checked.mtu) else {
        return vec![explain_diagnosed_peer_silence(subject, paths, checked)];
    };
    let answers = format!("ports answer in {}", rtt.rounded());
    let carried = format!("{mtu} bytes; no more was tried");
    vec![Finding::ok("UDP both ways", subject, answers), Finding::ok("MTU", subject, carried)]
}

/// The path to a peer of another region, to be measured.
struct MeasuredPath<'l> {
    subject: String,
    paths: CheckedPaths,
    /// Ports and MTU as checked.
    checked: PathCheckFindings,
    link: &'l Link,
    /// The MTU that the fabric file states, if it does.
    pinned: Option<u16>,
}

/// Measures the path to a peer of another region, on the first lane whose port answers, or else on
/// the first lane. The expected rate is the least of the link's and the two ports'.
async fn diagnose_path_to_peer(
    fabric: &Fabric,
    me: GatewayId,
    peer: &LanePeer,
    path: MeasuredPath<'_>,
    credentials: &Credentials,
) -> Vec<Finding> {
    let MeasuredPath { subject, paths, checked, link, pinned } = path;
    let lanes = paths.lanes.iter().copied();
    let answering = lanes.clone().find(|(_, lane)| checked.answering.contains(lane));
    let Some((own, address)) = answering.or_else(|| lanes.clone().next()) else { return vec![] };
    // The system chooses the port: the gateway may be using its own.
    let endpoint = match Endpoint::client(SocketAddr::new(own, 0)) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let found = format!("cannot bind {own}: {error}");
            let finding = Finding::ok("UDP both ways", subject, found);
            return vec![finding.into_failure("fix the cause given above")];
        }
    };
    let port = |id: GatewayId| fabric.gateway(id).wan;
    let rates = port(me).map(|wan| wan.egress).into_iter();
    let rates = rates.chain(port(peer.id).map(|wan| wan.ingress));
    let rate = rates.fold(link.rate, |least, rate| least.min(rate));
    let want = ExpectedPath { rate, rtt: link.rtt, mtu: fabric.mtu() };
    let name = gateway_identity_dns_name(&fabric.gateway(peer.id).name, fabric.name());
    let target = ProbeTarget { address, dns_name: &name };
    let measured = measure_path_by_probe(&endpoint, credentials, target, want).await;
    endpoint.close(quinn::VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
    match measured {
        Ok(measured) => diagnose_peer_against_fabric(&subject, link, (want, pinned), &measured),
        Err(error) => vec![diagnose_peer_probe_failure(&subject, (&paths, &checked), &error)],
    }
}

/// Compares RTT and rate of a measured path with its link, and its MTU with that of the fabric
/// file, if the file states one. Warns of an RTT well above the fabric's, and of a rate below
/// [`RATE_WARNING_FRACTION`] of it.
fn diagnose_peer_against_fabric(
    subject: &str,
    link: &Link,
    (want, pinned): (ExpectedPath, Option<u16>),
    measured: &PathMeasurement,
) -> Vec<Finding> {
    let time = |duration: Duration| Span::from_secs_f64(duration.as_secs_f64()).rounded();
    let handshake = format!("QUIC handshake in {}", time(measured.handshake));
    let mut findings = vec![Finding::ok("UDP both ways", subject, handshake)];
    let is_far_shorter = measured.rtt.mul_f64(RTT_FAR_SHORTER_FACTOR) < link.rtt.duration();
    let shorter = if is_far_shorter { "; a shorter path is no fault" } else { "" };
    let rtt = format!("{}, fabric says {}{shorter}", time(measured.rtt), link.rtt);
    let rtt = Finding::ok("RTT", subject, rtt);
    findings.push(
        if is_rtt_above_fabric(Span::from_secs_f64(measured.rtt.as_secs_f64()), link.rtt) {
            rtt.into_warning(LONG_RTT_REMEDY)
        } else {
            rtt
        },
    );
    findings.push(diagnose_peer_mtu(subject, pinned, measured.mtu));
    let sent = format!("sent {}", measured.sent.rounded());
    findings.push(match measured.rate {
        None => Finding::ok("rate", subject, format!("{sent}, not all received in time"))
            .into_warning("try again while no collective is in progress"),
        Some(rate) => {
            let (got, wanted) = (rate.bits_per_second() as f64, want.rate.bits_per_second() as f64);
            let found = format!("{sent} at {}, fabric says {}", rate.rounded(), want.rate);
            let finding = Finding::ok("rate", subject, found);
            if got < RATE_WARNING_FRACTION * wanted {
                finding.into_warning("lower `rate`, `egress` or `ingress`, or fix the path")
            } else {
                finding
            }
        }
    });
    findings
}

/// Returns the finding about the MTU of a path that carries packets of `carried` IP bytes: a failure
/// if the fabric file states more.
fn diagnose_peer_mtu(subject: &str, stated: Option<u16>, carried: u16) -> Finding {
    let finding = |found: String| Finding::ok("MTU", subject, found);
    match stated {
        None => finding(format!("{carried} bytes, and maybe more: lanes find what gets through")),
        Some(stated) if carried < stated => {
            let narrow = PathCheckFault::TooNarrow { carried, pinned: stated };
            finding(narrow.to_string()).into_failure(narrow.remedy())
        }
        Some(stated) => finding(format!("{carried} bytes, fabric says {stated}")),
    }
}

/// Turns the error of a path probe into a finding with advice. The arguments are the paths of all
/// lanes to the peer, and the check of them.
fn diagnose_peer_probe_failure(
    subject: &str,
    (paths, checked): (&CheckedPaths, &PathCheckFindings),
    error: &PathProbeError,
) -> Finding {
    let finding = Finding::ok("UDP both ways", subject, error);
    match error {
        PathProbeError::NoAnswer(_) if checked.answering.is_empty() => {
            explain_diagnosed_peer_silence(subject, paths, checked)
        }
        PathProbeError::NoAnswer(_) => {
            let found = "ports answer short packets, but no QUIC handshake comes to an end";
            Finding::ok("UDP both ways", subject, found).into_failure(
                "the way back may carry less than the way there: run the doctor at the peer, and \
                 set the lower `mtu` in the fabric",
            )
        }
        PathProbeError::Refused(why) => match why.rsplit_once("; ") {
            Some((why, remedy)) => {
                let found = format!("refused: {why}");
                Finding::ok("UDP both ways", subject, found).into_failure(remedy)
            }
            None => finding
                .into_failure("compare both sides' certificates and CA: run the doctor there too"),
        },
        PathProbeError::Local(_) => finding.into_failure("fix the cause given above"),
    }
}

/// Returns the finding that no port of a peer answers. Where the peer's host answers by ICMP that
/// nothing listens, the advice is to start the peer.
fn explain_diagnosed_peer_silence(
    subject: &str,
    paths: &CheckedPaths,
    checked: &PathCheckFindings,
) -> Finding {
    let mut lanes = paths.lanes.iter();
    if lanes
        .next()
        .is_some_and(|(own, lane)| diagnosed_peer_port_unreachable(*lane, *own, paths.rtt))
    {
        let found = "the host answers that nothing listens there";
        return Finding::ok("UDP both ways", subject, found)
            .into_failure("the peer is not running: start it with `landbridge run`");
    }
    let silent = PathCheckFault::Silent { tried: checked.silent.clone() };
    Finding::ok("UDP both ways", subject, &silent).into_failure(silent.remedy())
}

/// Returns true if the host of a peer answers a datagram with ICMP port unreachable, so no gateway
/// listens.
fn diagnosed_peer_port_unreachable(address: SocketAddr, bind: IpAddr, rtt: Span) -> bool {
    let ask = || {
        let socket = UdpSocket::bind(SocketAddr::new(bind, 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(ICMP_TIMEOUT_MIN.max(2 * rtt.duration())))?;
        socket.send(&[0])?;
        socket.recv(&mut [0])
    };
    ask().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// 2 times the measured RTT: where the fabric states a longer RTT than that, the report adds that a
/// shorter path is no fault. Windows are then larger than the path needs. The factor is chosen.
const RTT_FAR_SHORTER_FACTOR: f64 = 2.0;

/// 0.8 of the configured rate: `landbridge doctor` warns of a measured rate below this fraction.
/// The fraction is chosen: headers, retransmissions and a single core take some of the rate.
const RATE_WARNING_FRACTION: f64 = 0.8;

/// 1 s: the least time for which `landbridge doctor` waits for an ICMP port unreachable from a
/// peer's host. Over a long path it waits for two round trips. Then the peer's ports are reported
/// as silent.
const ICMP_TIMEOUT_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::finding::FindingVerdict;
    use super::*;
    use hier_collectives::ids::RegionId;
    use units::{BitRate, ByteCount, Fraction};

    const RATE: BitRate = BitRate::from_bits_per_second(500_000_000);

    /// Returns the verdicts on RTT, MTU and rate over a link of 80 ms and 500 Mbit/s.
    fn verdicts(rtt_ms: u64, mtu: u16, rate: Option<u64>) -> [FindingVerdict; 3] {
        let rtt = Span::from_ms(80);
        let (a, b) = (RegionId(0), RegionId(1));
        let link = Link { a, b, rate: RATE, rtt, loss: Fraction::default() };
        let measured = PathMeasurement {
            handshake: Duration::from_millis(2 * rtt_ms),
            rtt: Duration::from_millis(rtt_ms),
            mtu,
            sent: ByteCount::new(1 << 20),
            rate: rate.map(|mbit| BitRate::from_bits_per_second(mbit * 1_000_000)),
        };
        let want = ExpectedPath { rate: RATE, rtt, mtu: 1500 };
        let findings = diagnose_peer_against_fabric("west-0", &link, (want, Some(1500)), &measured);
        ["RTT", "MTU", "rate"].map(|check| {
            let finding = findings.iter().find(|finding| finding.check == check);
            let finding = finding.expect("judged");
            assert_eq!(
                finding.advice.is_some(),
                finding.verdict != FindingVerdict::Ok,
                "{finding:?}"
            );
            finding.verdict
        })
    }

    #[test]
    fn a_path_worse_than_the_fabric_says_is_reported() {
        use FindingVerdict::{Failed, Ok, Warning};
        assert_eq!(verdicts(80, 1500, Some(480)), [Ok, Ok, Ok]);
        // A quarter and 2 ms above; a fifth below.
        assert_eq!(verdicts(102, 1500, Some(400)), [Ok, Ok, Ok]);
        assert_eq!(verdicts(103, 1500, Some(399)), [Warning, Ok, Warning]);
        assert_eq!(verdicts(80, 1499, None), [Ok, Failed, Warning]);
    }
    #[test]
    fn an_mtu_is_judged_only_where_the_fabric_states_one() {
        assert_eq!(diagnose_peer_mtu("west-0", None, 1400).verdict, FindingVerdict::Ok);
        assert_eq!(diagnose_peer_mtu("west-0", Some(1400), 1400).verdict, FindingVerdict::Ok);
        let narrow = diagnose_peer_mtu("west-0", Some(1500), 1400);
        assert_eq!(narrow.verdict, FindingVerdict::Failed);
        assert!(narrow.advice.is_some_and(|advice| advice.contains("set `mtu` to 1400")));
    }

    #[test]
    fn shut_ports_are_a_warning_that_names_them() {
        let port = |number: u16| SocketAddr::from(([192, 0, 2, 1], 7400 + number));
        let mut checked = PathCheckFindings {
            answering: vec![port(0)],
            silent: vec![port(1), port(2), port(3)],
            rtt: Some(Span::from_ms(80)),
            mtu: Some(1500),
        };
        let findings = describe_diagnosed_peer_ports("west-0", &checked);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].verdict, FindingVerdict::Warning);
        assert!(findings[0].found.ends_with("do not answer: 7401-7403 of 192.0.2.1"));
        checked.answering.append(&mut checked.silent);
        let findings = describe_diagnosed_peer_ports("west-0", &checked);
        assert_eq!((findings.len(), findings[0].verdict), (1, FindingVerdict::Ok));
        assert!(findings[0].found.ends_with("7400-7403 of 192.0.2.1"), "{findings:?}");
    }
}

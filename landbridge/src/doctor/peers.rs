//! Checks of the path to each peer: UDP both ways, RTT, MTU, rate.

use super::finding::Finding;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::wan::connect::addresses::LaneAddresses;
use gateway::wan::connect::path_probe::{
    ExpectedPath, PathMeasurement, ProbeError, ProbeTarget, measure_path,
};
use gateway::wan::connect::tls::{Credentials, gateway_dns_name};
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{Fabric, Link};
use quinn::Endpoint;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use units::Span;

/// Checks the path to every gateway with a WAN port in a region that has a link to the region of
/// `gateway`. Peers are measured one after the other, since they would share the link.
pub(super) async fn check_peers(
    region: &RegionFile,
    gateway: &GatewayConfig,
    credentials: &Credentials,
) -> Vec<Finding> {
    let fabric = region.fabric().fabric();
    let own = fabric.gateway(gateway.id);
    let (Some(port), Some(address)) = (own.wan, region.fabric().address(gateway.id)) else {
        let found = "this gateway has no WAN port";
        return vec![Finding::ok("UDP both ways", "all peers", found).into_skipped()];
    };
    // The system chooses the port: the gateway may be using its own.
    let listen = gateway.listen.as_ref().map_or(address, LaneAddresses::first);
    let bind = SocketAddr::new(listen.ip(), 0);
    let endpoint = match Endpoint::client(bind) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let advice = "behind NAT, set `listen` to an address of this host";
            let found = format!("cannot bind: {error}");
            return vec![Finding::ok("UDP both ways", bind.ip(), found).into_failure(advice)];
        }
    };
    let mut findings = Vec::new();
    for (id, address, link) in peers_to_check(region, gateway.id) {
        let peer = fabric.gateway(id);
        let ingress = peer.wan.map_or(port.ingress, |wan| wan.ingress);
        let rate = link.rate.min(port.egress).min(ingress);
        let want = ExpectedPath { rate, rtt: link.rtt, mtu: fabric.mtu() };
        let name = gateway_dns_name(&peer.name, fabric.name());
        let subject = format!("{} at {address}", peer.name);
        let target = ProbeTarget { address, dns_name: &name };
        match measure_path(&endpoint, credentials, target, want).await {
            Ok(measured) => findings.extend(compare_with_fabric(&subject, link, want, &measured)),
            Err(error) => {
                let way = (bind.ip(), address, link.rtt);
                findings.push(explain_probe_failure(&subject, way, &error))
            }
        }
    }
    endpoint.close(quinn::VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
    findings
}

/// Lists the gateways with a WAN address in regions linked to this one, with their addresses and
/// links.
fn peers_to_check(region: &RegionFile, own: GatewayId) -> Vec<(GatewayId, SocketAddr, &Link)> {
    let fabric: &Fabric = region.fabric().fabric();
    let here = fabric.gateway(own).region;
    let others = fabric.gateway_ids().filter_map(|id| {
        let link = fabric.link(here, fabric.gateway(id).region)?;
        Some((id, region.fabric().address(id)?, link))
    });
    others.collect()
}

/// Compares RTT, MTU and rate of a measured path with the configuration of its link.
fn compare_with_fabric(
    subject: &str,
    link: &Link,
    want: ExpectedPath,
    measured: &PathMeasurement,
) -> Vec<Finding> {
    let time = |duration: Duration| Span::from_secs_f64(duration.as_secs_f64()).rounded();
    let handshake = format!("QUIC handshake in {}", time(measured.handshake));
    let mut findings = vec![Finding::ok("UDP both ways", subject, handshake)];
    let rtt = format!("{}, fabric says {}", time(measured.rtt), link.rtt);
    let rtt = Finding::ok("RTT", subject, rtt);
    findings.push(
        if measured.rtt > link.rtt.duration().mul_f64(RTT_WARNING_FACTOR) + RTT_WARNING_MARGIN {
            rtt.into_warning(
                "set `rtt` of the link to the measured value: it sizes the congestion windows",
            )
        } else {
            rtt
        },
    );
    let mtu =
        Finding::ok("MTU", subject, format!("{} bytes, fabric says {}", measured.mtu, want.mtu));
    findings.push(if measured.mtu < want.mtu {
        let advice = format!("set `mtu` to {} in the fabric, or fix the path", measured.mtu);
        mtu.into_failure(advice)
    } else {
        mtu
    });
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

/// Turns the error of a path probe into a finding with advice. The path is that from an address of
/// this host to a peer, with its round trip by the fabric.
fn explain_probe_failure(
    subject: &str,
    (bind, address, rtt): (IpAddr, SocketAddr, Span),
    error: &ProbeError,
) -> Finding {
    let finding = Finding::ok("UDP both ways", subject, error);
    match error {
        ProbeError::NoAnswer(_) if answers_port_unreachable(address, bind, rtt) => {
            Finding::ok("UDP both ways", subject, "the host answers that nothing listens there")
                .into_failure("the peer is not running: start it with `landbridge run`")
        }
        ProbeError::NoAnswer(_) => finding.into_failure(format!(
            "start the peer with `landbridge run`, or allow UDP to ports {}-{} both ways",
            address.port(),
            address.port() + gateway::config::LANES_MAX - 1,
        )),
        ProbeError::Refused(_) => finding
            .into_failure("compare both sides' certificates and CA: run the doctor there too"),
        ProbeError::Local(_) => finding.into_failure("fix the cause given above"),
    }
}

/// Returns true if the host of a peer answers a datagram with ICMP port unreachable, so no gateway
/// listens.
fn answers_port_unreachable(address: SocketAddr, bind: IpAddr, rtt: Span) -> bool {
    let ask = || {
        let socket = UdpSocket::bind(SocketAddr::new(bind, 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(ICMP_TIMEOUT_MIN.max(2 * rtt.duration())))?;
        socket.send(&[0])?;
        socket.recv(&mut [0])
    };
    ask().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// 1.25 times the configured RTT, plus [`RTT_WARNING_MARGIN`]: `landbridge doctor` warns of a
/// longer RTT, since congestion windows are sized for the configured RTT.
const RTT_WARNING_FACTOR: f64 = 1.25;

/// 2 ms: added to [`RTT_WARNING_FACTOR`] times the configured RTT, so that scheduling delay on a
/// short link raises no warning.
const RTT_WARNING_MARGIN: Duration = Duration::from_millis(2);

/// 0.8 of the configured rate: `landbridge doctor` warns of a lower measured rate. Headers,
/// retransmissions and a single core take some of the rate.
const RATE_WARNING_FRACTION: f64 = 0.8;

/// 1 s: how long `landbridge doctor` waits for an ICMP port unreachable from a peer's host, or two
/// round trips where those are longer.
const ICMP_TIMEOUT_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;
    use hier_collectives::ids::RegionId;
    use units::{BitRate, ByteCount, Fraction};

    const RATE: BitRate = BitRate::from_bits_per_second(500_000_000);

    /// Returns the verdicts on RTT, MTU and rate over a link of 80 ms and 500 Mbit/s.
    fn verdicts(rtt_ms: u64, mtu: u16, rate: Option<u64>) -> [Verdict; 3] {
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
        let findings = compare_with_fabric(
            "west-0",
            &link,
            ExpectedPath { rate: RATE, rtt, mtu: 1500 },
            &measured,
        );
        ["RTT", "MTU", "rate"].map(|check| {
            let finding = findings.iter().find(|finding| finding.check == check);
            let finding = finding.expect("judged");
            assert_eq!(finding.advice.is_some(), finding.verdict != Verdict::Ok, "{finding:?}");
            finding.verdict
        })
    }

    #[test]
    fn a_path_worse_than_the_fabric_says_is_reported() {
        use Verdict::{Failed, Ok, Warning};
        assert_eq!(verdicts(80, 1500, Some(480)), [Ok, Ok, Ok]);
        // A quarter and 2 ms above; a fifth below.
        assert_eq!(verdicts(102, 1500, Some(400)), [Ok, Ok, Ok]);
        assert_eq!(verdicts(103, 1500, Some(399)), [Warning, Ok, Warning]);
        assert_eq!(verdicts(80, 1499, None), [Ok, Failed, Warning]);
    }
}

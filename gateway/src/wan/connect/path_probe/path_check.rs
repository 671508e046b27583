//! Checks which UDP ports of a peer answer, and how long the packets are that get to it.
//!
//! The engine calls [`check_path`] while lanes to a peer are missing, and `landbridge doctor` for
//! each peer. So the status of a gateway and the doctor say the same of a path.

use super::mtu_search::MtuSearch;
use super::version_probe::{VersionProbe, VersionProber};
use crate::host::Host;
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::packet_headers::{IPV4_UDP_HEADER_BYTES, packet_headers_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use units::Span;

/// 1,200 bytes of UDP payload: the shortest datagram that a QUIC server answers, which every path
/// of QUIC carries. The path check sends this length to each port, and longer ones from there on.
const SERVER_ANSWERS_BYTES_MIN: u16 = 1200;
/// 1,280 bytes: the least `mtu` that a fabric file may state. If a path carries less, the remedy
/// for the operator is to remove `mtu`, not to lower it.
const STATED_MTU_MIN: u16 = 1280;

/// The path from this gateway to the lanes of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedPaths {
    /// The addresses of lanes, in the order of lanes: of this gateway, and of the peer. Several lanes
    /// that have both in common count once.
    pub lanes: Vec<(IpAddr, SocketAddr)>,
    /// Round trip of the link.
    pub rtt: Span,
    /// The longest IP packet that lanes would send, in bytes.
    pub mtu: u16,
}

/// The results of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathCheckFindings {
    /// Ports of the peer that answered.
    pub answering: Vec<SocketAddr>,
    /// Ports of the peer that did not answer.
    pub silent: Vec<SocketAddr>,
    /// Time until the fastest answer; `None` without any.
    pub rtt: Option<Span>,
    /// The longest IP packet that got to every address of the peer with a port that answers, in
    /// bytes. It is at most the one that lanes would send. `None` if no port answered.
    pub mtu: Option<u16>,
}

/// The reason why a path keeps lanes from connecting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathCheckFault {
    /// Packets of the MTU that the fabric gives do not get through.
    TooNarrow {
        /// The longest IP packet that gets through, in bytes.
        carried: u16,
        /// The MTU of the fabric.
        pinned: u16,
    },
    /// Some ports answer and others do not.
    PortsShut {
        /// The ports that do not answer.
        silent: Vec<SocketAddr>,
        /// Number of the peer's ports that were tried.
        tried: usize,
    },
    /// No port answers.
    Silent {
        /// The ports that were tried.
        tried: Vec<SocketAddr>,
    },
}

impl CheckedPaths {
    /// Makes the paths of so many lanes between the addresses of this gateway and of a peer.
    pub fn of_lanes(
        (own, theirs): (&LaneAddresses, &LaneAddresses),
        lanes: u16,
        rtt: Span,
        mtu: u16,
    ) -> Self {
        let mut paths = Vec::new();
        for lane in 0..lanes {
            let path = (own.of_lane(lane).ip(), theirs.of_lane(lane));
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        Self { lanes: paths, rtt, mtu }
    }
}

impl PathCheckFindings {
    /// Returns why lanes cannot connect over the path, worst first. `pinned` is the MTU that the
    /// fabric gives for all paths; without one, lanes find what gets through.
    pub fn faults(&self, pinned: Option<u16>) -> Vec<PathCheckFault> {
        if self.answering.is_empty() {
            return vec![PathCheckFault::Silent { tried: self.silent.clone() }];
        }
        let mut faults = Vec::new();
        if let (Some(carried), Some(pinned)) = (self.mtu, pinned)
            && carried < pinned
        {
            faults.push(PathCheckFault::TooNarrow { carried, pinned });
        }
        if !self.silent.is_empty() {
            let tried = self.silent.len() + self.answering.len();
            faults.push(PathCheckFault::PortsShut { silent: self.silent.clone(), tried });
        }
        faults
    }
}

impl PathCheckFault {
    /// Returns what an operator has to do about the fault, as text.
    pub fn remedy(&self) -> String {
        match self {
            Self::TooNarrow { carried, .. } if *carried >= STATED_MTU_MIN => format!(
                "set `mtu` to {carried} in the fabric file of every host, or remove it there, so \
                 that lanes find what gets through; or correct the path"
            ),
            Self::TooNarrow { .. } => {
                "remove `mtu` from the fabric file of every host, so that lanes find what gets \
                 through; or correct the path"
                    .to_owned()
            }
            Self::PortsShut { .. } => {
                "let UDP through to them, both ways: `landbridge ports` lists the rules".to_owned()
            }
            Self::Silent { .. } => format!(
                "start the peer with `landbridge run`; if it runs, let UDP through both ways \
                 (`landbridge ports` lists the rules); if that is so, look for an MTU below {} \
                 bytes on the path, which carries no QUIC",
                SERVER_ANSWERS_BYTES_MIN + IPV4_UDP_HEADER_BYTES
            ),
        }
    }
}

impl fmt::Display for PathCheckFault {
    /// Prints what was found, for the status, logs and the doctor.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooNarrow { carried, pinned } => write!(
                f,
                "packets of more than {carried} bytes do not get through, and the fabric says `mtu` \
                 {pinned}"
            ),
            Self::PortsShut { silent, tried } => {
                let (count, ports) = (silent.len(), describe_path_check_ports(silent));
                write!(f, "{count} of {tried} UDP ports do not answer: {ports}")
            }
            Self::Silent { tried } => {
                write!(f, "no UDP port answers: {}", describe_path_check_ports(tried))
            }
        }
    }
}

/// Checks the path to the lanes of a peer. It sends a few dozen datagrams, and takes a few round
/// trips where all ports answer.
///
/// # Errors
/// An address of `paths` is not one of this host, or the system receives nothing.
pub async fn check_path(host: &dyn Host, paths: &CheckedPaths) -> io::Result<PathCheckFindings> {
    let mut findings = PathCheckFindings::default();
    let own: BTreeSet<IpAddr> = paths.lanes.iter().map(|(own, _)| *own).collect();
    for own in own {
        let prober = VersionProber::bind(host, own, paths.rtt)?;
        let ports = paths.lanes.iter().filter(|(from, _)| *from == own).map(|(_, to)| *to);
        let ports: Vec<SocketAddr> = ports.collect();
        let probe =
            |to: &SocketAddr| VersionProbe { to: *to, payload_bytes: SERVER_ANSWERS_BYTES_MIN };
        let answers = prober.send_probes(&ports.iter().map(probe).collect::<Vec<_>>()).await?;
        let mut searched = BTreeSet::new();
        for (to, answer) in ports.into_iter().zip(answers) {
            let Some(rtt) = answer else {
                findings.silent.push(to);
                continue;
            };
            findings.answering.push(to);
            findings.rtt = Some(findings.rtt.map_or(rtt, |least| least.min(rtt)));
            // All ports of one address share the path.
            if searched.insert(to.ip()) {
                let mtu = check_path_mtu(&prober, to, paths.mtu).await?;
                findings.mtu = Some(findings.mtu.map_or(mtu, |least| least.min(mtu)));
            }
        }
    }
    Ok(findings)
}

/// Searches the longest IP packet of at most `wanted` bytes that gets to a port that answers.
async fn check_path_mtu(
    prober: &VersionProber<'_>,
    to: SocketAddr,
    wanted: u16,
) -> io::Result<u16> {
    let headers = packet_headers_bytes(to.ip());
    let mut search = MtuSearch::new(SERVER_ANSWERS_BYTES_MIN, wanted.saturating_sub(headers));
    loop {
        let lengths = search.next_lengths();
        if lengths.is_empty() {
            return Ok(search.carried() + headers);
        }
        let probe = |length: &u16| VersionProbe { to, payload_bytes: *length };
        let answers = prober.send_probes(&lengths.iter().map(probe).collect::<Vec<_>>()).await?;
        search.note_tries(lengths.into_iter().zip(answers.iter().map(Option::is_some)));
    }
}

/// Returns UDP ports as text, such as `7401-7403, 7405 of 192.0.2.1`, several addresses after each
/// other.
pub fn describe_path_check_ports(ports: &[SocketAddr]) -> String {
    let mut by_address: BTreeMap<IpAddr, BTreeSet<u16>> = BTreeMap::new();
    for port in ports {
        by_address.entry(port.ip()).or_default().insert(port.port());
    }
    let texts = by_address
        .iter()
        .map(|(ip, ports)| format!("{} of {ip}", describe_path_check_port_numbers(ports)));
    texts.collect::<Vec<_>>().join("; ")
}

/// Returns port numbers as text, runs of them as ranges: `7401-7403, 7405`.
pub fn describe_path_check_port_numbers(ports: &BTreeSet<u16>) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for port in ports {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*port) => *last = *port,
            _ => runs.push((*port, *port)),
        }
    }
    let text = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{PortShare, VirtualHost};
    use crate::simulate::{KeyFolder, run_with_simulated_clock};
    use crate::warnings::Warnings;
    use hier_collectives::ids::GatewayId;
    use hier_collectives::topology::{Fabric, FabricGatewaySpec, FabricRegionSpec};
    use quinn::{Endpoint, EndpointConfig, ServerConfig};
    use std::net::Ipv4Addr;
    use units::{BitRate, Fraction};
    use wan_sim::{LinkSpec, VirtualNet};

    /// Address of the gateway that checks.
    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// Returns the address of a lane of the peer.
    fn lane(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], 7400 + number))
    }

    /// Returns the settings of a server that is never connected to.
    fn server_config() -> ServerConfig {
        let alone = FabricRegionSpec {
            name: "a".to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new("a-0", 1, None)],
        };
        let fabric = Fabric::new("alone", 1500, vec![alone], vec![]).expect("valid");
        let keys = KeyFolder::make(&fabric).expect("keys");
        let credentials = keys.identity(&fabric, GatewayId(0)).expect("keys").credentials;
        ServerConfig::with_crypto(credentials.server_config().expect("TLS"))
    }

    /// Checks the way to four lanes, of which those in `open` have a server. It carries packets of
    /// `path_mtu` bytes and loses a part of them.
    fn check(open: &[u16], path_mtu: u32, wanted: u16, loss: Fraction) -> PathCheckFindings {
        let server = server_config();
        let found = run_with_simulated_clock(async {
            let net = VirtualNet::new();
            let rate = BitRate::from_bits_per_second(10_000_000);
            let spec = LinkSpec::new(rate, Span::from_ms(40)).expect("a link").with_loss(loss);
            net.connect(OWN, lane(0).ip(), spec, spec, 3);
            net.set_mtu(OWN, lane(0).ip(), path_mtu).expect("a link");
            let host = VirtualHost::new(net, 1);
            let serve = |number: &u16| {
                let socket =
                    host.bind_udp(lane(*number), PortShare::ALONE, 0, &Warnings::default());
                let socket = socket.expect("free");
                let (config, runtime) = (EndpointConfig::default(), host.quic_runtime());
                let server = Some(server.clone());
                Endpoint::new_with_abstract_socket(config, server, socket, runtime)
            };
            let servers: Vec<_> = open.iter().map(serve).collect();
            assert!(servers.iter().all(Result::is_ok), "{servers:?}");
            let lanes = (0..4).map(|number| (OWN, lane(number))).collect();
            let paths = CheckedPaths { lanes, rtt: Span::from_ms(80), mtu: wanted };
            check_path(&host, &paths).await
        });
        found.expect("a runtime").expect("addresses of this host")
    }

    #[test]
    fn shut_ports_are_named_among_open_ones() {
        let found = check(&[0, 2], 1500, 1500, Fraction::default());
        assert_eq!(found.answering, [lane(0), lane(2)]);
        assert_eq!(found.silent, [lane(1), lane(3)]);
        assert_eq!(found.mtu, Some(1500));
        let faults = found.faults(Some(1500));
        assert_eq!(
            faults,
            [PathCheckFault::PortsShut { silent: vec![lane(1), lane(3)], tried: 4 }]
        );
        let text = faults[0].to_string();
        assert_eq!(text, "2 of 4 UDP ports do not answer: 7401, 7403 of 10.0.0.2");
    }

    #[test]
    fn the_narrow_mtu_of_a_path_is_found() {
        for path_mtu in [1228, 1400, 1420, 1499] {
            let found = check(&[0, 1, 2, 3], path_mtu.into(), 1500, Fraction::default());
            assert_eq!((found.silent.len(), found.mtu), (0, Some(path_mtu)));
            let too_narrow = PathCheckFault::TooNarrow { carried: path_mtu, pinned: 1500 };
            assert_eq!(found.faults(Some(1500)), std::slice::from_ref(&too_narrow));
            assert!(found.faults(None).is_empty(), "lanes find out");
            let (remedy, stated) = (too_narrow.remedy(), format!("set `mtu` to {path_mtu} in"));
            assert_eq!(remedy.contains(&stated), path_mtu >= 1280, "{remedy}");
            assert!(remedy.contains("lanes find what gets"), "{remedy}");
        }
    }

    #[test]
    fn a_path_without_answers_is_silent() {
        for (open, path_mtu) in [(&[][..], 1500), (&[0, 1, 2, 3][..], 1227)] {
            let found = check(open, path_mtu, 1500, Fraction::default());
            assert_eq!((found.rtt, found.mtu), (None, None));
            let tried: Vec<SocketAddr> = (0..4).map(lane).collect();
            let faults = found.faults(Some(1500));
            assert_eq!(faults, [PathCheckFault::Silent { tried }]);
            assert_eq!(faults[0].to_string(), "no UDP port answers: 7400-7403 of 10.0.0.2");
        }
    }

    #[test]
    fn random_loss_hides_no_port() {
        let loss = Fraction::from_ppb(20_000_000).expect("2 %");
        let found = check(&[0, 1, 2, 3], 1400, 1500, loss);
        assert_eq!((found.answering.len(), found.mtu), (4, Some(1400)));
        assert!(found.rtt.is_some_and(|rtt| rtt >= Span::from_ms(80)), "{found:?}");
    }

    #[test]
    fn ports_are_described_in_runs() {
        let ports: Vec<SocketAddr> = [0, 1, 2, 5].map(lane).to_vec();
        let other = SocketAddr::from(([10, 9, 0, 2], 9));
        let all = [ports, vec![other]].concat();
        assert_eq!(describe_path_check_ports(&all), "7400-7402, 7405 of 10.0.0.2; 9 of 10.9.0.2");
        assert_eq!(
            describe_path_check_port_numbers(&BTreeSet::from([u16::MAX - 1, u16::MAX])),
            "65534-65535"
        );
    }
}

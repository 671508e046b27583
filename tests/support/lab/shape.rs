//! The shape of two regions with one link between them, and the fabric that it stands for.

use super::jobs::JOB;
use gateway::simulate::simulated_address;
use gateway::wan::link::controller_policy::LinkPolicy;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{self, Fabric, FabricGatewaySpec, FabricRegionSpec, WanPort};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use units::{BitRate, ByteCount, Fraction, Span};
use wan_sim::{Jitter, LinkSpec, QueueSize};

/// Two regions and the link between them.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Ranks of `east` and `west`.
    pub ranks: (u32, u32),
    /// Capacity each way, in IP bytes.
    pub rate: BitRate,
    /// The capacity each way as the fabric says, where it differs: the ports of a link of unknown rate.
    pub said_rate: Option<BitRate>,
    /// Queue in front of the link, in thousandths of its BDP.
    pub queue_thousandths: u32,
    /// Round-trip time.
    pub rtt: Span,
    /// Random loss each way, as the fabric says.
    pub loss: Fraction,
    /// Real random loss each way, where it differs from the fabric's.
    pub true_loss: Option<Fraction>,
    /// Order-preserving jitter each way.
    pub jitter: Span,
    /// IP MTU.
    pub mtu: u16,
    /// The longest IP packet that gets through, where lanes have to find out.
    pub path_mtu: Option<u16>,
    /// The longest IP packet that gateways know their interfaces to send, where they know.
    pub interface_mtu: Option<u16>,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
    /// The segment size, where it differs from the plan's.
    pub segment: Option<ByteCount>,
    /// Jobs, each with its weight.
    pub jobs: Vec<(&'static str, u32)>,
    /// The policy of the link.
    pub policy: LinkPolicy,
    /// The fewest lanes between the gateways.
    pub lanes: u16,
    /// Number of addresses of each gateway. Addresses of equal index are linked, each link with its
    /// share of the rate.
    pub carriers: u8,
    /// The host name by which east knows west, in place of an address.
    pub west_name: Option<&'static str>,
    /// The gateway that the other cannot dial.
    pub dials_only: Option<GatewayId>,
}

/// 9,000 bytes: an MTU at which a simulated byte costs a quarter of what it costs at 1,500. Tests
/// that compare rates over many seconds use it beside the ordinary one.
pub const LONG_MTU: u16 = 9000;

impl Shape {
    /// Returns a link of 1 Gbit/s, 80 ms and MTU 1500 without loss, with these ranks.
    pub fn new(east: u32, west: u32) -> Self {
        Self {
            ranks: (east, west),
            rate: BitRate::from_bits_per_second(1_000_000_000),
            said_rate: None,
            queue_thousandths: 1000,
            rtt: Span::from_ms(80),
            loss: Fraction::default(),
            true_loss: None,
            jitter: Span::ZERO,
            mtu: 1500,
            path_mtu: None,
            interface_mtu: None,
            memory: ByteCount::new(64 << 20),
            segment: None,
            jobs: vec![(JOB, 1)],
            policy: LinkPolicy::default(),
            lanes: 1,
            carriers: 1,
            west_name: None,
            dials_only: None,
        }
    }

    /// Returns a link as [`Self::new`] does, with long packets: see [`LONG_MTU`].
    pub fn with_long_packets(east: u32, west: u32) -> Self {
        Self { mtu: LONG_MTU, ..Self::new(east, west) }
    }

    /// Returns the fabric of this shape.
    pub fn fabric(&self) -> Arc<Fabric> {
        let rate = self.said_rate.unwrap_or(self.rate);
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let region = |name: &str, ranks: u32| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0; ranks as usize],
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), ranks, wan)],
        };
        let link = topology::FabricLinkSpec {
            between: ("east".to_owned(), "west".to_owned()),
            rate,
            rtt: self.rtt,
            loss: self.loss,
        };
        let regions = vec![region("east", self.ranks.0), region("west", self.ranks.1)];
        let fabric = Fabric::new("sim", self.mtu, regions, vec![link]).expect("a valid fabric");
        Arc::new(fabric.with_lanes_min(self.lanes))
    }

    /// Returns one direction of the link.
    pub fn link(&self) -> LinkSpec {
        let delay = Span::from_ns(self.rtt.ns() / 2);
        let part = self.rate.bits_per_second() / u64::from(self.carriers);
        let spec = LinkSpec::new(BitRate::from_bits_per_second(part), delay).expect("a valid link");
        let jitter = Jitter { spread: self.jitter, ..Jitter::NONE };
        let queue = QueueSize::ThousandthsOfBdp(self.queue_thousandths);
        spec.with_queue(queue)
            .with_loss(self.true_loss.unwrap_or(self.loss))
            .with_jitter(jitter)
            .expect("jitter below the delay")
    }
}

/// The address of a gateway on one of several carriers; [`simulated_address`] is on the first.
pub fn carrier_address(gateway: GatewayId, carrier: u8) -> SocketAddr {
    let first = simulated_address(gateway);
    let IpAddr::V4(ip) = first.ip() else { return first };
    let [_, _, high, low] = ip.octets();
    // 10.1 is the LANs'.
    let second = if carrier == 0 { 0 } else { 1 + carrier };
    SocketAddr::new(Ipv4Addr::new(10, second, high, low).into(), first.port())
}

/// Id of the gateway of the first region.
pub const EAST: GatewayId = GatewayId(0);
/// Id of the gateway of the second region.
pub const WEST: GatewayId = GatewayId(1);

/// Returns a rate of `rate` Mbit/s.
pub const fn mbit(rate: u64) -> BitRate {
    BitRate::from_bits_per_second(rate * 1_000_000)
}

/// Returns a fraction of `parts` per million, such as a loss.
pub fn ppm(parts: u32) -> Fraction {
    Fraction::from_ppb(parts * 1000).expect("at most one")
}

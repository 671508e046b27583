//! The fabric as a gateway runs with it, for the map of the status page. It never changes while the
//! gateway runs.

use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use serde::Serialize;
use std::ops::Range;

/// The fabric of a gateway.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FabricReport {
    /// The fabric's name.
    fabric: String,
    /// The gateway that runs with it.
    gateway: String,
    /// The longest IP packet in bytes that the fabric allows.
    mtu_bytes: u16,
    /// All regions, in name order.
    regions: Vec<RegionReport>,
    /// All links, also those of other regions.
    links: Vec<FabricLinkReport>,
}

/// One region of a fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct RegionReport {
    /// The region's name.
    region: String,
    /// Number of its ranks.
    ranks: u32,
    /// Its gateways, in name order.
    gateways: Vec<RegionGatewayReport>,
}

/// One gateway of a fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct RegionGatewayReport {
    /// The gateway's name.
    gateway: String,
    /// The number of its first rank in the fabric.
    first_rank: u32,
    /// Number of its ranks, which have consecutive numbers.
    ranks: u32,
    /// Whether it has a WAN port. Otherwise others of its region send for it.
    has_wan_port: bool,
}

/// One link of a fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FabricLinkReport {
    /// The two regions, in name order.
    between: [String; 2],
    /// Capacity in each direction, in bits per second.
    rate_bits_per_second: u64,
    /// Round-trip time without queueing, in seconds.
    rtt_seconds: f64,
    /// Expected random loss, from 0 to 1.
    loss: f64,
}

impl FabricReport {
    /// Describes a fabric as gateway `me` runs with it.
    pub fn new(fabric: &Fabric, me: GatewayId) -> Self {
        let gateway = |number: u16| {
            let gateway = fabric.gateway(GatewayId(number));
            RegionGatewayReport {
                gateway: gateway.name.clone(),
                first_rank: gateway.ranks.start,
                ranks: fabric_report_rank_count(&gateway.ranks),
                has_wan_port: gateway.wan.is_some(),
            }
        };
        let regions = fabric.regions().iter().map(|region| RegionReport {
            region: region.name.clone(),
            ranks: fabric_report_rank_count(&region.ranks),
            gateways: region.gateways.clone().map(gateway).collect(),
        });
        let links = fabric.links().iter().map(|link| FabricLinkReport {
            between: [link.a, link.b].map(|region| fabric.region(region).name.clone()),
            rate_bits_per_second: link.rate.bits_per_second(),
            rtt_seconds: link.rtt.as_secs_f64(),
            loss: link.loss.as_f64(),
        });
        Self {
            fabric: fabric.name().to_owned(),
            gateway: fabric.gateway(me).name.clone(),
            mtu_bytes: fabric.mtu(),
            regions: regions.collect(),
            links: links.collect(),
        }
    }
}

/// Returns the number of ranks in a range of rank numbers.
fn fabric_report_rank_count(ranks: &Range<u32>) -> u32 {
    ranks.end - ranks.start
}

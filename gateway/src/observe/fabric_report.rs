//! The fabric as a gateway runs with it, for the map of the status page, and the versions of it, for the
//! status.

use hier_collectives::ids::GatewayId;
use hier_collectives::membership::FabricVersion;
use hier_collectives::topology::Fabric;
use serde::{Deserialize, Serialize};
use std::fmt;
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

/// The version of the fabric in force, and one that waits, as one gateway sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricVersionReport {
    /// The number of the version in force; 0 for a file without `version`.
    pub version: u64,
    /// The SHA-256 of its text in hexadecimal digits; empty for a file without `version`.
    pub digest: String,
    /// A newer fabric that is to come into force, if there is one.
    pub waiting: Option<WaitingFabricReport>,
    /// Why a newer fabric of another gateway cannot be put in force here, if there is one.
    pub refused: Option<String>,
    /// The gateways that are reached and have another fabric, so that their regions and this gateway's do
    /// not go on together.
    #[serde(default)]
    pub apart: Vec<OtherFabricReport>,
}

/// The fabric in force at another gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherFabricReport {
    /// The gateway.
    pub gateway: String,
    /// The number of its version; 0 for a file without `version`.
    pub version: u64,
    /// The SHA-256 of its text in hexadecimal digits; empty for a file without `version`.
    pub digest: String,
}

impl OtherFabricReport {
    /// Describes the difference from the fabric in force here, and what to do.
    pub(super) fn difference(&self, here: &FabricVersionReport) -> (String, String) {
        let there = version_text(self.version, &self.digest);
        let found = if self.version == 0 {
            "its fabric has no `version`".to_owned()
        } else if self.version == here.version && self.digest != here.digest {
            let digest = shown_digest(&self.digest);
            format!("it has another text of version {} of the fabric ({digest})", self.version)
        } else {
            format!("it has {there} of the fabric")
        };
        let own = version_text(here.version, &here.digest);
        let found =
            format!("{found}, and this gateway has {own}, so that they do not go on together");
        let remedy = "copy the fabric file of the gateways that go on to the others, and restart \
                      those; or apply a fabric of a higher `version`";
        (found, remedy.to_owned())
    }
}

/// A fabric that is to come into force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingFabricReport {
    /// The number of its version.
    pub version: u64,
    /// The SHA-256 of its text in hexadecimal digits.
    pub digest: String,
    /// The gateways that are not known to hold it, among those that go on together. It comes into force
    /// at the next step's boundary once there are none.
    pub missing: Vec<String>,
}

/// 12 hexadecimal digits: how much of a digest is shown to people, who compare them by eye.
const SHOWN_DIGITS: usize = 12;

/// Returns a version in words, with the first digits of its digest.
pub fn fabric_version_text(version: FabricVersion) -> String {
    version_text(version.number, &fabric_digest_text(version))
}

/// Returns the SHA-256 of a fabric's text in hexadecimal digits; nothing for a file without `version`.
pub fn fabric_digest_text(version: FabricVersion) -> String {
    match version.number {
        0 => String::new(),
        _ => version.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

impl fmt::Display for FabricVersionReport {
    /// Prints the versions, and what is missing, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", version_text(self.version, &self.digest))?;
        if let Some(waiting) = &self.waiting {
            let digest = shown_digest(&waiting.digest);
            write!(f, "; version {} ({digest}) waits for ", waiting.version)?;
            match waiting.missing.is_empty() {
                true => write!(f, "a step's boundary")?,
                false => write!(f, "{}", waiting.missing.join(", "))?,
            }
        }
        for other in &self.apart {
            let there = version_text(other.version, &other.digest);
            write!(f, "; apart from {}, which has {there}", other.gateway)?;
        }
        match &self.refused {
            Some(refused) => write!(f, "; a newer one cannot come into force here: {refused}"),
            None => Ok(()),
        }
    }
}

/// Returns a version in words.
fn version_text(number: u64, digest: &str) -> String {
    match number {
        0 => "no version".to_owned(),
        number => format!("version {number} ({})", shown_digest(digest)),
    }
}

/// Returns the first digits of a digest.
fn shown_digest(digest: &str) -> &str {
    digest.get(..SHOWN_DIGITS).unwrap_or(digest)
}

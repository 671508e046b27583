//! The dump of a region's gateways: what each answers to `/status`, at one moment.

use gateway::config::RegionFile;
use gateway::observe::fetch_status::{FetchError, fetch_status};
use gateway::observe::status::GatewayReport;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// The states of all gateways of one or more region files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dump {
    /// Seconds from the start of 1970 to the time of the dump.
    pub taken_unix_seconds: f64,
    /// The fabric's name.
    pub fabric: String,
    /// All gateways of the fabric, also those of other regions.
    pub places: Vec<DumpedPlace>,
    /// The answers of the gateways of the region files.
    pub gateways: Vec<DumpedGateway>,
}

/// The region and the ranks of a gateway, by the fabric file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DumpedPlace {
    /// The gateway's name.
    pub gateway: String,
    /// The name of its region.
    pub region: String,
    /// The number of its first rank.
    pub first_rank: u32,
    /// Number of its ranks, which have consecutive numbers.
    pub ranks: u32,
}

/// The answer of one gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DumpedGateway {
    /// The gateway's name.
    pub gateway: String,
    /// The name of its region.
    pub region: String,
    /// Its status; `None` where it gave none.
    pub status: Option<GatewayReport>,
    /// The reason why it gave none.
    pub error: Option<String>,
    /// Whether nothing listens at its address. Otherwise something does, and does not answer.
    pub is_absent: bool,
}

impl Dump {
    /// Asks all gateways of a region file for their status, 10 s each at most.
    pub fn collect(file: &RegionFile) -> Self {
        let fabric = file.fabric().fabric();
        let place = |id| {
            let gateway = fabric.gateway(id);
            DumpedPlace {
                gateway: gateway.name.clone(),
                region: fabric.region(gateway.region).name.clone(),
                first_rank: gateway.ranks.start,
                ranks: gateway.ranks.end - gateway.ranks.start,
            }
        };
        let places: Vec<DumpedPlace> = fabric.gateway_ids().map(place).collect();
        let answer = |gateway: &gateway::config::GatewayConfig| {
            let region = places.iter().find(|place| place.gateway == gateway.name);
            let (status, error, is_absent) = match fetch_status(gateway.status) {
                Ok(status) => (Some(status), None, false),
                Err(error) => {
                    let is_absent = matches!(error, FetchError::Unreachable { .. });
                    (None, Some(error.to_string()), is_absent)
                }
            };
            let region = region.map_or_else(String::new, |place| place.region.clone());
            DumpedGateway { gateway: gateway.name.clone(), region, status, error, is_absent }
        };
        let gateways = file.gateways().map(answer).collect();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            taken_unix_seconds: now.as_secs_f64(),
            fabric: fabric.name().to_owned(),
            places,
            gateways,
        }
    }
}

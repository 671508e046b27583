//! The dump of a region's gateways: what each answers to `/dump`, at one moment.

use gateway::config::{GatewayConfig, RegionFile};
use gateway::observe::fetch_status::{FetchError, fetch_status_with_flights};
use gateway::observe::status::{DumpReport, GatewayReport, JobFlightsReport};
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use serde::{Deserialize, Serialize};
use std::thread;
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
    /// Seconds from the start of 1970 to the answer, or to the end of the wait for it, by the clock of
    /// whoever asked.
    #[serde(default)]
    pub asked_unix_seconds: f64,
    /// Seconds by which the gateway's clock is ahead of that of whoever asked, to within the 10 s of
    /// the request; `None` without an answer.
    #[serde(default)]
    pub clock_ahead_seconds: Option<f64>,
    /// The flight recorders of its jobs: the last collectives that its ranks posted.
    #[serde(default)]
    pub flights: Vec<JobFlightsReport>,
}

impl DumpedPlace {
    /// Returns the places of all gateways of a fabric, in the order of their numbers.
    pub fn all_of_fabric(fabric: &Fabric) -> Vec<Self> {
        let place = |id| {
            let gateway = fabric.gateway(id);
            Self {
                gateway: gateway.name.clone(),
                region: fabric.region(gateway.region).name.clone(),
                first_rank: gateway.ranks.start,
                ranks: gateway.ranks.end - gateway.ranks.start,
            }
        };
        fabric.gateway_ids().map(place).collect()
    }
}

impl Dump {
    /// Makes the dump of a gateway that reports its own state at this moment.
    pub fn of_gateway(fabric: &Fabric, id: GatewayId, report: DumpReport) -> Self {
        let now = unix_seconds(SystemTime::now());
        let gateway = fabric.gateway(id);
        let dumped = DumpedGateway {
            gateway: gateway.name.clone(),
            region: fabric.region(gateway.region).name.clone(),
            status: Some(report.status),
            error: None,
            is_absent: false,
            asked_unix_seconds: now,
            clock_ahead_seconds: Some(0.0),
            flights: report.flights,
        };
        Self {
            taken_unix_seconds: now,
            fabric: fabric.name().to_owned(),
            places: DumpedPlace::all_of_fabric(fabric),
            gateways: vec![dumped],
        }
    }

    /// Asks all gateways of a region file at once, which takes 10 s at most.
    pub fn collect(file: &RegionFile) -> Self {
        let fabric = file.fabric().fabric();
        let places = DumpedPlace::all_of_fabric(fabric);
        let region_of = |gateway: &GatewayConfig| {
            let place = places.iter().find(|place| place.gateway == gateway.name);
            place.map_or_else(String::new, |place| place.region.clone())
        };
        // One that does not answer delays none of the others, whose answers are of one moment.
        let gateways = thread::scope(|scope| {
            let ask = |gateway| {
                let region = region_of(gateway);
                scope.spawn(move || DumpedGateway::ask(gateway, region))
            };
            let asked: Vec<_> = file.gateways().map(ask).collect();
            let answers = asked.into_iter().map(|asked| asked.join().expect("no panic"));
            answers.collect::<Vec<DumpedGateway>>()
        });
        Self {
            taken_unix_seconds: unix_seconds(SystemTime::now()),
            fabric: fabric.name().to_owned(),
            places,
            gateways,
        }
    }
}

impl DumpedGateway {
    /// Asks a gateway of a region for its status and its flight recorders.
    fn ask(gateway: &GatewayConfig, region: String) -> Self {
        let answer = fetch_status_with_flights(gateway.status);
        let asked_unix_seconds = unix_seconds(SystemTime::now());
        let mut asked = Self {
            gateway: gateway.name.clone(),
            region,
            status: None,
            error: None,
            is_absent: false,
            asked_unix_seconds,
            clock_ahead_seconds: None,
            flights: Vec::new(),
        };
        match answer {
            Ok((dump, clock)) => {
                asked.status = Some(dump.status);
                asked.flights = dump.flights;
                asked.clock_ahead_seconds =
                    clock.map(|clock| unix_seconds(clock) - asked_unix_seconds);
            }
            Err(error) => {
                asked.is_absent = matches!(error, FetchError::Unreachable { .. });
                asked.error = Some(error.to_string());
            }
        }
        asked
    }
}

/// Returns the seconds from the start of 1970 to a time; 0 for an earlier one.
fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

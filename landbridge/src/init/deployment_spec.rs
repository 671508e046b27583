//! A deployment to make, and the text of its fabric file.

use super::error::InitError;
use super::init_options::{InitLinkOption, InitPerRegionOption, InitRegionOption};
use gateway::wan::connect::peer_addresses::PeerAddress;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use units::{BitRate, ByteCount};

/// Name of the fabric file, in the deployment's folder and in that of each region.
pub(crate) const FABRIC_FILE: &str = "fabric.toml";

/// Everything that the files of a deployment say.
#[derive(Debug, Clone)]
pub(crate) struct DeploymentSpec {
    /// Name of the fabric.
    pub fabric: String,
    /// The regions, in the order of the answers.
    pub regions: Vec<DeployedRegion>,
    /// The links between regions.
    pub links: Vec<InitLinkOption>,
    /// Names of the jobs.
    pub jobs: Vec<String>,
    /// Memory for the arenas of each job in each region.
    pub job_memory: ByteCount,
    /// The folder of the gateways' sockets.
    pub sockets: SocketPlace,
}

/// The folder of the gateways' sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketPlace {
    /// `run`, beside the region file. The gateway makes it for its own user.
    BesideRegionFile,
    /// `/run/landbridge/REGION`, which the packaged systemd unit makes.
    SystemService,
}

/// A region of the deployment.
#[derive(Debug, Clone)]
pub(crate) struct DeployedRegion {
    /// Name of the region.
    pub name: String,
    /// Ranks that each of its gateways serves.
    pub ranks: NonZeroU32,
    /// Rate of each gateway's WAN port in each direction, in IP bytes.
    pub port_rate: BitRate,
    /// The gateways, in name order.
    pub gateways: Vec<DeployedGateway>,
}

/// A gateway of the deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeployedGateway {
    /// Name of the gateway: that of its region, and its number in it.
    pub name: String,
    /// Address of its lanes.
    pub wan: PeerAddress,
    /// TCP port of its status, on loopback.
    pub status_port: u16,
}

/// TCP port 9400: the status port that `landbridge init` gives the first gateway at an IP address
/// or host name. Further gateways there run on the same host and have the next ports. The number is chosen.
const STATUS_PORT_FIRST: u16 = 9400;

impl DeploymentSpec {
    /// Makes the regions of a deployment from options.
    ///
    /// # Errors
    /// [`InitError::Options`]: a region is there twice, or lacks its ranks or the rate of its ports,
    /// or an option names another region.
    pub fn regions_from_options(
        regions: &[InitRegionOption],
        ranks: &[InitPerRegionOption<NonZeroU32>],
        port_rates: &[InitPerRegionOption<BitRate>],
    ) -> Result<Vec<DeployedRegion>, InitError> {
        let named = ranks.iter().map(|option| ("--ranks", option.region.as_ref()));
        let named = named.chain(port_rates.iter().map(|of| ("--port-rate", of.region.as_ref())));
        for (option, name) in named.filter_map(|(option, name)| Some((option, name?))) {
            if !regions.iter().any(|region| region.region == *name) {
                return Err(InitError::Options(format!(
                    "{option} names region `{name}`, which no --region has"
                )));
            }
        }
        let missing = |option: &str, region: &str, example: &str| {
            InitError::Options(format!(
                "{option} is missing for region `{region}`; add {option} {region}={example}, or \
                 {option} {example} for every region"
            ))
        };
        let mut hosts = BTreeMap::new();
        let mut deployed: Vec<DeployedRegion> = Vec::new();
        for InitRegionOption { region, addresses } in regions {
            if deployed.iter().any(|other| other.name == *region) {
                return Err(InitError::Options(format!(
                    "region `{region}` is there twice; write its addresses in one --region, with \
                     commas"
                )));
            }
            let ranks = InitPerRegionOption::value_for(ranks, region);
            let port_rate = InitPerRegionOption::value_for(port_rates, region);
            deployed.push(DeployedRegion {
                name: region.clone(),
                ranks: ranks.ok_or_else(|| missing("--ranks", region, "8"))?,
                port_rate: port_rate.ok_or_else(|| missing("--port-rate", region, "10Gbit/s"))?,
                gateways: name_deployment_spec_gateways(region, addresses, &mut hosts),
            });
        }
        Ok(deployed)
    }

    /// Returns the text of the fabric file.
    pub fn fabric_text(&self) -> String {
        let mut text = format!(
            "# Fabric `{0}`. This file is the same in every region.\n\nname = \"{0}\"\n",
            self.fabric
        );
        for region in &self.regions {
            write_deployment_spec_tables(&mut text, region);
        }
        for InitLinkOption { link, rtt, rate, loss } in &self.links {
            let _ = write!(text, "\n[link.{link}]\nrtt = \"{rtt}\"\n");
            match rate {
                Some(rate) => _ = writeln!(text, "rate = \"{rate}\""),
                None => text += "# Without `rate`, gateways find the rate, and share the link.\n",
            }
            if let Some(loss) = loss {
                let _ = writeln!(text, "loss = \"{loss}\"");
            }
        }
        text
    }
}

/// Writes the tables of a region and of its gateways.
fn write_deployment_spec_tables(text: &mut String, region: &DeployedRegion) {
    let DeployedRegion { name, ranks, port_rate, gateways } = region;
    let all = u64::from(ranks.get()) * gateways.len() as u64;
    let _ = write!(text, "\n[region.{name}]\nranks = {all}\n");
    for gateway in gateways {
        let _ = write!(
            text,
            "[region.{name}.gateway.{}]\nranks = {ranks}\nwan = \"{}\"\negress = \"{port_rate}\"\n\
             ingress = \"{port_rate}\"\n",
            gateway.name, gateway.wan
        );
    }
}

/// Names the gateways of a region, with as many digits for each, so that name order is the order of
/// their addresses. `hosts` counts the gateways at each IP address or host name.
fn name_deployment_spec_gateways(
    region: &str,
    addresses: &[PeerAddress],
    hosts: &mut BTreeMap<String, u16>,
) -> Vec<DeployedGateway> {
    let digits = addresses.len().saturating_sub(1).to_string().len();
    let gateway = |(number, wan): (usize, &PeerAddress)| {
        let host = match wan {
            PeerAddress::Ip(address) => address.ip().to_string(),
            PeerAddress::Name { host, .. } => host.clone(),
        };
        let on_host = hosts.entry(host).or_default();
        let status_port = STATUS_PORT_FIRST + *on_host;
        *on_host += 1;
        let name = format!("{region}-{number:0digits$}");
        DeployedGateway { name, wan: wan.clone(), status_port }
    };
    addresses.iter().enumerate().map(gateway).collect()
}

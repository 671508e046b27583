//! `landbridge rate`.

use super::table::table;
use super::{CommandError, Exit, show, show_json};
use crate::config::RegionFile;
use crate::local::operator::{OperatorRequest, ask};
use clap::Args;
use std::path::PathBuf;
use units::BitRate;

/// Hold a link to a rate, at both of its ends, until the gateway stops or told otherwise.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge rate east-west 300Mbit/s --config \
    configs/two-region/east.toml")]
pub(super) struct Rate {
    /// The link: two regions joined by a hyphen
    #[arg(value_name = "LINK")]
    link: String,
    /// Up to the link's rate in the fabric, such as 800Mbit/s; `scheduled` for what the fabric
    /// says for this time of day
    #[arg(value_name = "RATE", value_parser = wanted)]
    rate: Wanted,
    /// The region file that the gateway runs with
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which gateway, where the file has several
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A rate, or the schedule's.
#[derive(Debug, Clone, Copy)]
struct Wanted(Option<BitRate>);

fn wanted(text: &str) -> Result<Wanted, String> {
    if text == "scheduled" {
        return Ok(Wanted(None));
    }
    let rate: Result<BitRate, _> = text.parse();
    rate.map(|rate| Wanted(Some(rate))).map_err(|error| error.to_string())
}

impl Rate {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = RegionFile::load(&self.config)?;
        let gateway = region.gateway(self.gateway.as_deref())?;
        let bits_per_second = self.rate.0.map(BitRate::bits_per_second);
        let link =
            ask(&gateway.socket, &OperatorRequest::Hold { link: self.link, bits_per_second })?;
        if self.json {
            show_json(&link);
        } else {
            show(&table(super::status::LINK_HEADER, &[super::status::link(&link)]));
        }
        Ok(Exit::Good)
    }
}

//! `landbridge rate`: an operator's rate limit for a link of a running gateway.

use super::config::RegionGatewayArguments;
use super::output::exit::Exit;
use super::output::print::{print_json, print_text};
use super::output::table::render_table;
use super::status::{LINK_TABLE_HEADER, link_status_table_row};
use crate::cli::output::command_error::CommandError;
use clap::Args;
use gateway::access::TrustedSocketUsers;
use gateway::local::operator::set_rate_as_operator;
use units::BitRate;

/// Limit a link to a rate, in both regions, until the next such command or the gateway's stop.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge rate east-west 300Mbit/s --config \
    configs/two-region/east.toml")]
pub(super) struct RateCommand {
    /// The link: two region names joined by a hyphen
    #[arg(value_name = "LINK")]
    link: String,
    /// The limit, such as 800Mbit/s, at most the link's rate in the fabric; `scheduled` lifts it
    /// and restores the fabric's schedule
    #[arg(value_name = "RATE", value_parser = parse_rate_argument)]
    rate: RateArgument,
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The RATE argument; `None` for `scheduled`.
#[derive(Debug, Clone, Copy)]
struct RateArgument(Option<BitRate>);

/// Parses the RATE argument: a rate such as `800Mbit/s`, or `scheduled`.
fn parse_rate_argument(text: &str) -> Result<RateArgument, String> {
    if text == "scheduled" {
        return Ok(RateArgument(None));
    }
    let rate: Result<BitRate, _> = text.parse();
    let parsed = rate.map(|rate| RateArgument(Some(rate)));
    parsed.map_err(|error| format!("{error}; or `scheduled`, which lifts the limit"))
}

impl RateCommand {
    /// Runs `landbridge rate`: sets the limit of a link at the gateway and prints the link.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = self.gateway.load_region()?;
        let gateway = self.gateway.choose(&region)?;
        let trusted = TrustedSocketUsers::new(gateway.user_id()?);
        let link = set_rate_as_operator(&gateway.socket, self.link, self.rate.0, trusted)?;
        if self.json {
            print_json(&link)?;
        } else {
            print_text(&render_table(LINK_TABLE_HEADER, &[link_status_table_row(&link)]))?;
        }
        Ok(Exit::Good)
    }
}

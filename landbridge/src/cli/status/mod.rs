//! `landbridge status`: a running gateway's status as tables, once or each second.

mod overview;
mod status_tables;
mod watch;

pub(super) use status_tables::{LINK_TABLE_HEADER, link_status_table_row};

use super::config::RegionGatewayArguments;
use super::output::exit::Exit;
use super::output::print::{print_json, print_text};
use crate::cli::output::command_error::CommandError;
use clap::Args;
use gateway::observe::fetch_status::fetch_status;
use status_tables::describe_status_tables;
use watch::watch_status;

/// Show the state of a running gateway: peers, links, ranks, collectives, commits, and the ranks
/// and regions that it waits for.
///
/// The status address of the gateway shows the same in a browser.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge status --config configs/two-region/east.toml")]
pub(super) struct StatusCommand {
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// Show an overview with loads and rates each second, until interrupted
    #[arg(long)]
    watch: bool,
    /// Print one JSON object, with --watch one a line
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    /// Runs `landbridge status`: fetches the status of a gateway and prints it, once or each
    /// second.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = self.gateway.load_region()?;
        let gateway = self.gateway.choose(&region)?;
        if self.watch {
            return Err(watch_status(gateway.status, self.json));
        }
        let status = fetch_status(gateway.status)?;
        if self.json {
            print_json(&status)?;
        } else {
            print_text(&describe_status_tables(&status))?;
        }
        Ok(Exit::Good)
    }
}

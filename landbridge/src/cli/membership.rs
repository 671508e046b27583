//! `landbridge leave` and `landbridge join`: a region leaves the world of all jobs and joins it again.

use super::config::RegionGatewayArguments;
use super::output::exit::Exit;
use super::output::print::{print_json, print_text};
use crate::cli::output::command_error::CommandError;
use clap::Args;
use gateway::access::TrustedSocketUsers;
use gateway::events::MembershipChange;
use gateway::local::operator::change_membership_as_operator;
use gateway::observe::membership_report::MembershipReport;
use std::time::Duration;
use units::Span;

/// 250 ms: the pause between two questions of `leave` and `join` to the gateway. A step takes longer as a
/// rule, and the answer costs the gateway little.
const QUESTION_INTERVAL: Duration = Duration::from_millis(250);

/// 10 s: the time for which `leave` and `join` wait beyond `--within`. Then the step under way fails, and
/// gateways agree on the next members: 2 s for a region that is back, and some round trips.
const AGREEMENT_TIME: Span = Span::from_secs(10);

/// Let a region leave all jobs at the end of the step under way; the others go on without it.
///
/// Its ranks wait until `landbridge join`, also if its gateways are started again. The other regions
/// must be a quorum of the fabric. The leave is called off if they cannot go on without it any more.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge leave west --config configs/three-regions/east.toml")]
pub(super) struct LeaveCommand {
    #[command(flatten)]
    change: MembershipArguments,
}

/// Let a region that has left take part again, from the end of the step under way on.
///
/// The region enters once all its gateways are reached. Its ranks get the state of the others by
/// `resume`.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge join west --config configs/three-regions/east.toml")]
pub(super) struct JoinCommand {
    #[command(flatten)]
    change: MembershipArguments,
}

/// The flags of both commands.
#[derive(Debug, Args)]
struct MembershipArguments {
    /// The region
    #[arg(value_name = "REGION")]
    region: String,
    /// How long the end of a step is awaited; then the step under way fails, and begins again
    #[arg(long, value_name = "TIME", default_value = "10 min")]
    within: Span,
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl LeaveCommand {
    /// Runs `landbridge leave`: returns once the region has left.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        self.change.run(true)
    }
}

impl JoinCommand {
    /// Runs `landbridge join`: returns once the region takes part.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        self.change.run(false)
    }
}

impl MembershipArguments {
    /// Asks the gateway for the change, waits until it is made or its time is over, and prints who goes on.
    /// A change that is not made yet ends it with [`Exit::CheckFailed`].
    fn run(self, leaves: bool) -> Result<Exit, CommandError> {
        let region = self.gateway.load_region()?;
        let gateway = self.gateway.choose(&region)?;
        let trusted = TrustedSocketUsers::new(gateway.user_id()?);
        let (region, within) = (self.region, self.within);
        let change = MembershipChange { region: region.clone(), leaves, within };
        let mut members = change_membership_as_operator(&gateway.socket, Some(&change), trusted)?;
        let mut waited = Duration::ZERO;
        let is_changed = |members: &MembershipReport| match leaves {
            true => members.left.contains(&region),
            false => members.members.contains(&region),
        };
        let is_called_off =
            |members: &MembershipReport| leaves && !members.leaving.contains(&region);
        while !is_changed(&members)
            && !is_called_off(&members)
            && waited < (within + AGREEMENT_TIME).duration()
        {
            std::thread::sleep(QUESTION_INTERVAL);
            waited += QUESTION_INTERVAL;
            // A gateway that has just started hears only now that its region has left.
            let again = (!leaves && members.left.contains(&region)).then_some(&change);
            members = change_membership_as_operator(&gateway.socket, again, trusted)?;
        }
        if self.json {
            print_json(&members)?;
        } else {
            print_text(&format!("members: {members}\n"))?;
        }
        if is_changed(&members) {
            return Ok(Exit::Good);
        }
        if is_called_off(&members) {
            let called_off = members.called_off.into_iter().find(|leave| leave.region == region);
            let reason =
                called_off.map_or("another operator asked for that".into(), |it| it.reason);
            stdio::print_stderr_message(format!(
                "the leave of region {region} was called off, and it takes part as before: {reason}"
            ));
            return Ok(Exit::CheckFailed);
        }
        let (verb, wish) = if leaves { ("left", "leaves") } else { ("joined", "joins") };
        stdio::print_stderr_message(format!(
            "region {region} has not {verb} yet; it {wish} once the regions that go on reach each other; \
             see `landbridge status`"
        ));
        Ok(Exit::CheckFailed)
    }
}

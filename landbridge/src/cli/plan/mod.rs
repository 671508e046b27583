//! `landbridge plan`: the plan of a fabric in numbers, drawn or simulated, and its subcommands.

mod batch;
mod collective;
mod efficiency;
mod report;
mod simulate;
mod svg;
mod traffic;

use crate::cli::output::exit::{CommandError, Exit};
use crate::cli::output::print::{print_json, print_text};
use clap::{Args, Subcommand, ValueEnum};
use collective::Collective;
use gateway::config::FabricFile;
use hier_collectives::descriptor::Dtype;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Operation};
use hier_collectives::topology::Fabric;
use report::PlanReport;
use std::path::PathBuf;
use units::ByteCount;

/// Show the plan of a fabric: its trees, the bytes on each link, and the predicted time.
///
/// Running gateways use the same plan, which depends on the fabric alone. Size and operation change
/// only the numbers shown.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example: landbridge plan --fabric configs/three-regions/fabric.toml --size 1GiB"
)]
pub(super) struct PlanCommand {
    #[command(subcommand)]
    subcommand: Option<PlanSubcommand>,
    #[command(flatten)]
    show: ShowPlanArgs,
}

#[derive(Debug, Subcommand)]
enum PlanSubcommand {
    Batch(batch::BatchCommand),
    Traffic(traffic::TrafficCommand),
    Efficiency(efficiency::EfficiencyCommand),
}

#[derive(Debug, Args)]
struct ShowPlanArgs {
    /// The fabric file
    #[arg(long, value_name = "FILE", required = true)]
    fabric: Option<PathBuf>,
    /// Size of the buffer, a whole number of elements
    #[arg(long, default_value = "1 GiB")]
    size: ByteCount,
    /// The collective operation
    #[arg(long, value_enum, default_value = "all-reduce")]
    op: OperationName,
    /// The gateway that receives a reduction or sends a broadcast; by default the first
    #[arg(long, value_name = "GATEWAY")]
    root: Option<String>,
    /// Type of the elements: f32, f64, f16, bf16, i32, i64 or u8
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Also simulate it: whole gateways over simulated links of this fabric, in virtual time
    #[arg(long)]
    simulate: bool,
    /// Seed of all random numbers of the simulation
    #[arg(long, value_name = "N", default_value = "1", requires = "simulate")]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Draw regions, trees and the load of each link into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OperationName {
    AllReduce,
    Reduce,
    Broadcast,
    Barrier,
}

impl PlanCommand {
    /// Runs `landbridge plan` or one of its subcommands.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        match self.subcommand {
            Some(PlanSubcommand::Batch(batch)) => batch.run(),
            Some(PlanSubcommand::Traffic(traffic)) => traffic.run(),
            Some(PlanSubcommand::Efficiency(efficiency)) => efficiency.run(),
            None => self.show.run(),
        }
    }
}

impl ShowPlanArgs {
    /// Plans the fabric, simulates and draws the plan where asked, and prints the report.
    fn run(self) -> Result<Exit, CommandError> {
        let missing = || CommandError::Usage("--fabric is missing".to_owned());
        let file = FabricFile::load(self.fabric.as_ref().ok_or_else(missing)?)?;
        let fabric = file.fabric();
        if !self.size.get().is_multiple_of(self.dtype.size()) {
            let text = format!("{} is not a whole number of {} elements", self.size, self.dtype);
            return Err(CommandError::Usage(text));
        }
        let operation = self.chosen_operation(fabric)?;
        let plan = plan::make_plan(fabric).map_err(gateway::daemon::StartError::from)?;
        let collective = Collective { operation, size: self.size, dtype: self.dtype };
        let mut report = PlanReport::new(fabric, &plan, collective);
        if self.simulate {
            report.simulated = Some(simulate::simulate_plan(fabric, &plan, collective, self.seed)?);
        }
        if let Some(path) = &self.svg {
            let picture = svg::draw_plan_svg(fabric, &plan.rooted_for(operation), &report);
            std::fs::write(path, picture)
                .map_err(|source| CommandError::Path { path: path.clone(), source })?;
        }
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&report.to_string())?;
        }
        Ok(Exit::Good)
    }

    /// Returns the operation that `--op` and `--root` name; an error if they contradict each other
    /// or the fabric.
    fn chosen_operation(&self, fabric: &Fabric) -> Result<Operation, CommandError> {
        let rooted = matches!(self.op, OperationName::Reduce | OperationName::Broadcast);
        let root = match &self.root {
            Some(_) if !rooted => {
                let text = "--root needs --op reduce or --op broadcast".to_owned();
                return Err(CommandError::Usage(text));
            }
            Some(name) => fabric.gateway_named(name).ok_or_else(|| {
                CommandError::Usage(format!("the fabric has no gateway `{name}`"))
            })?,
            None => GatewayId(0),
        };
        Ok(match self.op {
            OperationName::AllReduce => Operation::AllReduce,
            OperationName::Reduce => Operation::Reduce { to: root },
            OperationName::Broadcast => Operation::Broadcast { from: root },
            OperationName::Barrier => Operation::Barrier,
        })
    }
}

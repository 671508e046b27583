//! `landbridge plan`.

mod batch;
mod efficiency;
mod report;
mod simulate;
mod svg;
mod traffic;

use super::{CommandError, Exit, show, show_json};
use crate::config::FabricFile;
use clap::{Args, Subcommand, ValueEnum};
use hier_collectives::descriptor::Dtype;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Operation};
use hier_collectives::topology::Fabric;
use report::Report;
use std::path::PathBuf;
use units::ByteCount;

/// Show what the gateways of a fabric would do with a buffer, and how long it takes.
///
/// The plan is the one that running gateways use: it depends on the fabric alone. Size and
/// operation only decide what is carried.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example: landbridge plan --fabric configs/three-regions/fabric.toml --size 1GiB"
)]
pub(super) struct PlanCommand {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Debug, Subcommand)]
enum What {
    Batch(batch::Batch),
    Traffic(traffic::Traffic),
    Efficiency(efficiency::Efficiency),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The fabric file
    #[arg(long, value_name = "FILE", required = true)]
    fabric: Option<PathBuf>,
    /// Size of the buffer: a whole number of elements
    #[arg(long, default_value = "1 GiB")]
    size: ByteCount,
    /// What to do with it
    #[arg(long, value_enum, default_value = "all-reduce")]
    op: Op,
    /// The gateway that gets a reduction, or has what is broadcast; by default the first
    #[arg(long, value_name = "GATEWAY")]
    root: Option<String>,
    /// f32, f64, f16, bf16, i32, i64 or u8
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Run it too: whole gateways over simulated links of this fabric, in virtual time
    #[arg(long)]
    simulate: bool,
    /// What everything random of the simulation comes from
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
enum Op {
    AllReduce,
    Reduce,
    Broadcast,
    Barrier,
}

impl PlanCommand {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        match self.what {
            Some(What::Batch(batch)) => batch.run(),
            Some(What::Traffic(traffic)) => traffic.run(),
            Some(What::Efficiency(efficiency)) => efficiency.run(),
            None => self.show.run(),
        }
    }
}

impl ShowArgs {
    fn run(self) -> Result<Exit, CommandError> {
        let missing = || CommandError::Usage("--fabric is missing".to_owned());
        let file = FabricFile::load(self.fabric.as_ref().ok_or_else(missing)?)?;
        let fabric = file.fabric();
        if !self.size.get().is_multiple_of(self.dtype.size()) {
            let text = format!("{} is not a whole number of {} elements", self.size, self.dtype);
            return Err(CommandError::Usage(text));
        }
        let operation = self.operation(fabric)?;
        let plan = plan::plan(fabric).map_err(crate::daemon::StartError::from)?;
        let mut report = Report::new(fabric, &plan, operation, self.size, self.dtype);
        if self.simulate {
            let what = (self.size, self.dtype);
            let simulated = simulate::collective((fabric, &plan), operation, what, self.seed)?;
            report.simulated = Some(simulated);
        }
        if let Some(path) = &self.svg {
            let picture = svg::draw(fabric, &plan.rooted_for(operation), &report);
            std::fs::write(path, picture)
                .map_err(|source| CommandError::Path { path: path.clone(), source })?;
        }
        if self.json {
            show_json(&report);
        } else {
            show(&report.to_string());
        }
        Ok(Exit::Good)
    }

    fn operation(&self, fabric: &Fabric) -> Result<Operation, CommandError> {
        let rooted = matches!(self.op, Op::Reduce | Op::Broadcast);
        let root = match &self.root {
            Some(_) if !rooted => {
                let text = "--root is for --op reduce and --op broadcast".to_owned();
                return Err(CommandError::Usage(text));
            }
            Some(name) => fabric.gateway_named(name).ok_or_else(|| {
                CommandError::Usage(format!("the fabric has no gateway `{name}`"))
            })?,
            None => GatewayId(0),
        };
        Ok(match self.op {
            Op::AllReduce => Operation::AllReduce,
            Op::Reduce => Operation::Reduce { to: root },
            Op::Broadcast => Operation::Broadcast { from: root },
            Op::Barrier => Operation::Barrier,
        })
    }
}

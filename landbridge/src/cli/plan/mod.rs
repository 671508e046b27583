//! `landbridge plan`: the plan of a fabric in numbers, drawn or simulated, and its subcommands.

mod batch;
mod efficiency;
mod plan_report;
mod planned_collective;
mod simulated_plan;
mod svg;
mod traffic;

use crate::cli::buffer_size::BufferSizeUnit;
use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use clap::{Args, Subcommand, ValueEnum};
use gateway::config::FabricFile;
use hier_collectives::descriptor::Dtype;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::plan::{self, Operation};
use hier_collectives::topology::{Fabric, GroupFabric};
use plan_report::PlanReport;
use planned_collective::PlannedCollective;
use std::borrow::Cow;
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
    /// Size of the buffer, a whole number of elements. In operations on blocks it is that of all
    /// blocks, a whole number of elements for each rank; in an all-to-all it is that of one rank. By
    /// default 1 GiB, or the most below it that is divisible
    #[arg(long)]
    size: Option<ByteCount>,
    /// The collective operation
    #[arg(long, value_enum, default_value = "all-reduce")]
    op: OperationName,
    /// The gateway whose first rank receives (reduce, gather) or sends (broadcast, scatter, send); by
    /// default the first gateway
    #[arg(long, value_name = "GATEWAY")]
    root: Option<String>,
    /// The gateway whose first rank receives a send; by default the first one that does not send
    #[arg(long, value_name = "GATEWAY")]
    to: Option<String>,
    /// Type of the elements: f32, f64, f16, bf16, bool, or i or u with 8, 16, 32 or 64
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
    /// Draw regions, the trees of the operation and the load of each link into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OperationName {
    AllReduce,
    Reduce,
    Broadcast,
    Barrier,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    /// From one rank to one other; the plan is that of the two alone, and of gateways on the way
    Send,
}

/// 1 GiB: the size of the buffer whose plan `landbridge plan` shows without `--size`, rounded down
/// to whole elements of whole blocks. It is chosen: the rates of links decide the time of such a
/// buffer.
const DEFAULT_SIZE: ByteCount = ByteCount::new(1 << 30);

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
        let fabric = &file.fabric().without_witness();
        let (fabric, operation) = self.chosen_operation(fabric)?;
        let fabric = &*fabric;
        let size = self.chosen_size(fabric, operation)?;
        let plan = plan::make_plan(fabric).map_err(gateway::daemon::StartError::from)?;
        let collective = PlannedCollective { operation, size, dtype: self.dtype };
        let mut report = PlanReport::new(fabric, &plan, collective);
        if self.simulate {
            report.simulated =
                Some(simulated_plan::simulate_plan(fabric, &plan, collective, self.seed)?);
        }
        if let Some(path) = &self.svg {
            let picture = svg::draw_plan_svg(fabric, &report);
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

    /// Returns the part of the fabric that carries a send from the gateway `from`, gateways on the way
    /// included, and the send in it. Refuses `--simulate`, and a receiver at the same gateway.
    fn send_from(
        &self,
        from: GatewayId,
        fabric: &Fabric,
    ) -> Result<(Fabric, Operation), CommandError> {
        let usage = |text: &str| Err(CommandError::Usage(text.to_owned()));
        if self.simulate {
            return usage("--simulate has no sends: leave out one of the two");
        }
        let to = named_or_first_plan_gateway(fabric, self.to.as_deref(), Some(from))?;
        if from == to {
            return usage("--root and --to are one gateway, whose ranks share memory");
        }
        let mut ranks = [from, to].map(|id| RankId(fabric.gateway(id).ranks.start));
        ranks.sort_unstable();
        let pair = GroupFabric::of_send(fabric, &ranks)
            .map_err(|error| CommandError::Usage(error.to_string()))?;
        // Gateways that pass data on have numbers of the part, too.
        let number = |id| pair.gateways.binary_search(&id).ok().and_then(|at| at.try_into().ok());
        let [from, to] = [from, to].map(|id| GatewayId(number(id).unwrap_or_default()));
        Ok((pair.fabric, Operation::Send { from, to }))
    }

    /// Returns the operation that `--op`, `--root` and `--to` name, and the fabric that carries it; an
    /// error if they contradict each other or the fabric.
    fn chosen_operation<'f>(
        &self,
        fabric: &'f Fabric,
    ) -> Result<(Cow<'f, Fabric>, Operation), CommandError> {
        use OperationName as Name;
        let rooted = matches!(
            self.op,
            Name::Reduce | Name::Broadcast | Name::Gather | Name::Scatter | Name::Send
        );
        if self.to.is_some() && self.op != Name::Send {
            return Err(CommandError::Usage("--to needs --op send".to_owned()));
        }
        if self.root.is_some() && !rooted {
            let text = "--root needs --op reduce, broadcast, gather, scatter or send".to_owned();
            return Err(CommandError::Usage(text));
        }
        let root = named_or_first_plan_gateway(fabric, self.root.as_deref(), None)?;
        let operation = match self.op {
            Name::AllReduce => Operation::AllReduce,
            Name::Reduce => Operation::Reduce { to: root },
            Name::Broadcast => Operation::Broadcast { from: root },
            Name::Barrier => Operation::Barrier,
            Name::AllGather => Operation::AllGather,
            Name::ReduceScatter => Operation::ReduceScatter,
            Name::Gather => Operation::Gather { to: root },
            Name::Scatter => Operation::Scatter { from: root },
            Name::AllToAll => Operation::AllToAll,
            Name::Send => {
                let (pair, send) = self.send_from(root, fabric)?;
                return Ok((Cow::Owned(pair), send));
            }
        };
        Ok((Cow::Borrowed(fabric), operation))
    }

    /// Returns the size of the buffer. A size on the command line must be a whole number of
    /// elements, and of blocks where the operation has blocks. The default is rounded down to such
    /// a number.
    fn chosen_size(
        &self,
        fabric: &Fabric,
        operation: Operation,
    ) -> Result<ByteCount, CommandError> {
        let unit = BufferSizeUnit::of_operation(operation, self.dtype, fabric);
        let Some(size) = self.size else { return Ok(unit.round_down(DEFAULT_SIZE)) };
        unit.check(size).map(|()| size)
    }
}

/// Returns the gateway with the name `name`, which must have ranks. Without a name returns the
/// first gateway with ranks that is not `not`.
fn named_or_first_plan_gateway(
    fabric: &Fabric,
    name: Option<&str>,
    not: Option<GatewayId>,
) -> Result<GatewayId, CommandError> {
    let has_ranks = |id: &GatewayId| !fabric.gateway(*id).ranks.is_empty();
    let Some(name) = name else {
        let first = fabric.gateway_ids().find(|id| has_ranks(id) && Some(*id) != not);
        return Ok(first.unwrap_or_default());
    };
    let found = fabric.gateway_named(name).filter(has_ranks);
    let text = format!("the fabric has no gateway `{name}` with ranks");
    found.ok_or(CommandError::Usage(text))
}

//! `landbridge bench`: one rank of a benchmark of running gateways.

use super::buffer_size::BufferSizeUnit;
use super::config::RegionArgument;
use super::output::exit::Exit;
use super::output::print::{print_json, print_text};
use super::output::table::render_table;
use crate::bench::{Measurement, RankBench, run_bench_telling_waiting};
use crate::cli::output::command_error::CommandError;
use clap::{Args, Subcommand};
use gateway::client::{AttachTlsGateway, GatewayAddress, TlsAddress};
use gateway::config::{JobConfig, RegionFile};
use gateway::host::current_thread_runtime;
use gateway::local::token_file;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use std::num::NonZeroU32;
use std::sync::Arc;
use units::{ByteCount, Span};

/// Measure running gateways.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge bench all-reduce \
    --config configs/two-region/east.toml --rank 0")]
pub(super) struct BenchCommand {
    #[command(subcommand)]
    collective: CollectiveCommand,
}

#[derive(Debug, Subcommand)]
enum CollectiveCommand {
    /// All-reduce seeded data as one rank, check the result against a sum in f64, and time it.
    ///
    /// Start one process for each rank of the fabric, with the same size, dtype and operation. Each
    /// waits for the others, and says so after 5 s.
    #[command(after_help = "Example: landbridge bench all-reduce \
        --config configs/two-region/east.toml --rank 0 --size 64MiB --iterations 5 --json")]
    AllReduce(BenchRankArgs),
    /// Reduce seeded data to one rank; otherwise like all-reduce.
    #[command(after_help = "Example: landbridge bench reduce \
        --config configs/two-region/east.toml --rank 0 --root 1")]
    Reduce(BenchRootArgs),
    /// Broadcast one rank's seeded data; otherwise like all-reduce.
    #[command(after_help = "Example: landbridge bench broadcast \
        --config configs/two-region/east.toml --rank 0 --root 1")]
    Broadcast(BenchRootArgs),
    /// Gather the blocks of all ranks on each of them; otherwise like all-reduce.
    ///
    /// The size is that of all blocks.
    #[command(after_help = "Example: landbridge bench all-gather \
        --config configs/two-region/east.toml --rank 0")]
    AllGather(BenchRankArgs),
    /// Reduce seeded data, of which each rank gets its block; otherwise like all-reduce.
    ///
    /// The size is that of all blocks.
    #[command(after_help = "Example: landbridge bench reduce-scatter \
        --config configs/two-region/east.toml --rank 0")]
    ReduceScatter(BenchRankArgs),
    /// Gather the blocks of all ranks on one of them; otherwise like all-reduce.
    ///
    /// The size is that of all blocks.
    #[command(after_help = "Example: landbridge bench gather \
        --config configs/two-region/east.toml --rank 0 --root 1")]
    Gather(BenchRootArgs),
    /// Give each rank its block of one rank's data; otherwise like all-reduce.
    ///
    /// The size is that of all blocks.
    #[command(after_help = "Example: landbridge bench scatter \
        --config configs/two-region/east.toml --rank 0 --root 1")]
    Scatter(BenchRootArgs),
    /// Exchange blocks between all pairs of ranks; otherwise like all-reduce.
    ///
    /// The size is that of all blocks of one rank.
    #[command(after_help = "Example: landbridge bench all-to-all \
        --config configs/two-region/east.toml --rank 0")]
    AllToAll(BenchRankArgs),
    /// Wait for all ranks, and time it.
    #[command(after_help = "Example: landbridge bench barrier \
        --config configs/two-region/east.toml --rank 0")]
    Barrier(BenchRankArgs),
}

#[derive(Debug, Args)]
struct BenchRootArgs {
    /// The rank that receives the result, or sends the data
    #[arg(long, value_name = "N", default_value = "0")]
    root: u32,
    #[command(flatten)]
    args: BenchRankArgs,
}

#[derive(Debug, Args)]
struct BenchRankArgs {
    #[command(flatten)]
    region: RegionArgument,
    /// The rank, numbered across the whole fabric
    #[arg(long, value_name = "N")]
    rank: u32,
    /// Size of the buffer, a whole number of elements, and of blocks where there are any
    #[arg(long, default_value = "64 MiB")]
    size: ByteCount,
    /// Type of the elements: f32, f64, f16, bf16, bool, or i or u with 8, 16, 32 or 64
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Reduction: sum, avg, min, max, prod, band, bor or bxor
    #[arg(long, default_value = "sum")]
    op: ReduceOp,
    /// Number of iterations
    #[arg(long, value_name = "N", default_value = "5")]
    iterations: NonZeroU32,
    /// The job; required if the region file has several
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Attach over TCP to the gateway's `attach`, as from another host, and not to its socket
    #[arg(long, value_name = "tls://HOST:PORT")]
    attach: Option<TlsAddress>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl BenchCommand {
    /// Runs `landbridge bench`: one rank of the benchmark of the chosen collective.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        match self.collective {
            CollectiveCommand::AllReduce(args) => args.run(Pattern::AllReduce),
            CollectiveCommand::Reduce(BenchRootArgs { root, args }) => {
                args.run(Pattern::Reduce { to: RankId(root) })
            }
            CollectiveCommand::Broadcast(BenchRootArgs { root, args }) => {
                args.run(Pattern::Broadcast { from: RankId(root) })
            }
            CollectiveCommand::AllGather(args) => args.run(Pattern::AllGather),
            CollectiveCommand::ReduceScatter(args) => args.run(Pattern::ReduceScatter),
            CollectiveCommand::Gather(BenchRootArgs { root, args }) => {
                args.run(Pattern::Gather { to: RankId(root) })
            }
            CollectiveCommand::Scatter(BenchRootArgs { root, args }) => {
                args.run(Pattern::Scatter { from: RankId(root) })
            }
            CollectiveCommand::AllToAll(args) => args.run(Pattern::AllToAll),
            CollectiveCommand::Barrier(args) => args.run(Pattern::Barrier),
        }
    }
}

impl BenchRankArgs {
    /// Runs one rank of a benchmark of the collective `pattern` and prints times, digest and
    /// verdict. A result whose largest error exceeds the tolerance ends it with
    /// [`Exit::CheckFailed`].
    fn run(self, pattern: Pattern) -> Result<Exit, CommandError> {
        let (op, dtype) = (self.op, self.dtype);
        let usage = |why| CommandError::Usage(format!("--op {op} --dtype {dtype}: {why}"));
        op.check(dtype).map_err(usage)?;
        let region = self.region.load_region()?;
        let fabric = region.fabric().fabric();
        let rank = RankId(self.rank);
        let serving = fabric.gateway_of(rank);
        let gateway = region.gateways().find(|gateway| Some(gateway.id) == serving);
        let gateway = gateway.ok_or_else(|| {
            let file = region.path().display();
            let most = fabric.world_size() - 1;
            CommandError::Usage(format!(
                "no gateway of {file} serves rank {rank}; the fabric has ranks 0 to {most}, and \
                 `landbridge check` lists those of each region"
            ))
        })?;
        let job = self.chosen_job(&region)?;
        let Some(operation) = pattern.over_gateways(fabric) else {
            let text = format!("--root must be below {}, the number of ranks", fabric.world_size());
            return Err(CommandError::Usage(text));
        };
        BufferSizeUnit::of_operation(operation, self.dtype, fabric).check(self.size)?;
        let address = match &self.attach {
            Some(address) => {
                GatewayAddress::Tls(AttachTlsGateway::new(address.clone(), &gateway.ca))
            }
            None => GatewayAddress::Socket(gateway.socket.clone()),
        };
        let elements = self.size.get() / self.dtype.size();
        let bench = RankBench {
            gateway: address,
            gateway_user: gateway.user_id()?,
            job: job.name.clone(),
            token: token_file::load_token_file(&job.token)?,
            rank,
            fabric: Arc::new(fabric.without_witness()),
            elements: if pattern == Pattern::Barrier { 0 } else { elements },
            dtype: self.dtype,
            pattern,
            op: self.op,
            iterations: self.iterations,
        };
        let runtime = current_thread_runtime()?;
        let measured = runtime.block_on(run_bench_telling_waiting(bench, gateway.status))?;
        if self.json {
            print_json(&measured)?;
        } else {
            print_text(&describe_bench_measurement(&measured))?;
        }
        Ok(if measured.max_abs_error <= measured.tolerance {
            Exit::Good
        } else {
            Exit::CheckFailed
        })
    }
}

impl BenchRankArgs {
    /// Returns the job that `--job` names, or the only one of the region file. Refuses a name that
    /// the file lacks, and several jobs where none is named.
    fn chosen_job<'a>(&self, region: &'a RegionFile) -> Result<&'a JobConfig, CommandError> {
        let jobs: Vec<&JobConfig> = region.jobs().collect();
        let named = |job: &&&JobConfig| Some(&job.name) == self.job.as_ref();
        match (&self.job, &jobs[..]) {
            (None, [only]) => return Ok(only),
            (Some(_), _) => {
                if let Some(job) = jobs.iter().find(named) {
                    return Ok(job);
                }
            }
            (None, _) => {}
        }
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        let (file, names) = (region.path().display(), names.join(", "));
        Err(CommandError::Usage(match &self.job {
            Some(name) => format!("{file} has no job `{name}`; it has: {names}"),
            None => format!("{file} has several jobs; choose one with --job: {names}"),
        }))
    }
}

/// Returns the measurement of a rank as text: a table of iterations, the digest and the verdict.
fn describe_bench_measurement(measured: &Measurement) -> String {
    let rows: Vec<[String; 3]> = measured
        .seconds
        .iter()
        .zip(&measured.eta)
        .enumerate()
        .map(|(index, (seconds, eta))| {
            [(index + 1).to_string(), Span::from_secs_f64(*seconds).rounded(), format!("{eta:.3}")]
        })
        .collect();
    let Measurement { rank, operation, op, dtype, bytes, digest, max_abs_error, tolerance, .. } =
        measured;
    let size = ByteCount::new(*bytes);
    let verdict = if max_abs_error <= tolerance { "pass" } else { "FAIL" };
    format!(
        "rank {rank}: {operation}, {op} of {size} {dtype}\n{}\ndigest {digest}\n\
         largest error {max_abs_error:e}, {tolerance:e} allowed: {verdict}\n",
        render_table(["iteration", "time", "eta"], &rows)
    )
}

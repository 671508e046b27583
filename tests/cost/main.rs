//! `cargo xtask bench cost`: the processor time, wake-ups and system calls of gateways, beside
//! controls that move the same bytes.

mod figure;
mod ground;
mod measure;
mod measured;
mod report;
mod rounds;
mod row;

use clap::Parser;
use ground::Ground;
use measure::gateways::measure_idle;
use measure::system_calls::CallCounter;
use measured::{Measured, Took};
use report::verdict::{Outcome, verdicts};
use report::{bars, pages};
use rounds::{Bench, Programs};
use row::{ETHERNET_MTU, Row};
use scenarios::testbed::controls::bare_quinn;
use scenarios::testbed::error::LabError;
use scenarios::testbed::interrupt::{self, Deferred};
use scenarios::testbed::programs::{
    find_torch, first_line, install_torch, openssl_version, torch_version,
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure the cost of moving bytes: processor time, wake-ups, system calls and packets per call of
/// gateways on one loopback device, beside bare quinn, TCP, TLS 1.3 and Gloo.
#[derive(Debug, Parser)]
#[command(after_help = "Example: cargo xtask bench cost --quick

A GB is 1e9 bytes of the trainers' buffer; the cost is that of all gateways, without their
trainers. As root, with iproute2, the device has the MTU of each row; without, TCP, TLS and Gloo
are skipped. What is missing is skipped, and said.

Exit codes: 0 good, 1 a bound is missed or something failed, 64 usage, 130 interrupted")]
struct Command {
    /// Few rows
    #[arg(long)]
    quick: bool,
    /// The binary under test
    #[arg(long, value_name = "PATH", default_value = "landbridge")]
    landbridge: PathBuf,
    /// An older binary, measured in the same run and held to a bound
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Folder of an environment with torch; the whole bench makes it
    #[arg(long, value_name = "FOLDER", default_value = "target/peers")]
    peers: PathBuf,
    /// Write flame graphs into this folder
    #[arg(long, value_name = "FOLDER")]
    flames: Option<PathBuf>,
    /// Folder of `landbridge` and `bare-quinn` with symbols, for flame graphs
    #[arg(long, value_name = "FOLDER")]
    with_symbols: Option<PathBuf>,
    /// Write the picture of all rows here
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write one JSON object here, and leave it to its reader what a missed bound means: otherwise
    /// that fails
    #[arg(long, value_name = "FILE")]
    json_to: Option<PathBuf>,
    /// Print one JSON object instead of Markdown
    #[arg(long)]
    json: bool,
}

/// A wrong command line.
const USAGE: u8 = 64;

/// 40 min for all rows.
const BENCH_LIMIT: Duration = Duration::from_secs(40 * 60);

/// 6 min for the rows of `--quick`.
const QUICK_BENCH_LIMIT: Duration = Duration::from_secs(6 * 60);

/// 33 min from the start, until when rows are repeated: idle gateways and flame graphs need the
/// rest.
const REPEAT_LIMIT: Duration = Duration::from_secs(33 * 60);

/// 270 s from the start, until when rows are repeated with `--quick`.
const QUICK_REPEAT_LIMIT: Duration = Duration::from_secs(270);

fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let measured = interrupt::listen().map_err(LabError::from).and_then(|()| measure(&command));
    match measured {
        Ok(measured) => write_results(&command, &measured),
        Err(LabError::Interrupted) => ExitCode::from(interrupt::INTERRUPTED),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures everything that was asked for.
///
/// # Errors
/// [`LabError::Interrupted`], or the binary under test is not there; whatever else fails is
/// skipped.
fn measure(command: &Command) -> Result<Measured, LabError> {
    // Processes that compute without end must not outlive this one.
    let _ended_first = Deferred::begin();
    let mut measured = Measured::default();
    let bench = prepare(command, &mut measured)?;
    // Only now: the installation of torch takes as long as the network does.
    let begun = Instant::now();
    let before = command.before.is_some();
    let (rows, until, at_most) = if command.quick {
        (Row::quick_matrix(before), QUICK_REPEAT_LIMIT, QUICK_BENCH_LIMIT)
    } else {
        (Row::matrix(before), REPEAT_LIMIT, BENCH_LIMIT)
    };
    bench.measure_rows(&rows, begun + until, &mut measured)?;
    measured.skip_missing_counters();
    eprintln!("idle gateways");
    let idle = || measure_idle(&bench.programs.landbridge);
    match bench.ground.set_mtu(ETHERNET_MTU).and_then(|()| idle()) {
        Ok(idle) => measured.idle = Some(idle),
        Err(LabError::Interrupted) => return Err(LabError::Interrupted),
        Err(error) => measured.skip(format!("idle gateways: {error}")),
    }
    if let Some(folder) = &command.flames {
        bench.draw_flame_graphs(folder, command.with_symbols.as_deref(), &mut measured)?;
    }
    measured.took = Some(Took { whole: begun.elapsed(), at_most });
    Ok(measured)
}

/// Finds the programs, before this thread leaves the machine's network for one of its own.
fn prepare(command: &Command, measured: &mut Measured) -> Result<Bench, LabError> {
    let version = |program: &Path| first_line(program, &["--version"]);
    let binary = |path: &PathBuf| -> Result<PathBuf, LabError> {
        let missing = || LabError::Failed(format!("{}: does not run", path.display()));
        version(path).ok_or_else(missing)?;
        Ok(path.clone())
    };
    let landbridge = binary(&command.landbridge)?;
    let before = command.before.as_ref().map(binary).transpose()?;
    let peers = std::path::absolute(&command.peers)?;
    // Installing takes minutes, which `--quick` does not have.
    let torch = if command.quick { find_torch(&peers) } else { install_torch(&peers) };
    let versions =
        [version(Path::new("iperf3")), openssl_version(), torch.as_deref().and_then(torch_version)];
    measured.notes.extend(versions.into_iter().flatten());
    let ground = Ground::enter_namespace().unwrap_or_else(|error| {
        measured.skip(format!("a device of the bench's own: {error}"));
        Ground::MachineDevice
    });
    let calls = CallCounter::find();
    match calls {
        Some(counter) => measured.notes.push(format!("system calls by {}", counter.name())),
        None => measured.skip("system calls: neither perf nor strace works here".to_owned()),
    }
    let programs = Programs { landbridge, before, quinn: bare_quinn::program(), torch };
    Ok(Bench { ground, programs, calls })
}

/// Draws the picture, writes the JSON and prints the page.
fn write_results(command: &Command, measured: &Measured) -> ExitCode {
    let files = [
        command.svg.as_ref().map(|file| (file, bars::draw(measured))),
        command.json_to.as_ref().map(|file| (file, pages::json(measured))),
    ];
    for (file, text) in files.into_iter().flatten() {
        if let Err(error) = std::fs::write(file, text) {
            eprintln!("{}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    print!("{}", if command.json { pages::json(measured) } else { pages::markdown(measured) });
    let verdicts = verdicts(measured);
    let of = |outcome| verdicts.iter().filter(move |verdict| verdict.outcome == outcome);
    of(Outcome::Skipped).for_each(|verdict| eprintln!("SKIPPED VERDICT: {}", verdict.wanted));
    let all_met = of(Outcome::NotMet).count() == 0;
    if all_met || command.json_to.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `cargo xtask bench wan`: the long-haul leg against its bound, its controls and its peers.

mod arms;
mod attempts;
mod cell;
mod contenders;
mod lab;
mod measured;
mod parallel;
mod report;
mod row;

use arms::simulated::{self, Seeds};
use arms::{attach, cpu, long};
use attempts::Attempts;
use clap::Parser;
use contenders::contender::Contender;
use contenders::peers;
use lab::congestion_control::AllowedAlgorithms;
use lab::testbed::{Ground, Lab};
use measured::{Arm, Asked, Measured, Took};
use parallel::{progress_bar, run_in_parallel};
use report::{pages, plot, verdict};
use row::Row;
use scenarios::testbed::error::{LabError, UNAVAILABLE};
use scenarios::testbed::interrupt::{self, Deferred};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure collectives over a long link: whole gateways in virtual time, and, as root, real
/// ones over the TUN lab with peers beside them. Measure trainers that attach over TCP.
#[derive(Debug, Parser)]
#[command(after_help = "Example: cargo xtask bench wan --quick

Without --arm, all but netem is measured and written to docs/results; --quick leaves out operations
and attach too. The lab, operations and netem need root and iproute2; attach does for its second half.
Peers are made in target/peers: a virtual environment with torch (pip), a program for Open MPI (apt-get
where mpicc is missing). iperf3 has to be there. What is missing is skipped, and said.

Exit codes: 0 good, 1 a bound is missed or something failed, 64 usage, 77 cannot run here,
130 interrupted")]
struct Command {
    /// Few rows, one round
    #[arg(long)]
    quick: bool,
    /// Only this arm; 77 where it cannot be
    #[arg(long, value_name = "ARM")]
    arm: Option<Arm>,
    /// The binary under test
    #[arg(long, value_name = "PATH", default_value = "landbridge")]
    landbridge: PathBuf,
    /// Folder in which peers are installed: a Python with torch, a program for MPI
    #[arg(long, value_name = "FOLDER", default_value = "target/peers")]
    peers: PathBuf,
    /// Write the plot here
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

fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match interrupt::listen() {
        Ok(()) => measure(&command),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(command: &Command) -> ExitCode {
    let begun = Instant::now();
    let rows = match command.arm {
        Some(Arm::Operations) => Row::of_operations(),
        _ => Row::matrix(command.quick),
    };
    let mut all = vec![Arm::Lab, Arm::Cpu, Arm::Virtual];
    if !command.quick {
        all.extend([Arm::Operations, Arm::Attach]);
    }
    let arms = command.arm.map_or(all, |arm| vec![arm]);
    let long = arms.contains(&Arm::Virtual) && !command.quick;
    let asked = Asked { rows: rows.clone(), arms, long };
    let mut measured = Measured { asked, ..Measured::default() };
    let ground = match command.arm {
        None | Some(Arm::Lab | Arm::Operations) => Some(Ground::Lab),
        Some(Arm::Netem) => Some(Ground::Netem),
        Some(Arm::Virtual | Arm::Cpu | Arm::Attach) => None,
    };
    if let Some(ground) = ground {
        match run_labs(&mut measured, command, &rows, ground, begun) {
            Ok(()) => {}
            Err(LabError::Interrupted) => return ExitCode::from(interrupt::INTERRUPTED),
            Err(error) if command.arm.is_some() => {
                eprintln!("{}: {error}", ground.name());
                let unavailable = matches!(error, LabError::Unavailable(_));
                return if unavailable { ExitCode::from(UNAVAILABLE) } else { ExitCode::FAILURE };
            }
            Err(error) => measured.skip(format!("{}: {error}", ground.name())),
        }
    }
    if measured.asked.arms.contains(&Arm::Cpu) {
        match run_loopback(&mut measured, command) {
            Ok(()) => {}
            Err(LabError::Interrupted) => return ExitCode::from(interrupt::INTERRUPTED),
            Err(error) => measured.skip(format!("loopback: {error}")),
        }
    }
    if measured.asked.arms.contains(&Arm::Attach) && run_attached(&mut measured, command).is_err() {
        return ExitCode::from(interrupt::INTERRUPTED);
    }
    // Last: it minds nothing that runs beside it.
    if measured.asked.arms.contains(&Arm::Virtual) {
        let full = Seeds { held: 20, beside: 5 };
        let seeds = if command.quick { Seeds { held: 1, beside: 1 } } else { full };
        run_virtual(&mut measured, &rows, seeds);
    }
    if command.arm.is_none() {
        let at_most = if command.quick { QUICK_BENCH_LIMIT } else { BENCH_LIMIT };
        measured.took = Some(Took { whole: begun.elapsed(), at_most });
    }
    write_results(command, &measured)
}

/// Draws the plot, writes the JSON and prints the page.
fn write_results(command: &Command, measured: &Measured) -> ExitCode {
    if let Some(file) = &command.svg
        && let Err(error) = plot::draw(file, measured)
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    if let Some(file) = &command.json_to
        && let Err(error) = std::fs::write(file, pages::json(measured))
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    print!("{}", if command.json { pages::json(measured) } else { pages::markdown(measured) });
    let all_met = verdict::verdicts(measured).iter().all(|verdict| verdict.met);
    if all_met || command.json_to.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// 45 min for all rows in all arms, with the installation of peers.
const BENCH_LIMIT: Duration = Duration::from_secs(45 * 60);

/// 6 min for the rows of `--quick`.
const QUICK_BENCH_LIMIT: Duration = Duration::from_secs(6 * 60);

/// 35 min from the start, until when void cells are measured again: the other arms need the rest.
const REPEAT_LIMIT: Duration = Duration::from_secs(35 * 60);

/// 200 s from the start, until when void cells are measured again with `--quick`.
const QUICK_REPEAT_LIMIT: Duration = Duration::from_secs(200);

fn run_virtual(measured: &mut Measured, rows: &[Row], seeds: Seeds) {
    let long = if measured.asked.long { &long::ALL[..] } else { &[] };
    let count = rows.len() + long.len();
    let bar = progress_bar(count, "virtual time");
    let done = run_in_parallel(count, |index| {
        let done = match index.checked_sub(rows.len()) {
            None => (simulated::measure(&rows[index], seeds), vec![]),
            Some(index) => (vec![], long[index]()),
        };
        bar.inc(1);
        done
    });
    for (index, (cells, long)) in done.into_iter().enumerate() {
        measured.cells.extend(cells.into_iter().map(|cell| (rows[index], cell)));
        measured.long.extend(long);
    }
    bar.finish_and_clear();
}

/// Measures all contenders that are installed over every link.
fn run_labs(
    measured: &mut Measured,
    command: &Command,
    rows: &[Row],
    ground: Ground,
    begun: Instant,
) -> Result<(), LabError> {
    let _put_back = Deferred::begin();
    drop(Lab::up(&command.landbridge, &rows[0], ground, "dedicated")?);
    let _allowed = AllowedAlgorithms::widen()?;
    let tools = peers::make(&command.landbridge, &command.peers);
    measured.versions = peers::versions(&tools);
    let mut present = Vec::new();
    for contender in Contender::of_arms(&measured.asked.arms) {
        match contender.missing(&tools) {
            None => present.push(contender),
            Some(why) => measured.skip(format!("{}: {why}", contender.label())),
        }
    }
    let bar = progress_bar(rows.len() * present.len(), ground.name());
    let until = begun + if command.quick { QUICK_REPEAT_LIMIT } else { REPEAT_LIMIT };
    let how = |contender: Contender, row: &Row, sizes: &[u64]| {
        contender.measure(&tools, row, ground, sizes)
    };
    Attempts { how: &how, until, bar: &bar }.measure(rows, &present, measured);
    bar.finish_and_clear();
    if interrupt::has_come() { Err(LabError::Interrupted) } else { Ok(()) }
}

/// Measures trainers that attach over TCP. What cannot be measured is skipped.
///
/// # Errors
/// [`LabError::Interrupted`].
fn run_attached(measured: &mut Measured, command: &Command) -> Result<(), LabError> {
    let _put_back = Deferred::begin();
    for ground in [Ground::Loopback, Ground::Lab] {
        let attached = attach::measure(&peers::own(&command.landbridge), ground);
        if interrupt::has_come() {
            return Err(LabError::Interrupted);
        }
        match attached {
            Ok(attached) => measured.attached.extend(attached),
            Err(error) => measured.skip(format!("attached, {}: {error}", ground.name())),
        }
    }
    Ok(())
}

fn run_loopback(measured: &mut Measured, command: &Command) -> Result<(), LabError> {
    let _put_back = Deferred::begin();
    let costs = cpu::measure(&peers::own(&command.landbridge));
    if interrupt::has_come() {
        return Err(LabError::Interrupted);
    }
    measured.costs = costs?;
    Ok(())
}

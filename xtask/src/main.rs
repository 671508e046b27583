//! The project's own commands: `cargo xtask check`, `test`, `bench` and others.

mod bench;
mod child_command;
mod core_purity;
mod deploy;
mod faults;
mod installed_programs;
mod package;
mod python;
mod python_environment;
mod short_quickstart;
mod simulate;
mod stages;
mod tally;
mod upgrade;
mod workspace;

use std::process::ExitCode;

/// Exit code 64 of `cargo xtask`: the command line is wrong, as in the command `landbridge`.
const EXIT_USAGE: u8 = 64;

/// Runs the task that `cargo xtask` names. Returns its exit code; 64 for a wrong command line.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["check"] => stages::test_stages::run_fast_test_stages(),
        ["test", ref flags @ ..] => {
            stages::test_stages::run_all_test_stages(flags).unwrap_or_else(print_xtask_usage_error)
        }
        ["python", ref flags @ ..] => stages::test_stages::run_python_test_stages(flags)
            .unwrap_or_else(print_xtask_usage_error),
        ["bench", "train", "--quick"] => bench::show_train_bench_quick(),
        ["bench", "fuzz", ref targets @ ..] if !targets.is_empty() => {
            bench::bench_fuzz_targets(targets)
        }
        ["bench", "cost", ref flags @ ..] => bench::bench_cost(flags),
        ["bench", "congestion", "--quick"] => {
            bench::run_bench("congestion --quick").unwrap_or_else(print_xtask_usage_error)
        }
        ["bench", "pytorch", "--quick"] => {
            bench::run_bench("pytorch --quick").unwrap_or_else(print_xtask_usage_error)
        }
        ["bench", "wan", "--quick"] => {
            bench::run_bench("wan --quick").unwrap_or_else(print_xtask_usage_error)
        }
        ["bench", "wan", ref flags @ ..] if !flags.is_empty() => bench::show_wan_bench_parts(flags),
        ["bench", name] => bench::run_bench(name).unwrap_or_else(print_xtask_usage_error),
        ["package"] => package::run_package(false),
        ["package", "--verify"] => package::run_package(true),
        ["deploy"] => deploy::run_deploy(),
        ["faults", ref rest @ ..] => faults::run_faults(rest),
        ["chaos", ref rest @ ..] => faults::run_chaos_faults(rest),
        ["upgrade"] => upgrade::run_upgrade(None),
        ["upgrade", "--from", revision] => upgrade::run_upgrade(Some(revision)),
        ["simulate", ref rest @ ..] => simulate::run_simulate(rest),
        ["--help" | "-h" | "help"] => {
            println!("{HELP_TEXT}");
            ExitCode::SUCCESS
        }
        _ => print_xtask_usage_error(),
    }
}

/// Prints the help to stderr and returns the exit code of a wrong command line.
fn print_xtask_usage_error() -> ExitCode {
    eprintln!("{HELP_TEXT}");
    ExitCode::from(EXIT_USAGE)
}

/// Text that `cargo xtask --help` prints.
const HELP_TEXT: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  check             The fast part of `test`: format, names and comments, lints, unit tests.
  test              Format, lints, purity of the cores, tests, a short run of the fuzz targets, docs,
                    example configs, quickstart, the Python package. Stops at the first stage that
                    fails and prints the command that repeats it. With --long it runs the long
                    simulations, older PyTorch, torchft, Lightning and Accelerate too, which are
                    skipped otherwise. With --install it installs missing system packages by apt,
                    for tests that are skipped otherwise.
  python            Wheel, Python tests, PyTorch: these stages of `test` alone. With --built the wheel
                    of the last run is tested, with --newest no other PyTorch than the newest.
                    With --packages their packages are installed and nothing is tested.
  package           Wheel, Debian package, tarball, OCI image, list of parts (SPDX) and SHA256SUMS,
                    below target/package/dist. With --verify everything is built twice, and must
                    be equal byte for byte. Takes minutes.
  deploy            Checks the files of configs/deploy: systemd's own verdict, Kubernetes manifests
                    against the API's schemas, a job on a real slurmctld, the last packages. Skips
                    by name where a program is missing.
  faults            Kills and stops real processes in mid-collective; `faults --help` says more.
  chaos             Restarts and kills gateways of three regions under training with PyTorch;
                    `--restarts N --kills N --seed S` say how often, `--help` says more.
  simulate          Runs gateways and ranks in virtual time over many seeds while things go wrong;
                    `--seed N` replays one, `--mutant NAME` (or all) shows that a broken variant is
                    found, `--help` says more.
  upgrade           Upgrades the gateways of two regions one after the other under training with
                    PyTorch, from the program of the last tag, of `--from REVISION`, or of
                    LANDBRIDGE_OLDER; both must use the highest wire version that both speak.
                    Without any it is skipped.
  bench congestion  All-reduces over links whose rate the gateways do not know, in virtual time, writes
                    docs/results/congestion/whole.md; with --quick less of it, to quick.md.
  bench cost        What moving a byte costs: processor time, wake-ups, system calls and packets per
                    call of gateways, beside bare quinn, TCP, TLS and Gloo; writes
                    docs/results/cost/whole.md. With --quick less of it, to quick.md; --before BINARY
                    measures an older binary too; with other flags it shows, and writes nothing.
  bench efficiency  What distance costs a training step of a large model, in virtual time, writes
                    docs/results/efficiency.md.
  bench faults      Runs `faults` at five points of each fault, writes docs/results/faults.md.
  bench fuzz        Runs each fuzz target, or those named, for ten minutes, writes
                    docs/results/fuzz.md.
  bench hostile     Measures an honest job beside trainers and outsiders that break the rules,
                    writes docs/results/hostile.md.
  bench plan        Plans of large fabrics by the clock, and thousands of schedules proven; writes
                    docs/results/plan.md. Takes minutes.
  bench pytorch     Training steps of DDP and HSDP over emulated links, as root, beside the same over
                    Gloo; writes docs/results/pytorch/steps.md. With --quick less of it, to
                    steps-quick.md.
  bench quickstart  Runs the quickstart over several links, writes docs/results/quickstart.md.
  bench reduce      The reduction kernels beside a plain loop, writes docs/results/reduce.md.
  bench shape       WAN bytes of the hierarchy, a flat ring and halving-doubling in virtual time,
                    writes docs/results/shape.md.
  bench simulate    Simulates 10,000 seeds and the broken variants, writes
                    docs/results/simulate.md. Takes half an hour.
  bench train       What trainers pay in Python and PyTorch, writes docs/results/train.md and
                    train.json; with `--quick` less of it, and writes nothing.
  bench wan         All-reduces over long links in virtual time and, as root, over emulated ones
                    with Gloo, Open MPI and iperf3 beside them; writes docs/results/wan/whole.md. With
                    --quick less of it, to quick.md; with other flags (`--help` lists them) it shows,
                    and writes nothing: --arm operations compares all-gathers and all-to-alls
                    alone, --arm attach trainers that attach over TCP with TCP and TLS alone.
  bench wan-sim     Emulated links against their formulas and against none, writes
                    docs/results/wan-sim.md. As root it also measures namespaces.

Exit codes: 0 good, 1 a stage failed, 64 usage";

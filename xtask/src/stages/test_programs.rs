//! The test programs of the workspace, run without cargo: cargo keeps its lock while tests run, so that
//! no other stage could run beside them.

use crate::child_command::{CommandFailure, CommandLine};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The arguments of cargo for all tests. Packages and features are equal everywhere, so that
/// nothing is built twice.
pub const TEST_ARGUMENTS: [&str; 3] = ["test", "--workspace", "--all-features"];

/// A program of tests that cargo has built.
pub struct TestProgram {
    /// Name of the package.
    pub package: String,
    /// Name of the target in its package: of the library, a program or a test.
    pub target: String,
    /// Kind of the target, as an option of cargo: `--lib`, `--bin` or `--test`.
    kind: &'static str,
    /// Folder of the package.
    folder: PathBuf,
    program: PathBuf,
}

/// The test programs, listed once: later stages run beside a cargo that holds its lock.
static TEST_PROGRAMS: OnceLock<Vec<TestProgram>> = OnceLock::new();

/// Lists the programs of all tests. The first call asks cargo, which builds those that are missing.
pub fn list_test_programs(root: &Path) -> Result<&'static [TestProgram], CommandFailure> {
    if let Some(programs) = TEST_PROGRAMS.get() {
        return Ok(programs);
    }
    let programs = ask_cargo_for_test_programs(root)?;
    Ok(TEST_PROGRAMS.get_or_init(|| programs))
}

/// Builds all tests, and reads the list of their programs off cargo's messages.
fn ask_cargo_for_test_programs(root: &Path) -> Result<Vec<TestProgram>, CommandFailure> {
    let arguments = [&TEST_ARGUMENTS[..], &["--no-run", "--message-format", "json"]].concat();
    let line = CommandLine::cargo(&arguments);
    let (status, messages) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let programs: Vec<TestProgram> = messages.lines().filter_map(parse_test_program).collect();
    if programs.is_empty() { Err(line.failure(&"no test program was built")) } else { Ok(programs) }
}

/// Reads a message of cargo; `None` if it tells of no test program.
fn parse_test_program(line: &str) -> Option<TestProgram> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let kind = match message["target"]["kind"][0].as_str()? {
        "bin" => "--bin",
        "test" => "--test",
        _ => "--lib",
    };
    Some(TestProgram {
        // Such as `path+file:///landbridge/tests/tidy#0.1.0` or `...#tidy@0.1.0`.
        package: test_package_name(message["package_id"].as_str()?)?,
        target: text(&message["target"]["name"])?,
        kind,
        folder,
        program: PathBuf::from(message["executable"].as_str()?),
    })
}

/// Returns the name of a package from its id, such as `path+file:///code/units#0.1.0` or
/// `path+file:///code/tests#scenarios@0.1.0`.
fn test_package_name(id: &str) -> Option<String> {
    let (path, version) = id.rsplit_once('#')?;
    let name = match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

impl TestProgram {
    /// Returns the command line that runs the tests. `arguments` are for the test runner.
    pub fn command(&self, arguments: &[&str]) -> CommandLine {
        self.command_behind(&[], arguments)
    }

    /// Returns the command line that runs the tests and gives way to other programs where the
    /// processor is busy. `arguments` are for the test runner.
    pub fn patient_command(&self, arguments: &[&str]) -> CommandLine {
        self.command_behind(&["nice", "-n", "10"], arguments)
    }

    /// Returns the command line that runs the tests behind the `words` of another program. Signals
    /// have their default actions, which `nohup` and background jobs change and tests expect.
    fn command_behind(&self, words: &[&str], arguments: &[&str]) -> CommandLine {
        let program = self.program.display().to_string();
        let reset = ["env", "--default-signal=HUP,INT,QUIT", &program];
        self.with_environment(CommandLine::in_path(&[words, &reset, arguments].concat()))
    }

    /// Adds to a command line what cargo gives to tests.
    fn with_environment(&self, line: CommandLine) -> CommandLine {
        let Self { package, target, kind, folder, .. } = self;
        let named = if *kind == "--lib" { String::new() } else { format!(" {target}") };
        line.in_folder(folder)
            .with_variable("CARGO_MANIFEST_DIR", &folder.display().to_string())
            .repeated_by(format!("cargo test --package {package} --all-features {kind}{named}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_off_cargos_messages() {
        let message = r#"{"reason":"compiler-artifact",
            "package_id":"path+file:///code/tests#scenarios@0.1.0",
            "manifest_path":"/code/tests/Cargo.toml","target":{"kind":["test"],"name":"sim"},
            "profile":{"test":true},"executable":"/code/target/debug/deps/sim-1"}"#;
        let program = parse_test_program(message).expect("a test program");
        assert_eq!((&*program.package, &*program.target), ("scenarios", "sim"));
        let repeat = program.command(&[]).failure(&"").repeat;
        assert_eq!(repeat, "cargo test --package scenarios --all-features --test sim");
        let no_test = message.replace("\"test\":true", "\"test\":false");
        assert!(parse_test_program(&no_test).is_none());
        assert_eq!(test_package_name("path+file:///code/units#0.1.0").as_deref(), Some("units"));
    }
}

//! Commands that are run, shown and repeated in the same words.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A command line, from the workspace's root.
pub struct CommandLine {
    environment: Vec<(&'static str, String)>,
    words: Vec<String>,
}

/// Why a stage did not pass.
pub struct Failure {
    /// The reason.
    pub why: String,
    /// The command that shows it again.
    pub repeat: String,
}

impl CommandLine {
    /// `cargo` with arguments.
    pub fn cargo(arguments: &[&str]) -> Self {
        let words = std::iter::once("cargo").chain(arguments.iter().copied());
        Self { environment: Vec::new(), words: words.map(str::to_owned).collect() }
    }

    /// A program of the workspace that an earlier stage built.
    pub fn built(program: &Path, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|word| (*word).to_owned());
        let words = std::iter::once(program.display().to_string()).chain(arguments).collect();
        Self { environment: Vec::new(), words }
    }

    /// Any program, looked up in the PATH.
    pub fn new(words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Self { environment: Vec::new(), words }
    }

    /// With a variable set.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Runs it with its output shown as it comes; `line` sees each line of stdout as well.
    pub fn stream(&self, root: &Path, mut line: impl FnMut(&str)) -> Result<ExitStatus, Failure> {
        let mut child = self.spawn(root, Stdio::piped())?;
        let stdout = child.stdout.take().expect("piped");
        let mut reader = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).map_err(|error| self.failed(&error))? > 0 {
            // A reader of ours that went away does not stop the tests.
            let _ = std::io::stdout().write_all(&bytes);
            line(String::from_utf8_lossy(&bytes).trim_end());
            bytes.clear();
        }
        child.wait().map_err(|error| self.failed(&error))
    }

    /// Runs it and takes its stdout.
    pub fn capture(&self, root: &Path) -> Result<(ExitStatus, String), Failure> {
        let child = self.spawn(root, Stdio::piped())?;
        let output = child.wait_with_output().map_err(|error| self.failed(&error))?;
        Ok((output.status, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Runs it, whatever its status is, and takes its stderr.
    pub fn capture_stderr(&self, root: &Path) -> Result<String, Failure> {
        let mut command = self.command(root);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| self.failed(&error))?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs it with its output shown; a status other than success is a failure.
    pub fn pass(&self, root: &Path) -> Result<(), Failure> {
        let status = self.spawn(root, Stdio::inherit())?.wait();
        let status = status.map_err(|error| self.failed(&error))?;
        if status.success() { Ok(()) } else { Err(self.failed(&status)) }
    }

    /// Runs it with its output shown; returns its exit code, if it was not killed.
    pub fn code(&self, root: &Path) -> Result<Option<i32>, Failure> {
        let status = self.spawn(root, Stdio::inherit())?.wait();
        Ok(status.map_err(|error| self.failed(&error))?.code())
    }

    /// A failure of this command.
    pub fn failed(&self, why: &impl ToString) -> Failure {
        Failure { why: why.to_string(), repeat: self.shown() }
    }

    fn spawn(&self, root: &Path, stdout: Stdio) -> Result<Child, Failure> {
        self.command(root).stdout(stdout).spawn().map_err(|error| self.failed(&error))
    }

    fn command(&self, root: &Path) -> Command {
        let program = match self.words[0].as_str() {
            // The cargo that runs us, whatever is first in PATH.
            "cargo" => std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
            program => program.to_owned(),
        };
        let mut command = Command::new(program);
        command.args(&self.words[1..]).envs(self.environment.iter().cloned());
        command.current_dir(root).stdin(Stdio::null());
        command
    }

    fn shown(&self) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,%+".contains(c);
        let quoted = |word: &String| {
            if word.chars().all(plain) { word.clone() } else { format!("'{word}'") }
        };
        let variables = self.environment.iter();
        let variables = variables.map(|(name, value)| format!("{name}='{value}'"));
        variables.chain(self.words.iter().map(quoted)).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_what_to_type() {
        let line = CommandLine::cargo(&["doc", "a b"]).with("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line.failed(&"").repeat, "RUSTDOCFLAGS='-D warnings' cargo doc 'a b'");
    }
}

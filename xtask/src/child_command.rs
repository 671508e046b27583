//! Commands that are run, shown and repeated in the same words.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A command line, which runs in the root of the workspace unless it names a folder below it.
pub struct CommandLine {
    environment: Vec<(&'static str, String)>,
    words: Vec<String>,
    /// Folder that the command runs in, below the root of the workspace.
    folder: PathBuf,
    /// Command line that users type instead, where this one is not for them.
    repeat: Option<String>,
}

/// Failure of a stage or a bench.
pub struct CommandFailure {
    /// Reason of the failure.
    pub why: String,
    /// Command line that repeats the failed command, for a shell.
    pub repeat: String,
}

impl CommandLine {
    /// Returns a command line of `cargo` with arguments.
    pub fn cargo(arguments: &[&str]) -> Self {
        Self::in_path(&[&["cargo"], arguments].concat())
    }

    /// Returns a command line of the program at a path.
    pub fn program(program: &Path, arguments: &[&str]) -> Self {
        Self::in_path(&[&[&*program.display().to_string()], arguments].concat())
    }

    /// Returns a command line of any program, looked up in the PATH.
    pub fn in_path(words: &[&str]) -> Self {
        Self {
            environment: Vec::new(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            folder: PathBuf::new(),
            repeat: None,
        }
    }

    /// Lets the command run in a folder below the root of the workspace.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = folder.to_owned();
        self
    }

    /// Names the command line with which users repeat this command.
    pub fn repeated_by(mut self, repeat: String) -> Self {
        self.repeat = Some(repeat);
        self
    }

    /// Adds an environment variable to the command line.
    pub fn with_variable(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Runs the command to its end and shows its output meanwhile; `line` receives each line of
    /// stdout as well. Returns the status.
    pub fn stream(
        &self,
        root: &Path,
        mut line: impl FnMut(&str),
    ) -> Result<ExitStatus, CommandFailure> {
        let mut child = self.spawn(root, Stdio::piped())?;
        let stdout = child.stdout.take().expect("piped");
        let mut reader = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).map_err(|error| self.failure(&error))? > 0 {
            // A reader of ours that went away does not stop the tests.
            let _ = std::io::stdout().write_all(&bytes);
            line(String::from_utf8_lossy(&bytes).trim_end());
            bytes.clear();
        }
        child.wait().map_err(|error| self.failure(&error))
    }

    /// Runs the command. Returns its status and stdout.
    pub fn capture(&self, root: &Path) -> Result<(ExitStatus, String), CommandFailure> {
        let child = self.spawn(root, Stdio::piped())?;
        let output = child.wait_with_output().map_err(|error| self.failure(&error))?;
        Ok((output.status, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Runs the command. Returns its stderr, whatever the status is.
    pub fn capture_stderr(&self, root: &Path) -> Result<String, CommandFailure> {
        let mut command = self.to_command(root);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| self.failure(&error))?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Starts the command with all of its output in a file.
    pub fn start_into_file(&self, root: &Path, file: &Path) -> Result<Child, CommandFailure> {
        let open = || {
            std::fs::create_dir_all(file.parent().unwrap_or(root))?;
            let out = std::fs::File::create(file)?;
            Ok((out.try_clone()?, out))
        };
        let (out, err) = open().map_err(|error: std::io::Error| {
            self.failure(&format!("{}: {error}", file.display()))
        })?;
        let mut command = self.to_command(root);
        command.stdout(out).stderr(err).spawn().map_err(|error| self.failure(&error))
    }

    /// Runs the command with its output shown; a status other than success is a failure.
    pub fn run_to_success(&self, root: &Path) -> Result<(), CommandFailure> {
        let status = self.spawn(root, Stdio::inherit())?.wait();
        let status = status.map_err(|error| self.failure(&error))?;
        if status.success() { Ok(()) } else { Err(self.failure(&status)) }
    }

    /// Runs the command with its output shown. Returns its exit code; `None` if a signal killed it.
    pub fn run_to_exit_code(&self, root: &Path) -> Result<Option<i32>, CommandFailure> {
        let status = self.spawn(root, Stdio::inherit())?.wait();
        Ok(status.map_err(|error| self.failure(&error))?.code())
    }

    /// Returns a failure of this command, for the reason `why`.
    pub fn failure(&self, why: &impl ToString) -> CommandFailure {
        CommandFailure { why: why.to_string(), repeat: self.to_shell_words() }
    }

    /// Starts the command in `root`, with stdout as given and stderr shown.
    fn spawn(&self, root: &Path, stdout: Stdio) -> Result<Child, CommandFailure> {
        self.to_command(root).stdout(stdout).spawn().map_err(|error| self.failure(&error))
    }

    /// Returns the command for `std::process`, in its folder below `root` and without input. The
    /// word `cargo` becomes the cargo that runs us.
    fn to_command(&self, root: &Path) -> Command {
        let program = match self.words[0].as_str() {
            // The cargo that runs us, whatever is first in PATH.
            "cargo" => std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
            program => program.to_owned(),
        };
        let mut command = Command::new(program);
        command.args(&self.words[1..]).envs(self.environment.iter().cloned());
        command.current_dir(root.join(&self.folder)).stdin(Stdio::null());
        command
    }

    /// Returns the command line as a user types it into a shell.
    fn to_shell_words(&self) -> String {
        if let Some(repeat) = &self.repeat {
            return repeat.clone();
        }
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
        let line = CommandLine::cargo(&["doc", "a b"]).with_variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line.failure(&"").repeat, "RUSTDOCFLAGS='-D warnings' cargo doc 'a b'");
    }
}

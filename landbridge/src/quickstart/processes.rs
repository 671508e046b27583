//! Child processes of the quickstart: further processes of this binary.

use super::error::QuickstartError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A child process, which is killed when this is dropped.
pub(super) struct ChildProcess {
    name: String,
    child: Child,
    log: PathBuf,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// 2,000 bytes: the length of the end of a process's log that is shown when the process fails.
const LOG_TAIL_BYTES: usize = 2000;

impl ChildProcess {
    /// Starts another process of this binary with `arguments`; its stderr goes to the file `log`.
    pub fn start<A: Into<OsString>>(
        name: &str,
        log: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self, QuickstartError> {
        let system = || QuickstartError::system("cannot start a process");
        let binary = std::env::current_exe().map_err(system())?;
        let stderr = std::fs::File::create(log).map_err(system())?;
        let mut child = Command::new(binary)
            .args(arguments.into_iter().map(Into::into))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C goes to the whole process group of a terminal: a child in it could end first,
            // which would look like a failure.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(system())?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(system()(std::io::ErrorKind::BrokenPipe.into()));
        };
        let output = BufReader::new(output).lines();
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), input, output })
    }

    /// Returns the next line that the process prints to stdout; an error if the process ends.
    pub async fn read_line(&mut self) -> Result<String, QuickstartError> {
        match self.output.next_line().await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => {
                let status = self.child.wait().await;
                let problem = status.map_or_else(|e| e.to_string(), |s| format!("ended: {s}"));
                Err(self.error_with_log(&problem))
            }
            Err(error) => Err(self.error_with_log(&error.to_string())),
        }
    }

    /// Sends a line to stdin of the process.
    pub async fn send_line(&mut self, line: &str) -> Result<(), QuickstartError> {
        let sent = self.input.write_all(format!("{line}\n").as_bytes()).await;
        sent.map_err(|error| self.error_with_log(&error.to_string()))
    }

    /// Kills the process and waits for its end.
    pub async fn stop(mut self) {
        // It may have ended already.
        let _ = self.child.kill().await;
    }

    /// Returns an error with the name, the problem and the end of the log of the process.
    pub fn error_with_log(&self, problem: &str) -> QuickstartError {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
        QuickstartError::Process {
            name: self.name.clone(),
            problem: problem.to_owned(),
            log: String::from_utf8_lossy(tail).into_owned(),
        }
    }
}

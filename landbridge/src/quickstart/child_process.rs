//! Child processes of the quickstart: further processes of this binary.

use super::error::QuickstartError;
use gateway::limits::thread_limits::explain_thread_limits;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
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

/// 2,000 bytes: the length of the end of a child process's log that the error of a failed
/// quickstart shows. The length is chosen, some ten lines.
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
            .map_err(|error| match error.kind() {
                // The limits on threads are those on processes too.
                ErrorKind::WouldBlock => explain_thread_limits(name, error),
                _ => error,
            })
            .map_err(system())?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(system()(ErrorKind::BrokenPipe.into()));
        };
        let output = BufReader::new(output).lines();
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), input, output })
    }

    /// Returns the next line that the process prints to stdout; an error if the process ends.
    pub async fn read_line(&mut self) -> Result<String, QuickstartError> {
        match self.output.next_line().await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => match self.child.wait().await {
                Ok(status) => Err(self.end_error(status)),
                Err(error) => Err(self.error_with_log(&error.to_string())),
            },
            Err(error) => Err(self.error_with_log(&error.to_string())),
        }
    }

    /// Sends a line to stdin of the process.
    pub async fn send_line(&mut self, line: &str) -> Result<(), QuickstartError> {
        let sent = self.input.write_all(format!("{line}\n").as_bytes()).await;
        sent.map_err(|error| self.error_with_log(&error.to_string()))
    }

    /// Returns the error of a process that has ended; `None` while it runs.
    ///
    /// Whoever waits for something else of a process asks this meanwhile.
    pub fn error_if_ended(&mut self) -> Option<QuickstartError> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(self.end_error(status)),
            Err(error) => Some(self.error_with_log(&error.to_string())),
        }
    }

    /// Returns the id of the process; `None` once its end has been seen.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills the process and waits for its end.
    pub async fn stop(mut self) {
        // It may have ended already.
        let _ = self.child.kill().await;
    }

    /// Returns an error with the name, the problem and the end of the log of the process.
    pub fn error_with_log(&self, problem: &str) -> QuickstartError {
        QuickstartError::Process {
            name: self.name.clone(),
            problem: problem.to_owned(),
            log: self.read_log_tail(),
            exit_code: None,
        }
    }

    /// Returns the error of a process that has ended with `status`. Its first line ends with the
    /// last line of the log, which is mostly the reason.
    fn end_error(&self, status: ExitStatus) -> QuickstartError {
        let log = self.read_log_tail();
        let how = status.code().map_or(status.to_string(), |code| format!("exit code {code}"));
        let problem = match log.trim_end().lines().next_back() {
            Some(reason) => format!("ended with {how}: {reason}"),
            None => format!("ended with {how}"),
        };
        QuickstartError::Process { name: self.name.clone(), problem, log, exit_code: status.code() }
    }

    /// Reads the end of the log of the process.
    fn read_log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
        String::from_utf8_lossy(tail).into_owned()
    }
}

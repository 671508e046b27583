//! The number of system calls, as `perf` or `strace` counts them in a run of their own: both would
//! disturb the run that is timed.

use super::running::Running;
use super::watcher::Watcher;
use scenarios::testbed::error::LabError;
use scenarios::testbed::programs::succeeds_quietly;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that counts system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallCounter {
    /// `perf stat`, by the kernel's trace point.
    Perf,
    /// `strace -c`, which stops the process at each call.
    Strace,
}

impl CallCounter {
    /// Returns the better one of those that work here; `None` if neither does.
    pub fn find() -> Option<Self> {
        [Self::Perf, Self::Strace].into_iter().find(|counter| counter.works())
    }

    /// Returns the name of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf stat",
            Self::Strace => "strace -c",
        }
    }

    /// Returns the calls for each gigabyte of the buffer that `running` makes.
    ///
    /// # Errors
    /// The run failed, or the counter told nothing.
    pub fn count(self, running: &mut dyn Running) -> Result<f64, LabError> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("calls");
        let watcher = Watcher::start(self.command(&running.ids(), &file))?;
        let gigabytes = running.carry();
        watcher.stop()?;
        let gigabytes = gigabytes?;
        let text = fs::read_to_string(&file).unwrap_or_default();
        let calls = self.parse(&text);
        let calls = calls
            .ok_or_else(|| LabError::Failed(format!("{} counted nothing: {text}", self.name())))?;
        Ok(calls / gigabytes)
    }

    /// Returns the command that counts the calls of processes until SIGINT.
    fn command(self, processes: &[u32], file: &Path) -> Command {
        let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
        let mut command = self.command_without_target(file);
        match self {
            Self::Perf => {
                command.args(["-p", &ids.join(",")]);
            }
            Self::Strace => {
                ids.iter().for_each(|id| {
                    command.args(["-p", id]);
                });
            }
        }
        command
    }

    /// Returns the command without the processes or the program that it watches.
    fn command_without_target(self, file: &Path) -> Command {
        let mut command;
        match self {
            Self::Perf => {
                command = Command::new("perf");
                command.args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o"]);
            }
            Self::Strace => {
                command = Command::new("strace");
                command.args(["-c", "-f", "-o"]);
            }
        }
        command.arg(file);
        command
    }

    /// Returns whether the program is there and may count.
    fn works(self) -> bool {
        let Ok(folder) = tempfile::tempdir() else { return false };
        let file: PathBuf = folder.path().join("calls");
        let mut command = self.command_without_target(&file);
        if self == Self::Perf {
            command.arg("--");
        }
        let ran = succeeds_quietly(command.arg("true"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        ran && self.parse(&text).is_some_and(|calls| calls > 0.0)
    }

    /// Returns the number of calls in the program's report.
    fn parse(self, text: &str) -> Option<f64> {
        match self {
            Self::Perf => {
                let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
                line.split(',').next()?.trim().parse().ok()
            }
            Self::Strace => {
                let line = text.lines().rev().find(|line| line.trim_end().ends_with(" total"))?;
                line.split_ascii_whitespace().nth(3)?.parse().ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_perf_has_the_count_first() {
        let text = "# started on Thu\n\n12345,,raw_syscalls:sys_enter,81234,100.00,,\n";
        assert_eq!(CallCounter::Perf.parse(text), Some(12_345.0));
        let refused = "<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n";
        assert_eq!(CallCounter::Perf.parse(refused), None);
        assert_eq!(CallCounter::Perf.parse(""), None);
    }

    #[test]
    fn the_report_of_strace_ends_with_the_sum() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n \
                    60.00    0.600000          12     50000         3 sendmsg\n \
                    40.00    0.400000          20     20000           recvmmsg\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    1.000000          14     70000         3 total\n";
        assert_eq!(CallCounter::Strace.parse(text), Some(70_000.0));
        assert_eq!(CallCounter::Strace.parse("strace: attach: refused\n"), None);
    }

    #[test]
    fn every_process_is_named_to_the_counter() {
        let words = |counter: CallCounter| -> Vec<String> {
            let command = counter.command(&[7, 8], Path::new("out"));
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        assert!(words(CallCounter::Perf).ends_with(&["-p".to_owned(), "7,8".to_owned()]));
        let strace = words(CallCounter::Strace);
        assert!(strace.ends_with(&["-p", "7", "-p", "8"].map(str::to_owned)));
    }
}

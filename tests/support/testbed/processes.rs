//! Processes that end together, their output, and their processor time.

use super::counters::{self, Counters};
use super::error::LabError;
use super::interrupt;
use super::run_times::RunTimes;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How one knows that the runs of processes have begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// The first of them prints a line then.
    WithALine,
    /// They print nothing until they are done; their setup counts as part of the runs.
    WithoutAWord,
}

/// Processes that end together.
pub struct Processes {
    children: Vec<Child>,
    /// Folder and first part of the names of their outputs.
    outputs: PathBuf,
}

/// The output of processes.
pub struct Outputs {
    /// Standard output of each.
    pub texts: Vec<String>,
    /// True if all had come to their end.
    pub complete: bool,
}

impl Drop for Processes {
    /// Kills the processes that still run.
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    /// Starts them, each with its output in files of its own in `folder`.
    ///
    /// # Errors
    /// The system cannot make a file or start a program.
    pub fn start(folder: &Path, commands: Vec<Command>, name: &str) -> io::Result<Self> {
        let mut processes = Self { children: Vec::new(), outputs: folder.join(name) };
        for (number, mut command) in commands.into_iter().enumerate() {
            let out = File::create(processes.output(number, "out"))?;
            let log = File::create(processes.output(number, "log"))?;
            processes.children.push(command.stdout(out).stderr(log).spawn()?);
        }
        Ok(processes)
    }

    /// Starts two processes of normal priority that only compute, as data loaders do beside a gateway.
    ///
    /// # Errors
    /// The system cannot make a file or start a program.
    pub fn start_busy(folder: &Path) -> io::Result<Self> {
        let spin = || {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            command
        };
        Self::start(folder, vec![spin(), spin()], "busy")
    }

    /// Returns the path of an output of a process: `out` or `log`.
    fn output(&self, number: usize, kind: &str) -> PathBuf {
        let mut path = self.outputs.clone().into_os_string();
        path.push(format!("-{number}.{kind}"));
        path.into()
    }

    /// Returns the name in error texts.
    fn name(&self) -> String {
        self.outputs.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Waits for the processes. Returns the times of their runs; none if they took longer than
    /// `cut`.
    ///
    /// # Errors
    /// As [`Self::outputs`]; or all are done and none has printed a run.
    pub fn run_times(self, begins: Begins, cut: Duration) -> Result<RunTimes, LabError> {
        let name = self.name();
        let outputs = self.outputs(begins, cut)?;
        let times = RunTimes::of(&outputs.texts);
        if outputs.complete && times.seconds.is_empty() {
            return Err(LabError::Failed(format!("{name}: tells of no run")));
        }
        Ok(times)
    }

    /// Returns the output of each process, once all are done or took longer than `cut`. Processes
    /// that print a line at their start and after each run are ended when all runs together take
    /// too long.
    ///
    /// # Errors
    /// A process failed, with its output; or no run has begun, so that no time is known; or a
    /// signal came.
    pub fn outputs(mut self, begins: Begins, cut: Duration) -> Result<Outputs, LabError> {
        let started = Instant::now();
        let mut begun = (begins == Begins::WithoutAWord).then_some(started + SET_UP);
        loop {
            if interrupt::has_come() {
                return Err(LabError::Interrupted);
            }
            let complete = self.are_done()?;
            let now = Instant::now();
            let count = self.children.len();
            if complete || begun.is_some_and(|begun| now > begun + cut) {
                let texts = (0..count).map(|number| fs::read_to_string(self.output(number, "out")));
                return Ok(Outputs { texts: texts.collect::<Result<_, _>>()?, complete });
            }
            if begun.is_none() && !fs::read_to_string(self.output(0, "out"))?.is_empty() {
                begun = Some(now);
            }
            if begun.is_none() && now > started + SET_UP {
                let text = format!("{}: no run had begun after {SET_UP:?}", self.name());
                return Err(LabError::Failed(text));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns whether all processes have come to a good end.
    ///
    /// # Errors
    /// A process failed, with its output.
    pub fn are_done(&mut self) -> Result<bool, LabError> {
        let mut complete = true;
        for number in 0..self.children.len() {
            match self.children[number].try_wait()? {
                Some(status) if !status.success() => {
                    let log = fs::read_to_string(self.output(number, "log"))?;
                    let text = format!("{}: {status}: {}", self.name(), log.trim());
                    return Err(LabError::Failed(text));
                }
                done => complete &= done.is_some(),
            }
        }
        Ok(complete)
    }

    /// Returns the ids of the processes.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    /// Returns the processor time that they have taken so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.ids().map(counters::cpu_seconds).sum()
    }

    /// Reads the counters of each process.
    ///
    /// # Errors
    /// A process is gone.
    pub fn counters(&self) -> io::Result<Vec<Counters>> {
        self.ids().map(Counters::of).collect()
    }
}

/// 30 s for the work of a program before and after its measurement.
const SET_UP: Duration = Duration::from_secs(30);

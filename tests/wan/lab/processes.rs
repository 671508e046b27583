//! Processes that end together, their output, and their processor time.

use super::error::LabError;
use super::interrupt;
use super::program_output::RunTimes;
use super::testbed::Lab;
use crate::cell::CUT_AFTER_S;
use std::fs::{self, File};
use std::io;
use std::process::{Child, Command};
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
pub struct Processes(Vec<Child>);

/// The output of processes.
pub struct Outputs {
    pub texts: Vec<String>,
    /// Whether all had come to their end.
    pub complete: bool,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    /// Starts them, each with its output in a file of its own.
    pub fn start(lab: &Lab, commands: Vec<Command>, name: &str) -> io::Result<Self> {
        let mut processes = Self(Vec::new());
        for (number, mut command) in (0..).zip(commands) {
            let out = File::create(lab.path(&format!("{name}-{number}.out")))?;
            let log = File::create(lab.path(&format!("{name}-{number}.log")))?;
            processes.0.push(command.stdout(out).stderr(log).spawn()?);
        }
        Ok(processes)
    }

    /// Waits for the processes. Returns the times of their runs; none if they took longer than a
    /// cell may.
    ///
    /// # Errors
    /// As [`Self::outputs`]; or all are done and none has printed a run.
    pub fn run_times(self, lab: &Lab, name: &str, begins: Begins) -> Result<RunTimes, LabError> {
        let outputs = self.outputs(lab, name, begins)?;
        let times = RunTimes::of(&outputs.texts);
        if outputs.complete && times.seconds.is_empty() {
            return Err(LabError::Failed(format!("{name}: tells of no run")));
        }
        Ok(times)
    }

    /// The output of each process, once all are done or took longer than a cell may. Processes that
    /// print a line at their start and after each run are ended when all runs together take too
    /// long.
    ///
    /// # Errors
    /// A process failed, with its output; or no run has begun, so that no time is known; or a
    /// signal came.
    pub fn outputs(mut self, lab: &Lab, name: &str, begins: Begins) -> Result<Outputs, LabError> {
        let cut = Duration::from_secs(CUT_AFTER_S);
        let read =
            |number: usize, kind| fs::read_to_string(lab.path(&format!("{name}-{number}.{kind}")));
        let started = Instant::now();
        let mut begun = (begins == Begins::WithoutAWord).then_some(started + SET_UP);
        loop {
            let mut complete = true;
            if interrupt::has_come() {
                return Err(LabError::Interrupted);
            }
            for (number, child) in self.0.iter_mut().enumerate() {
                match child.try_wait()? {
                    Some(status) if !status.success() => {
                        let log = read(number, "log")?;
                        return Err(LabError::Failed(format!("{name}: {status}: {}", log.trim())));
                    }
                    done => complete &= done.is_some(),
                }
            }
            let now = Instant::now();
            if complete || begun.is_some_and(|begun| now > begun + cut) {
                let texts = (0..self.0.len()).map(|number| read(number, "out"));
                return Ok(Outputs { texts: texts.collect::<Result<_, _>>()?, complete });
            }
            if begun.is_none() && !read(0, "out")?.is_empty() {
                begun = Some(now);
            }
            if begun.is_none() && now > started + SET_UP {
                let text = format!("{name}: no run had begun after {SET_UP:?}");
                return Err(LabError::Failed(text));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Processor time that they have taken so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        self.0.iter().map(|child| cpu_ticks(child.id()) as f64 / ticks).sum()
    }
}

/// User and system time of a process and its threads.
fn cpu_ticks(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let times = fields.split_ascii_whitespace().skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// 30 s for the work of a program before and after its measurement.
const SET_UP: Duration = Duration::from_secs(30);

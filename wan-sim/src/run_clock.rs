//! The time of a run in real time, and what it costs the processor.

#![expect(clippy::disallowed_methods, reason = "a front end reads the clock")]

use crate::fidelity::Elapsed;
use std::time::Instant;
use units::{Span, TimeNs};

/// Time since a run began.
#[derive(Debug, Clone)]
pub(crate) struct RunClock {
    origin: Instant,
    machine: Option<MachineTime>,
}

/// Time of all processors since the machine started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MachineTime {
    busy: u64,
    all: u64,
}

impl RunClock {
    /// Starts a clock whose zero is now.
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now(), machine: read_machine_run_clock() }
    }

    /// Returns the time since the run began.
    pub(crate) fn now(&self) -> TimeNs {
        TimeNs::from_ns(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the length of the run so far, and how busy the machine was meanwhile.
    pub(crate) fn elapsed(&self) -> Elapsed {
        let machine_permille =
            self.machine.zip(read_machine_run_clock()).and_then(|(then, now)| {
                let busy = now.busy.saturating_sub(then.busy);
                (busy * 1000).checked_div(now.all.saturating_sub(then.all))
            });
        Elapsed { wall: self.now().since(TimeNs::default()), machine_permille }
    }
}

/// Returns the processor time that the calling thread has used since its start.
pub(crate) fn thread_cpu_run_clock() -> Span {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is negative for a thread that runs.
    Span::from_ns(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// Reads the ticks of all processors from /proc/stat; `None` where the system does not say.
fn read_machine_run_clock() -> Option<MachineTime> {
    parse_machine_run_clock(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Parses the text of /proc/stat: the columns user, nice, system, idle, iowait, irq, softirq and
/// steal of the first line. User includes guests.
fn parse_machine_run_clock(stat: &str) -> Option<MachineTime> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: u64 = ticks.iter().sum();
    Some(MachineTime { busy: all - idle, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_time_is_not_busy() {
        let stat = "cpu  10 2 30 400 50 6 7 8 9 9\ncpu0 1 2 3\n";
        assert_eq!(parse_machine_run_clock(stat), Some(MachineTime { busy: 63, all: 513 }));
        for stat in ["", "cpu 1 2", "cpu a b c d e", "intr 5"] {
            assert_eq!(parse_machine_run_clock(stat), None, "{stat}");
        }
    }

    #[test]
    fn a_thread_that_works_uses_time() {
        let before = thread_cpu_run_clock();
        while thread_cpu_run_clock() == before {}
        let elapsed = RunClock::start().elapsed();
        assert!(elapsed.machine_permille.is_none_or(|permille| permille <= 1000));
    }
}

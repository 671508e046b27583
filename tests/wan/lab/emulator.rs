//! The emulator's share of the machine, so that its cost is told apart from that of contenders.

use scenarios::testbed::counters;
use std::time::{Duration, Instant};

/// The emulator's processor time at the begin of a measurement.
#[derive(Debug)]
pub struct EmulatorMeter {
    /// Id of the emulator's process.
    process: u32,
    /// Processor time of the emulator at the begin, in seconds.
    cpu_seconds: f64,
    /// Begin of the measurement.
    begun: Instant,
}

impl EmulatorMeter {
    /// Begins to measure the emulator with this process id.
    pub fn start(process: u32) -> Self {
        Self { process, cpu_seconds: counters::cpu_seconds(process), begun: Instant::now() }
    }

    /// Returns the share of the machine's processor time that the emulator took since the begin.
    pub fn share(&self) -> f64 {
        let spent = counters::cpu_seconds(self.process) - self.cpu_seconds;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        share_of_machine(spent, self.begun.elapsed(), cores)
    }
}

/// Returns processor time over that of all cores during `wall`; 0 for no time at all.
fn share_of_machine(cpu_seconds: f64, wall: Duration, cores: usize) -> f64 {
    let machine = wall.as_secs_f64() * cores as f64;
    if machine > 0.0 { (cpu_seconds / machine).max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_cores() {
        assert_eq!(share_of_machine(1.0, Duration::from_secs(2), 2), 0.25);
        assert_eq!(share_of_machine(1.0, Duration::ZERO, 2), 0.0);
        // A process that is gone has counters of zero.
        assert_eq!(share_of_machine(-3.0, Duration::from_secs(1), 2), 0.0);
    }
}

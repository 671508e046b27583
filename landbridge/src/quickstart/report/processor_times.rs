//! Processor times of the machine and of a quickstart's own processes, read from /proc.

/// Processor time so far, in ticks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::quickstart) struct ProcessorTimes {
    /// Time of all processors.
    pub(super) all: u64,
    /// Time in which they were idle.
    pub(super) idle: u64,
    /// Time in which they served interrupts, which belongs to no program.
    pub(super) interrupts: u64,
    /// Time of the quickstart's own processes.
    pub(super) own: u64,
}

impl ProcessorTimes {
    /// Reads the times so far of all processors and of the processes `own`; `None` where the system
    /// does not say.
    pub(in crate::quickstart) fn read(own: &[u32]) -> Option<Self> {
        let [all, idle, interrupts] =
            parse_machine_processor_times(&std::fs::read_to_string("/proc/stat").ok()?)?;
        let ticks = |id: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            parse_process_processor_times(&stat)
        };
        let own: Option<u64> = own.iter().map(ticks).sum();
        Some(Self { all, idle, interrupts, own: own? })
    }

    /// Returns the fractions of all processors' time since `before` in which they worked, and in
    /// which they worked for other programs; `None` if no time has passed.
    pub(super) fn shares_since(&self, before: &Self) -> Option<(f64, f64)> {
        let all = self.all.saturating_sub(before.all);
        let busy = all.saturating_sub(self.idle.saturating_sub(before.idle));
        let own = self.own.saturating_sub(before.own);
        let interrupts = self.interrupts.saturating_sub(before.interrupts);
        let others = busy.saturating_sub(own + interrupts);
        let fraction = |ticks: u64| ticks as f64 / all as f64;
        (all > 0).then(|| (fraction(busy), fraction(others)))
    }
}

/// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
/// Returns all ticks, those of idle and iowait, and those of irq and softirq.
fn parse_machine_processor_times(stat: &str) -> Option<[u64; 3]> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [_, _, _, idle, waiting, hard, soft, ..] = ticks[..] else { return None };
    Some([ticks.iter().sum(), idle + waiting, hard + soft])
}

/// Parses the text of /proc/ID/stat: user and system time are words 14 and 15. The name, word 2,
/// may hold spaces and stands in brackets.
fn parse_process_processor_times(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_the_kernels_texts() {
        let stat = "cpu  10 2 30 400 50 6 7 8 9 9\ncpu0 1 2 3\n";
        assert_eq!(parse_machine_processor_times(stat), Some([513, 450, 13]));
        assert_eq!(parse_machine_processor_times("cpu 1 2"), None);
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 31 7 0 0 20 0 1 0 5 0";
        assert_eq!(parse_process_processor_times(stat), Some(38));
        assert_eq!(parse_process_processor_times("42 (a"), None);
        assert!(ProcessorTimes::read(&[std::process::id()]).is_some());
    }
}

//! The counters that the kernel keeps of a process: processor time, context switches, bytes
//! written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::{Add, AddAssign, Sub};
use std::path::Path;

/// The counters of one process at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Counters {
    /// Processor time of the process, with that of threads that have ended, in seconds.
    cpu_seconds: f64,
    /// Bytes that the process has given to `write`.
    written_bytes: u64,
    /// Counters of each thread by its id.
    threads: BTreeMap<u32, ThreadCounters>,
}

/// The counters of one thread.
#[derive(Debug, Clone, PartialEq)]
struct ThreadCounters {
    /// Name of the thread.
    name: String,
    /// Processor time in seconds.
    cpu_seconds: f64,
    /// Voluntary context switches.
    wakeups: u64,
}

/// The difference between the counters of two times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spent {
    /// Processor time in seconds.
    pub cpu_seconds: f64,
    /// Voluntary context switches: times that a thread waited and was woken.
    pub wakeups: f64,
    /// Bytes given to `write`.
    pub written_bytes: f64,
    /// Processor time in seconds by the names of threads, without the numbers at their ends.
    pub cpu_by_thread: BTreeMap<String, f64>,
}

impl Counters {
    /// Reads the counters of a process.
    ///
    /// # Errors
    /// The process is gone, or belongs to another user.
    pub fn of(process: u32) -> io::Result<Self> {
        let folder = format!("/proc/{process}");
        let written_bytes = parse_number(&fs::read_to_string(format!("{folder}/io"))?, "wchar:");
        let (_, cpu_seconds) = parse_stat(&fs::read_to_string(format!("{folder}/stat"))?);
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("{folder}/task"))? {
            let path = entry?.path();
            let id = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            // A thread may end meanwhile.
            if let (Some(id), Ok(thread)) = (id, ThreadCounters::read(&path)) {
                threads.insert(id, thread);
            }
        }
        Ok(Self { cpu_seconds, written_bytes, threads })
    }

    /// Returns what was spent since `earlier`. The wake-ups of a thread that has ended since then
    /// are lost.
    pub fn since(&self, earlier: &Self) -> Spent {
        let mut spent = Spent {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes) as f64,
            ..Spent::default()
        };
        for (id, thread) in &self.threads {
            let before = earlier.threads.get(id);
            let (cpu, wakeups) = before.map_or((0.0, 0), |then| (then.cpu_seconds, then.wakeups));
            spent.wakeups += thread.wakeups.saturating_sub(wakeups) as f64;
            let name = thread.name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
            *spent.cpu_by_thread.entry(name.to_owned()).or_default() += thread.cpu_seconds - cpu;
        }
        spent
    }
}

impl ThreadCounters {
    /// Reads the counters of the thread with this folder below `/proc`.
    fn read(folder: &Path) -> io::Result<Self> {
        let (name, cpu_seconds) = parse_stat(&fs::read_to_string(folder.join("stat"))?);
        let status = fs::read_to_string(folder.join("status"))?;
        let wakeups = parse_number(&status, "voluntary_ctxt_switches:");
        Ok(Self { name, cpu_seconds, wakeups })
    }
}

impl Add for Spent {
    type Output = Self;

    /// Returns the sum of both.
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for Spent {
    /// Adds the other.
    fn add_assign(&mut self, other: Self) {
        self.cpu_seconds += other.cpu_seconds;
        self.wakeups += other.wakeups;
        self.written_bytes += other.written_bytes;
        for (name, seconds) in other.cpu_by_thread {
            *self.cpu_by_thread.entry(name).or_default() += seconds;
        }
    }
}

impl Sub for Spent {
    type Output = Self;

    /// Returns the difference of both.
    fn sub(mut self, other: Self) -> Self {
        self.cpu_seconds -= other.cpu_seconds;
        self.wakeups -= other.wakeups;
        self.written_bytes -= other.written_bytes;
        for (name, seconds) in other.cpu_by_thread {
            *self.cpu_by_thread.entry(name).or_default() -= seconds;
        }
        self
    }
}

/// Returns the processor time of a process so far, in seconds; 0 when it is gone.
pub fn cpu_seconds(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    parse_stat(&text).1
}

/// Returns the name, and user and system time in seconds, that a `stat` file tells.
fn parse_stat(text: &str) -> (String, f64) {
    // The name, in brackets, may hold anything.
    let (before, after) = text.rsplit_once(')').unwrap_or_default();
    let name = before.split_once('(').map(|(_, name)| name.to_owned()).unwrap_or_default();
    let times = after.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    (name, ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the number behind `key` at the beginning of a line; 0 without such a line.
fn parse_number(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_a_name_with_brackets() {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let text = "7 (lane) 3) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1 2 3\n";
        assert_eq!(parse_stat(text), ("lane) 3".to_owned(), 200.0 / ticks));
        assert_eq!(parse_stat(""), (String::new(), 0.0));
    }

    #[test]
    fn switches_are_read_from_their_own_line() {
        let text = "Threads:\t9\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(parse_number(text, "voluntary_ctxt_switches:"), 150);
        assert_eq!(parse_number(text, "wchar:"), 0);
        assert_eq!(parse_number("rchar: 1\nwchar: 323934931\n", "wchar:"), 323_934_931);
    }

    #[test]
    fn new_and_ended_threads_leave_the_difference_right() {
        let at = |cpu_seconds, threads: &[(u32, &str, f64, u64)]| {
            let thread = |(id, name, cpu_seconds, wakeups): &(u32, &str, f64, u64)| {
                let (name, cpu_seconds, wakeups) = ((*name).to_owned(), *cpu_seconds, *wakeups);
                (*id, ThreadCounters { name, cpu_seconds, wakeups })
            };
            let threads = threads.iter().map(thread).collect();
            Counters { cpu_seconds, written_bytes: 100, threads }
        };
        let before = at(5.0, &[(1, "main", 1.0, 10), (2, "lane-0", 3.0, 100)]);
        let after = at(9.0, &[(1, "main", 1.5, 12), (3, "lane-1", 2.0, 7)]);
        let spent = after.since(&before);
        assert_eq!((spent.cpu_seconds, spent.wakeups, spent.written_bytes), (4.0, 9.0, 0.0));
        let names: Vec<_> = spent.cpu_by_thread.into_iter().collect();
        assert_eq!(names, [("lane".to_owned(), 2.0), ("main".to_owned(), 0.5)]);
    }

    #[test]
    fn differences_of_several_processes_add_up() {
        let of = |cpu_seconds| Spent {
            cpu_seconds,
            wakeups: 2.0,
            cpu_by_thread: BTreeMap::from([("lane".to_owned(), cpu_seconds)]),
            ..Spent::default()
        };
        let both = of(1.0) + of(2.0);
        assert_eq!((both.cpu_seconds, both.wakeups, both.cpu_by_thread["lane"]), (3.0, 4.0, 3.0));
        let less = both - of(0.5);
        assert_eq!((less.cpu_seconds, less.wakeups, less.cpu_by_thread["lane"]), (2.5, 2.0, 2.5));
    }

    #[test]
    fn the_counters_of_this_process_are_there() {
        let counters = Counters::of(std::process::id()).expect("a live process");
        assert!(!counters.threads.is_empty());
        assert!(Counters::of(u32::MAX).is_err());
    }
}

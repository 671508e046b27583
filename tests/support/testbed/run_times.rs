//! The run times that programs print: a line of JSON after each run, or after all.

use serde::Deserialize;

/// The times of runs in which several programs took part.
#[derive(Debug, Default, PartialEq)]
pub struct RunTimes {
    /// Seconds of each run, from the last post to the last result; all programs read one clock.
    pub seconds: Vec<f64>,
    /// Processor seconds of all programs in all runs; `None` where one does not report them.
    pub cpu_seconds: Option<f64>,
    /// Voluntary context switches of all programs in all runs; `None` where one does not report
    /// them.
    pub wakeups: Option<f64>,
}

/// Instants of runs, as `landbridge bench --json` has them.
#[derive(Deserialize)]
struct Line {
    posted_ns: Vec<u64>,
    ready_ns: Vec<u64>,
    cpu_seconds: Option<f64>,
    wakeups: Option<f64>,
}

impl RunTimes {
    /// Reads the times of the runs that all programs reported; a program that timed out may have
    /// reported fewer.
    pub fn of(outputs: &[String]) -> Self {
        let parsed = |text: &String| -> Vec<Line> {
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        let programs: Vec<_> = outputs.iter().map(parsed).collect();
        let last = |of: fn(&Line) -> &Vec<u64>| -> Vec<u64> {
            let instants = |lines: &Vec<Line>| -> Vec<u64> {
                lines.iter().flat_map(|line| of(line).iter().copied()).collect()
            };
            let later = |a: Vec<u64>, b: Vec<u64>| a.into_iter().zip(b).map(|(a, b)| a.max(b));
            let all = programs.iter().map(instants);
            all.reduce(|a, b| later(a, b).collect()).unwrap_or_default()
        };
        let runs = last(|line| &line.posted_ns).into_iter().zip(last(|line| &line.ready_ns));
        let seconds = |(posted, ready): (u64, u64)| ready.saturating_sub(posted) as f64 / 1e9;
        let seconds: Vec<f64> = runs.map(seconds).collect();
        let spent = |of: fn(&Line) -> Option<f64>| -> Option<f64> {
            programs.iter().map(|lines| spent_in_first(lines, seconds.len(), of)).sum()
        };
        let (cpu_seconds, wakeups) = (spent(|line| line.cpu_seconds), spent(|line| line.wakeups));
        Self { seconds, cpu_seconds, wakeups }
    }

    /// Returns the gigabytes of the runs' buffers of `bytes`.
    pub fn gigabytes(&self, bytes: u64) -> f64 {
        bytes as f64 * self.seconds.len() as f64 / 1e9
    }

    /// Returns the processor time for each gigabyte of the runs' buffers of `bytes`.
    pub fn cpu_seconds_per_gb(&self, bytes: u64) -> Option<f64> {
        let moved = self.gigabytes(bytes);
        self.cpu_seconds.filter(|_| moved > 0.0).map(|seconds| seconds / moved)
    }
}

/// Returns the sum of a figure of one program over its first `runs`.
fn spent_in_first(lines: &[Line], runs: usize, of: fn(&Line) -> Option<f64>) -> Option<f64> {
    let (mut counted, mut sum) = (0, 0.0);
    for line in lines.iter().filter(|line| !line.ready_ns.is_empty()) {
        if counted < runs {
            counted += line.ready_ns.len();
            sum += of(line)?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: &str = "{\"posted_ns\": [], \"ready_ns\": []}\n";

    /// A run from one second to another.
    fn run(posted: u64, ready: u64, cpu_seconds: Option<f64>) -> String {
        let [posted, ready] = [posted, ready].map(|second| second * 1_000_000_000);
        let cpu = cpu_seconds.map_or("null".to_owned(), |seconds| seconds.to_string());
        format!("{{\"posted_ns\": [{posted}], \"ready_ns\": [{ready}], \"cpu_seconds\": {cpu}}}\n")
    }

    #[test]
    fn only_runs_that_all_have_told_of_count() {
        let one = BEGUN.to_owned() + &run(10, 11, Some(0.5)) + "noise\n" + &run(20, 22, Some(0.25));
        let other = BEGUN.to_owned() + &run(10, 13, Some(1.0));
        let alone = RunTimes::of(std::slice::from_ref(&one));
        let wakeups = None;
        assert_eq!(alone, RunTimes { seconds: vec![1.0, 2.0], cpu_seconds: Some(0.75), wakeups });
        let both = RunTimes::of(&[one, other]);
        assert_eq!(both, RunTimes { seconds: vec![3.0], cpu_seconds: Some(1.5), wakeups });
        assert_eq!(both.cpu_seconds_per_gb(500_000_000), Some(3.0));
        let at_once =
            "{\"posted_ns\": [1, 2], \"ready_ns\": [3, 4], \"cpu_seconds\": 4}".to_owned();
        assert_eq!(RunTimes::of(&[at_once.clone(), at_once]).cpu_seconds, Some(8.0));
    }

    /// The first poster's wait for the other is no part of the run.
    #[test]
    fn a_run_lasts_from_last_post_to_last_result() {
        let both = RunTimes::of(&[run(10, 16, None), run(13, 15, None)]);
        assert_eq!(both.seconds, [3.0]);
    }

    #[test]
    fn wakeups_of_all_programs_are_added() {
        let line = r#"{"posted_ns": [1], "ready_ns": [2], "cpu_seconds": 1, "wakeups": 40}"#;
        let both = RunTimes::of(&[line.to_owned(), line.to_owned()]);
        assert_eq!(both.wakeups, Some(80.0));
    }

    #[test]
    fn silent_or_unfinished_programs_have_no_cost() {
        let silent = RunTimes::of(&[run(1, 2, None), run(1, 2, Some(1.0))]);
        assert_eq!((silent.seconds, silent.cpu_seconds), (vec![1.0], None));
        let never = RunTimes::of(&[BEGUN.to_owned(), String::new()]);
        assert_eq!(never.cpu_seconds_per_gb(1), None);
        assert_eq!(RunTimes::of(&[]).cpu_seconds_per_gb(1), None);
    }
}

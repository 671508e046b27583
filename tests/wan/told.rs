//! What programs print of their own runs: a line of JSON after each, or after all.

use serde::Deserialize;

/// What came of runs that each of several programs had its part in.
#[derive(Debug, Default, PartialEq)]
pub struct Told {
    /// Of each run, the slowest program's.
    pub seconds: Vec<f64>,
    /// Of all programs together in all runs; `None` where one does not tell.
    pub cpu_seconds: Option<f64>,
}

#[derive(Deserialize)]
struct Line {
    seconds: Vec<f64>,
    cpu_seconds: Option<f64>,
}

impl Told {
    /// Of the runs that all have told of: whoever was cut may have told of fewer.
    pub fn of(outputs: &[String]) -> Self {
        let parsed = |text: &String| -> Vec<Line> {
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        let programs: Vec<_> = outputs.iter().map(parsed).collect();
        let seconds = |lines: &[Line]| -> Vec<f64> {
            lines.iter().flat_map(|line| line.seconds.iter().copied()).collect()
        };
        let slower = |a: Vec<f64>, b: Vec<f64>| a.into_iter().zip(b).map(|(a, b)| a.max(b));
        let all = programs.iter().map(|lines| seconds(lines));
        let seconds = all.reduce(|a, b| slower(a, b).collect()).unwrap_or_default();
        let cpu_seconds = programs.iter().map(|lines| cpu_seconds(lines, seconds.len())).sum();
        Self { seconds, cpu_seconds }
    }

    /// Processor time for each gigabyte of the runs' buffers of `bytes`.
    pub fn cpu_seconds_per_gb(&self, bytes: u64) -> Option<f64> {
        let moved = bytes as f64 * self.seconds.len() as f64 / 1e9;
        self.cpu_seconds.filter(|_| moved > 0.0).map(|seconds| seconds / moved)
    }
}

/// Of one program in its first `runs`.
fn cpu_seconds(lines: &[Line], runs: usize) -> Option<f64> {
    let (mut told, mut sum) = (0, 0.0);
    for line in lines.iter().filter(|line| !line.seconds.is_empty()) {
        if told < runs {
            told += line.seconds.len();
            sum += line.cpu_seconds?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(outputs: &[&str]) -> Told {
        Told::of(&outputs.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_runs_that_all_have_told_of_count() {
        let one = "{\"seconds\": []}\n{\"seconds\": [1.0], \"cpu_seconds\": 0.5}\nnoise\n\
                   {\"seconds\": [2.0], \"cpu_seconds\": 0.25}\n";
        let other = "{\"seconds\": []}\n{\"seconds\": [3.0], \"cpu_seconds\": 1}\n";
        assert_eq!(told(&[one]), Told { seconds: vec![1.0, 2.0], cpu_seconds: Some(0.75) });
        let both = told(&[one, other]);
        assert_eq!(both, Told { seconds: vec![3.0], cpu_seconds: Some(1.5) });
        assert_eq!(both.cpu_seconds_per_gb(500_000_000), Some(3.0));
        let at_once = "{\"seconds\": [1.0, 2.0], \"cpu_seconds\": 4}";
        assert_eq!(told(&[at_once, at_once]).cpu_seconds, Some(8.0));
    }

    #[test]
    fn who_does_not_tell_or_never_ended_a_run_has_no_cost() {
        let silent = told(&["{\"seconds\": [1.0]}", "{\"seconds\": [1.0], \"cpu_seconds\": 1}"]);
        assert_eq!((silent.seconds, silent.cpu_seconds), (vec![1.0], None));
        assert_eq!(told(&["{\"seconds\": []}", ""]).cpu_seconds_per_gb(1), None);
        assert_eq!(told(&[]).cpu_seconds_per_gb(1), None);
    }
}

//! Counts of tests, read off the test runner's output.

/// The reason for a test that is skipped because it takes long, with the command that runs it. Ignored
/// tests in Rust have the same text.
pub const LONG_SKIP_REASON: &str = "long: cargo xtask test --long";

/// Counts of tests so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of tests that passed.
    pub passed: u64,
    /// Number of tests that failed.
    pub failed: u64,
    /// Names of failed tests, or texts on what was wrong.
    pub failures: Vec<String>,
    /// Tests that were not run, with the reason as far as it is known.
    pub skipped: Vec<String>,
    /// Skipped tests that the test program running now will count as passed.
    skipped_but_ok: u64,
}

impl Tally {
    /// Returns the number of tests that passed or were skipped.
    pub fn counted(&self) -> u64 {
        self.passed + self.skipped.len() as u64
    }

    /// Counts a line of the output of a Rust test runner.
    pub fn add_test_line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += tally_count_before(counts, " passed")
                .saturating_sub(std::mem::take(&mut self.skipped_but_ok));
            self.failed += tally_count_before(counts, " failed");
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|test| test.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        } else if let Some((name, why)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... ignored"))
        {
            self.skipped.push(format!("{name}{why}"));
        } else if let Some(what) = line.strip_prefix("SKIPPED: ") {
            self.skipped.push(what.to_owned());
            self.skipped_but_ok += 1;
        }
    }

    /// Counts a line of the output of pytest, which with `-q -rsfE` lists each skip, each failure
    /// and the sums.
    pub fn add_pytest_line(&mut self, line: &str) {
        if let Some(skip) = line.strip_prefix("SKIPPED ") {
            self.skipped.push(format!("python {skip}"));
        } else if let Some(failure) =
            line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))
        {
            self.failures.push(failure.to_owned());
        } else if line.starts_with(|first: char| first.is_ascii_digit()) && line.contains("ed") {
            self.passed += tally_count_before(line, " passed");
            self.failed += tally_count_before(line, " failed");
        }
    }

    /// Counts a line of the output of `cargo xtask python`, of which only the summary at its end has
    /// the skipped stages and the sums.
    pub fn add_summary_line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("landbridge: ") {
            self.passed += tally_count_before(counts, " passed");
            self.failed += tally_count_before(counts, " failed");
        } else if let Some(what) = line.strip_prefix("  skipped: ") {
            self.skipped.push(what.to_owned());
        } else if let Some(what) = line.strip_prefix("  failed: ") {
            self.failures.push(what.to_owned());
        }
    }

    /// Counts a line of the output of `faults`: a case that passed, or one that failed, or the
    /// reason.
    pub fn add_fault_line(&mut self, line: &str) {
        if line.contains(" %): pass,") {
            self.passed += 1;
        } else if line.contains(" %): FAIL,") {
            self.failed += 1;
            self.failures.push(line.to_owned());
        } else if let Some(wrong) = line.strip_prefix("    WRONG ") {
            self.failures.push(wrong.to_owned());
        }
    }
}

/// Returns the number in front of `what`, such as 3 for " passed" in `ok. 3 passed; 0 failed`; 0
/// where there is none.
fn tally_count_before(counts: &str, what: &str) -> u64 {
    let before = counts.split(what).next().filter(|before| before.len() < counts.len());
    let number = before.and_then(|before| before.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn counts_are_summed_over_test_programs() {
        let output = "\
running 4 tests
test one ... ok
test slow ... ignored, needs two hosts
test other ... FAILED
SKIPPED: lab: no privilege
test lab ... ok

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: cut off";
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_test_line(line));
        let skipped = vec!["slow, needs two hosts".to_owned(), "lab: no privilege".to_owned()];
        let failures = vec!["other".to_owned()];
        assert_eq!(tally, Tally { passed: 13, failed: 1, failures, skipped, skipped_but_ok: 0 });
    }

    #[test]
    fn pytests_sums_and_skips_are_read() {
        let output = "\
.....s                                                                   [100%]
SKIPPED [1] python/tests/test_buffers.py:155: could not import 'jax'
FAILED python/tests/test_arena.py::test_leaks - assert 3 == 2
1 failed, 105 passed, 1 skipped, 2 deselected in 52.48s
21 passed in 61.02s (0:01:01)
no tests ran in 0.01s";
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_pytest_line(line));
        let skip = "python [1] python/tests/test_buffers.py:155: could not import 'jax'";
        let skipped = vec![skip.to_owned()];
        let failures = vec!["python/tests/test_arena.py::test_leaks - assert 3 == 2".to_owned()];
        assert_eq!(tally, Tally { passed: 126, failed: 1, failures, skipped, skipped_but_ok: 0 });
    }

    #[test]
    fn the_summary_of_another_run_is_added() {
        let output = "\
21 passed in 61.02s (0:01:01)
SKIPPED, so not shown to work:
  skipped: python [1] test_buffers.py:155: could not import 'jax'
  failed: test_arena.py::test_leaks

landbridge: 126 passed, 1 failed, 1 skipped";
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_summary_line(line));
        let skipped = vec!["python [1] test_buffers.py:155: could not import 'jax'".to_owned()];
        let failures = vec!["test_arena.py::test_leaks".to_owned()];
        assert_eq!(tally, Tally { passed: 126, failed: 1, failures, skipped, skipped_but_ok: 0 });
    }

    #[test]
    fn faults_say_what_was_wrong() {
        let output = "\
kill rank 0   at 43.8 % (aimed 43.3 %): pass, longest wait  2.6 s, again after  3.4 s
    heard rank 1: rank lost
kill relay    at 31.0 % (aimed 30.1 %): FAIL, longest wait 26.1 s, again after  3.4 s
    WRONG rank 1 waited for 26.1s
faults on processes: 1 passed, 1 failed";
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_fault_line(line));
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (1, 1, 2));
    }
}

//! Limits of cgroups on processors, of versions 1 and 2, that hold this process back.
//!
//! `landbridge run` reads it every ten seconds. A gateway that is held back sends and acknowledges
//! late, which looks like a slow or long path to its peers.

use super::cgroup::{Cgroup, CgroupVersion, cgroups_of_process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use units::{Span, rounded_decimal_percent};

/// 0.1 of the periods of a limit on processors: a gateway that its cgroup holds back in fewer of them
/// has no problem, since its queues level that out. The part is chosen.
const THROTTLED_PART_MIN: f64 = 0.1;

/// Reads in how many of their periods the cgroups of this process held it back.
#[derive(Debug)]
pub struct ProcessorThrottle {
    root: PathBuf,
    /// The number of periods in which each cgroup held its processes back, when last read.
    last: BTreeMap<PathBuf, u64>,
}

impl ProcessorThrottle {
    /// Begins to watch the cgroups of this process.
    pub fn of_process() -> Self {
        Self::below_root(Path::new("/"))
    }

    /// Begins to watch the cgroups whose files are below `root`.
    fn below_root(root: &Path) -> Self {
        let mut throttle = Self { root: root.to_owned(), last: BTreeMap::new() };
        throttle.problem_since(Span::ZERO);
        throttle
    }

    /// Returns the limit that held this process back in at least a tenth of its periods in the time
    /// `passed` since the last call, as a phrase; `None` if none did.
    pub fn problem_since(&mut self, passed: Span) -> Option<String> {
        let mut problem = None;
        for group in cgroups_of_process(&self.root, "cpu") {
            let Some(throttled) = throttled_period_count(&group) else { continue };
            let before = self.last.insert(group.path.clone(), throttled);
            let Some(limit) = ProcessorLimit::of_cgroup(&group) else { continue };
            let periods = throttled.saturating_sub(before.unwrap_or(throttled));
            let held = periods as f64 * limit.period_us / 1e6;
            let part = (held / passed.as_secs_f64()).min(1.0);
            if problem.is_none() && passed > Span::ZERO && part >= THROTTLED_PART_MIN {
                problem = Some(limit.describe(&group, part, passed));
            }
        }
        problem
    }
}

/// The limit of a cgroup on processors.
struct ProcessorLimit {
    /// Processor time in each period, in microseconds.
    quota_us: f64,
    /// Length of a period in microseconds.
    period_us: f64,
}

impl ProcessorLimit {
    /// Reads the limit of a cgroup; `None` where it has none.
    fn of_cgroup(group: &Cgroup) -> Option<Self> {
        let (quota_us, period_us) = match group.version {
            CgroupVersion::V1 => (
                group.text("cpu.cfs_quota_us").trim().parse().ok()?,
                group.text("cpu.cfs_period_us").trim().parse().ok()?,
            ),
            CgroupVersion::V2 => {
                let text = group.text("cpu.max");
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse().ok()?, period.parse().ok()?)
            }
        };
        (quota_us > 0.0 && period_us > 0.0).then_some(Self { quota_us, period_us })
    }

    /// Describes the limit, which held this process back in a `part` of its periods in the time
    /// `passed`.
    fn describe(&self, group: &Cgroup, part: f64, passed: Span) -> String {
        let file = match group.version {
            CgroupVersion::V1 => "cpu.cfs_quota_us",
            CgroupVersion::V2 => "cpu.max",
        };
        format!(
            "{file} of cgroup {} allows {:.2} processors, and held it back in {} of the periods of the \
             last {}",
            group.path.display(),
            self.quota_us / self.period_us,
            rounded_decimal_percent(part),
            passed.rounded()
        )
    }
}

/// Returns the number of periods in which a cgroup held its processes back; `None` if it does not
/// count them.
fn throttled_period_count(group: &Cgroup) -> Option<u64> {
    let text = group.text("cpu.stat");
    text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::write_cgroup_files;
    use super::*;

    /// Writes the files of a cgroup that held its processes back for `periods` periods.
    fn write_throttled_periods(root: &Path, version: CgroupVersion, periods: u64) {
        let stat = format!("nr_periods 500\nnr_throttled {periods}\nthrottled_usec 1\n");
        let files = match version {
            CgroupVersion::V1 => vec![
                ("proc/self/cgroup", "1:cpu,cpuacct:/pod/a\n".to_owned()),
                ("sys/fs/cgroup/cpu/pod/a/cpu.cfs_quota_us", "3000\n".to_owned()),
                ("sys/fs/cgroup/cpu/pod/a/cpu.cfs_period_us", "100000\n".to_owned()),
                ("sys/fs/cgroup/cpu/pod/a/cpu.stat", stat),
                ("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "-1\n".to_owned()),
                ("sys/fs/cgroup/cpu/pod/cpu.stat", "nr_throttled 900\n".to_owned()),
            ],
            CgroupVersion::V2 => vec![
                ("proc/self/cgroup", "0::/pod/a\n".to_owned()),
                ("sys/fs/cgroup/pod/a/cpu.max", "3000 100000\n".to_owned()),
                ("sys/fs/cgroup/pod/a/cpu.stat", stat),
                ("sys/fs/cgroup/pod/cpu.max", "max 100000\n".to_owned()),
            ],
        };
        write_cgroup_files(root, &files);
    }

    #[test]
    fn a_cgroup_that_holds_back_is_named_with_its_limit() {
        let passed = Span::from_secs(10);
        for (version, file) in
            [(CgroupVersion::V1, "cpu.cfs_quota_us"), (CgroupVersion::V2, "cpu.max")]
        {
            let root = tempfile::tempdir().expect("a folder");
            write_throttled_periods(root.path(), version, 100);
            let mut throttle = ProcessorThrottle::below_root(root.path());
            assert_eq!(throttle.problem_since(passed), None, "nothing since the start");
            write_throttled_periods(root.path(), version, 150);
            let expected = format!(
                "{file} of cgroup /pod/a allows 0.03 processors, and held it back in 50 % of the \
                 periods of the last 10 s"
            );
            assert_eq!(throttle.problem_since(passed), Some(expected));
            write_throttled_periods(root.path(), version, 159);
            assert_eq!(throttle.problem_since(passed), None, "9 % is little");
        }
    }

    #[test]
    fn a_system_without_cgroups_has_no_problem() {
        let root = tempfile::tempdir().expect("a folder");
        let mut throttle = ProcessorThrottle::below_root(root.path());
        assert_eq!(throttle.problem_since(Span::from_secs(10)), None);
    }
}
